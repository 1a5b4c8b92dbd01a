// What every CTA does: find its share, list its segments, and let its warps stream them.
#pragma once

#include "ops/attention_decode/ring.cuh"

namespace hyla::attention::decode {

// `stream(ring, complete, rest)` works off the listed segments; where they are not complete it
// calls `rest`, once in every warp, which lists those that follow the first.
template <class Shape, class Stream>
__device__ __forceinline__ void work_off(const Arguments& a, const Share& share,
                                         WorkList<Shape>& list, std::uint32_t tiles,
                                         std::uint32_t scales, const Seat& seat,
                                         const Stream& stream) {
  bool complete = a.pieces.own_bits;
  int first = complete ? first_whole_part<Shape>(a, share, list) : list.first_part;
  if (first == INT32_MAX) return;
  const auto rest = [&] { list_parts<Shape>(a, share, first, 1, list); };
#pragma unroll 1
  while (true) {
    if (complete) {
      list_parts<Shape>(a, share, first, 0, list);
      if (list.count == 0) return;
    }
    Ring<Shape> ring(a, list.segments, tiles, scales, seat);
    ring.open(complete ? list.count : 1);  // another warp may be listing more already
    stream(ring, complete, rest);
    arch::wait_copies<0>();
    if (list.count < kListed) return;
    __syncthreads();
    if (threadIdx.x == 0) list.count = 0;
    __syncthreads();
    first += kListed;
    complete = true;
  }
}

// A thread's view of the CTA's share, the first of whose segments is listed (unless parts are not
// cut by shares). A warp that does not plan comes later, and nobody waits for it.
template <class Shape>
__device__ __forceinline__ Share make_share(const Arguments& a, WorkList<Shape>& list) {
  Share share;
  if constexpr (Shape::kAhead) {
    if (threadIdx.x >= kPlanners<Shape>) {
      fetch_first_keys<Shape>(a);
      asm volatile("bar.sync 4, %0;" ::"n"(Shape::kThreads) : "memory");
      share.begin = list.begin;
      share.end = list.end;
      return share;
    }
  }
  share = find_share<Shape>(a, list);
  if (Shape::kAhead && threadIdx.x == 0) list.begin = share.begin, list.end = share.end;
  if (!a.pieces.own_bits && share.begin < share.end) list_first<Shape>(a, share, list);
  if constexpr (Shape::kAhead) asm volatile("bar.arrive 4, %0;" ::"n"(Shape::kThreads) : "memory");
  return share;
}

template <class Shape, class Stream>
__device__ __forceinline__ void run_share(const Arguments& a, WorkList<Shape>& list,
                                          std::uint32_t tiles, std::uint32_t scales,
                                          const Seat& seat, const Stream& stream) {
  const Share share = make_share<Shape>(a, list);
  if (share.begin < share.end) work_off<Shape>(a, share, list, tiles, scales, seat, stream);
  if (a.pieces.own_bits) return;
  if (a.pieces.by_item) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      *a.pieces.items = passes_of<Shape>(a) * share.pass_parts;
    }
  } else if (threadIdx.x < 2) {
    a.pieces.entries[blockIdx.x * 2 + threadIdx.x] = list.entry[threadIdx.x];
  }
}

}  // namespace hyla::attention::decode
