// Work on several threads: the caller's pool where the context has one, otherwise OpenMP.
#pragma once

#include <hyla/context.h>

#include <cstdint>

namespace hyla::cpu {

// How many threads a call may use.
int thread_count(const Context& context);

// Calls body(task, i) for every i in [0, count), some of them at the same time, each with denormals
// flushed, and returns when all are done. body must not throw.
void parallel_for(const Context& context, int count, void (*body)(void* task, int i), void* task);

template <class Body>
void parallel_for(const Context& context, int count, const Body& body) {
  auto call = [](void* task, int i) { (*static_cast<const Body*>(task))(i); };
  parallel_for(context, count, call, const_cast<Body*>(&body));
}

// The i-th of `parts` even parts of [0, count).
struct Range {
  std::int64_t begin, end;
};
inline Range part_of(std::int64_t count, int parts, int i) {
  return {count * i / parts, count * (i + 1) / parts};
}

// Even parts of [0, count), one a thread, none smaller than `least`: body(begin, end).
template <class Body>
void parallel_ranges(const Context& context, std::int64_t count, std::int64_t least, Body&& body) {
  const std::int64_t most = least > 0 ? count / least : count;
  const int threads = thread_count(context);
  const int parts = most < 1 ? 1 : most < threads ? static_cast<int>(most) : threads;
  parallel_for(context, parts, [&](int i) {
    const Range range = part_of(count, parts, i);
    body(range.begin, range.end);
  });
}

}  // namespace hyla::cpu
