// The ways to say where a cache lives.
#include <hyla/attention.h>

#include "core/check.h"

namespace hyla::attention {
namespace {

KvCache make(KvCache::Kind kind, TensorView k, TensorView v, KvLayout layout) {
  KvCache cache;
  cache.kind = kind;
  cache.k = k;
  cache.v = v;
  cache.layout = layout;
  return cache;
}

void check_pair(const char* argument, const TensorView& view, int rank, const char* shape) {
  if (!view.present() || view.rank != rank || view.shape[1] != 2) {
    core::fail(argument, std::string("shape ") + shape, view.present() ? describe(view) : "none");
  }
}

}  // namespace

KvCache KvCache::dense(TensorView k, TensorView v, KvLayout layout) {
  return make(Kind::kDense, k, v, layout);
}

KvCache KvCache::ragged(TensorView k, TensorView v, TensorView cu_kv) {
  KvCache cache = make(Kind::kRagged, k, v, KvLayout::kNHD);
  cache.cu_kv = cu_kv;
  return cache;
}

KvCache KvCache::paged(TensorView k, TensorView v, TensorView page_table, KvLayout layout) {
  KvCache cache = make(Kind::kPaged, k, v, layout);
  cache.page_table = page_table;
  return cache;
}

KvCache KvCache::fused(TensorView pages, TensorView page_table, KvLayout layout) {
  check_pair("pages", pages, 5, layout == KvLayout::kHND ? "[P, 2, Hk, S, D]" : "[P, 2, S, Hk, D]");
  return paged(pages.select(1, 0), pages.select(1, 1), page_table, layout);
}

KvCache KvCache::blocks(TensorView blocks, std::int64_t layer, TensorView page_table) {
  check_pair("blocks", blocks, 6, "[P, 2, layers, S, Hk, D]");
  if (layer < 0 || layer >= blocks.shape[2]) {
    core::fail("layer", "a layer from 0 to " + core::text(blocks.shape[2] - 1), core::text(layer));
  }
  return fused(blocks.select(2, layer), page_table);
}

}  // namespace hyla::attention
