// What every CTA does: find its share, list its segments, and let its warps stream them.
#pragma once

#include "ops/attention_decode/ring.cuh"

namespace hyla::attention::decode {

// `stream(ring, complete, rest)` works off the listed segments; where they are not complete it calls
// `rest`, once in every warp, which lists those that follow the first.
template <class Shape, class Stream>
__device__ __forceinline__ void run_share(const Arguments& a, WorkList<Shape>& list,
                                          std::uint32_t tiles, std::uint32_t scales,
                                          const Seat& seat, const Stream& stream) {
  const Share share = find_share<Shape>(a, list);
  if (share.begin < share.end) {
    list_first<Shape>(a, share, list);
    int first = list.first_item;
    const auto rest = [&] { list_items<Shape>(a, share, first, 1, list); };
#pragma unroll 1
    for (bool complete = false; list.count > 0; complete = true) {
      Ring<Shape> ring(a, list.segments, tiles, scales, seat);
      ring.open(list.count);
      stream(ring, complete, rest);
      arch::wait_copies<0>();
      if (list.count < kListed) break;
      __syncthreads();
      if (threadIdx.x == 0) list.count = 0;
      __syncthreads();
      first += kListed;
      list_items<Shape>(a, share, first, 0, list);
    }
  }
  if (a.pieces.by_item) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.pieces.items = share.all_items;
  } else if (threadIdx.x < 2) {
    a.pieces.entries[blockIdx.x * 2 + threadIdx.x] = list.entry[threadIdx.x];
  }
}

}  // namespace hyla::attention::decode
