#include <hyla/thread_pool.h>

#include <cstddef>
#include <string>

#include "capi/status.h"
#include "core/check.h"

using hyla::ThreadPool;
using hyla::core::fail;

namespace {

ThreadPool* pool_of(hyla_thread_pool* pool) { return reinterpret_cast<ThreadPool*>(pool); }

}  // namespace

hyla_status hyla_thread_pool_create(int32_t threads, hyla_thread_pool** pool) {
  return hyla::capi::guarded([&] {
    if (pool == nullptr) fail("pool", "where to put it", "null");
    *pool = nullptr;
    *pool = reinterpret_cast<hyla_thread_pool*>(new ThreadPool(threads));
  });
}

hyla_status hyla_thread_pool_use(hyla_thread_pool* pool, hyla_context* context) {
  return hyla::capi::guarded([&] {
    if (pool == nullptr) fail("pool", "one of hyla_thread_pool_create", "null");
    if (context == nullptr) fail("context", "one to change", "null");
    constexpr std::size_t kNeeded = offsetof(hyla_context, parallel_pool) + sizeof(void*);
    if (context->struct_size < kNeeded) {
      fail("context.struct_size", std::to_string(kNeeded) + " or more",
           std::to_string(context->struct_size));
    }
    context->threads = pool_of(pool)->threads();
    context->parallel_for = ThreadPool::run;
    context->parallel_pool = pool;
  });
}

void hyla_thread_pool_destroy(hyla_thread_pool* pool) { delete pool_of(pool); }
