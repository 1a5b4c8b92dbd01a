// Parts of a sequence whose states are in place: the last one overwrites what the first one starts
// from. CTAs of a grid may start in any order, and one that waited for another that has not started
// might keep the multiprocessor from it. So they take their parts in the order in which they start:
// whoever comes first has the first part, and the last one waits until that has its state.
#pragma once

#include "arch/flags.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"
#include "ops/gdn_prefill/long_rows.cuh"

namespace hyla::gdn {

// Of every block of 64 value rows of a head: parts that were taken, and whether the first has its
// state.
inline constexpr int kOrderWords = 2;

inline std::int64_t order_count(std::int64_t pairs, std::int64_t V) {
  return pairs * ((V + 63) / 64) * kOrderWords;
}

__device__ __forceinline__ std::uint32_t* order_words(const FusedArguments& a, int pair,
                                                      int block) {
  const int blocks = static_cast<int>(a.p.V + 63) / 64;
  return a.order + (static_cast<std::int64_t>(pair) * blocks + block) * kOrderWords;
}

// By all threads of all CTAs of a grid before, which then lets the next one start.
__device__ __forceinline__ void lower_order(const FusedArguments& a) {
  if (a.order == nullptr) return;
  const int pairs = a.long_rows > 0 ? a.long_rows * static_cast<int>(a.p.heads) : a.tasks;
  const auto words = static_cast<int>(order_words(a, pairs, 0) - a.order);
  const int step = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x) + own_thread(); i < words; i += step) {
    a.order[i] = 0;
  }
  __threadfence();
  __syncthreads();
}

// By one thread: the part of a CTA, of its first block.
__device__ __forceinline__ int take_part(const FusedArguments& a, int pair, int block) {
  if (a.order == nullptr) return static_cast<int>(blockIdx.z);
  return static_cast<int>(atomicAdd(order_words(a, pair, block), 1u));
}

// By one thread, when all have the initial state of the block.
__device__ __forceinline__ void say_started(const FusedArguments& a, int pair, int block) {
  arch::raise_flag(order_words(a, pair, block) + 1);
}
__device__ __forceinline__ void wait_for_start(const FusedArguments& a, int pair, int block) {
  while (!arch::flag_raised(order_words(a, pair, block) + 1)) continue;
}

}  // namespace hyla::gdn
