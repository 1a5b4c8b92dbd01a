// States of a pool as lines of floats. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_GDN_POOL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_POOL_H_
#undef HYLA_CPU_GDN_POOL_H_
#else
#define HYLA_CPU_GDN_POOL_H_
#endif

#include "cpu/simd.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

template <class S>
HYLA_INLINE S* pool_at(const gdn::PoolView& pool, std::int64_t slot, std::int64_t head) {
  return static_cast<S*>(pool.data) + slot * pool.slot_stride + head * pool.head_stride;
}

// `outer` lines of `inner` elements, converted.
template <class From, class To>
void copy_lines(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride,
                std::int64_t inner, std::int64_t outer) {
  for (std::int64_t line = 0; line < outer; ++line) {
    const From* a = from + line * from_stride;
    To* b = to + line * to_stride;
    std::int64_t i = 0;
    for (; i + kLanes <= inner; i += kLanes) store(load(a + i), b + i);
    const int tail = static_cast<int>(inner - i);
    if (tail > 0) store_n(load_n(a + i, tail), b + i, tail);
  }
}

// The same past the caches, which would read every line before they write it; where lines do not
// begin and end with a vector, as copy_lines. The caller flushes.
template <class To>
void stream_lines(const float* from, std::int64_t from_stride, To* to, std::int64_t to_stride,
                  std::int64_t inner, std::int64_t outer) {
  constexpr std::size_t kVector = kLanes * sizeof(To);
  const bool whole = reinterpret_cast<std::uintptr_t>(to) % kVector == 0 &&
                     to_stride % kLanes == 0 && inner % kLanes == 0;
  if (!whole) return copy_lines(from, from_stride, to, to_stride, inner, outer);
  for (std::int64_t line = 0; line < outer; ++line) {
    for (std::int64_t i = 0; i < inner; i += kLanes) {
      stream(load(from + line * from_stride + i), to + line * to_stride + i);
    }
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_POOL_H_
