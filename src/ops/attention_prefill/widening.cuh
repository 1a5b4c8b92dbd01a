// Widens the rows that the schedule has chosen: bytes of the cache become 16-bit numbers in the
// workspace, where the prefill kernel's copy engine finds them.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/registers.cuh"
#include "ops/attention_prefill/item.cuh"
#include "ops/attention_prefill/widen.cuh"
#include "ops/attention_prefill/widening.h"

namespace hyla::attention {

// The place of the token that this lane has looked up; outer < 0: zeros.
struct WideningToken {
  KvRows::Place place{-1, 0};
  std::int64_t row = 0;  // of [KV heads, room], the warp's first
};

template <class Element, bool kIntegers>
__device__ __forceinline__ void widen_half(const WideningHalf& half, const WideningToken& token,
                                           int head) {
  constexpr int kAtOnce = 8;
  const ByteRows& from = half.from;
  const int lane = static_cast<int>(threadIdx.x) & 31, count = kWideningTokens * half.eights;
  const bool somewhere = token.place.outer >= 0;
  std::uint64_t source = 0, scale = 0;
  if (somewhere) {
    source = reinterpret_cast<std::uint64_t>(from.values) + token.place.outer * from.outer_bytes +
             token.place.token * from.token_bytes + head * from.head_bytes;
    if (from.scales != nullptr) {
      scale = reinterpret_cast<std::uint64_t>(from.scales + token.place.outer * from.scale_outer +
                                              token.place.token * from.scale_token +
                                              head * from.scale_head);
    }
  }
  if (half.scales != nullptr && lane < kWideningTokens) {
    half.scales[token.row + lane] = somewhere ? *reinterpret_cast<const float*>(scale) : 0.0f;
  }
  uint4* to = static_cast<uint4*>(half.to) + token.row * half.eights;
  const bool multiplies = from.scales != nullptr && half.scales == nullptr;
  for (int begin = 0; begin < count; begin += 32 * kAtOnce) {
    uint2 bytes[kAtOnce];
    float factor[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int eight = begin + 32 * i + lane, row = min(half.by_eights(eight), kWideningTokens);
      const int piece = eight - row * half.eights;
      const std::uint64_t at = __shfl_sync(0xffffffffu, source, row & 31);
      const bool read = eight < count && at != 0;
      bytes[i] = read ? __ldg(reinterpret_cast<const uint2*>(at) + piece) : uint2{};
      factor[i] = 0;
      if (multiplies) {
        const auto* scales =
            reinterpret_cast<const float*>(__shfl_sync(0xffffffffu, scale, row & 31));
        const int part = min(piece / from.scale_chunks, from.scale_groups - 1);
        if (read) factor[i] = scales[part * from.scale_inner];
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int eight = begin + 32 * i + lane;
      if (eight >= count) continue;
      to[eight] = multiplies ? widened_scaled<Element, kIntegers>(bytes[i], factor[i])
                             : widened<Element, kIntegers>(bytes[i]);
    }
  }
}

// A warp takes kWideningTokens tokens of a KV head at a time.
template <class Element, bool kIntegers>
__global__ void __launch_bounds__(32 * kWideningWarps)
    widen_rows(const __grid_constant__ Widening a) {
  arch::wait_for_previous_grid();
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int shares = a.counters->widened / kWideningTokens * a.kv_heads;
  const int warps = static_cast<int>(gridDim.x) * kWideningWarps;
  int share = static_cast<int>(blockIdx.x) * kWideningWarps +
              static_cast<int>(arch::uniform(threadIdx.x >> 5));
  for (; share < shares; share += warps) {
    const int tokens = share / a.kv_heads, head = share - tokens * a.kv_heads;
    const int first = tokens * kWideningTokens;  // row of the workspace
    const int batch = find_last(a.rows, first, [&](int i) { return a.regions[i].begin; });
    const Region region = a.regions[batch];
    const int token = region.first + first - region.begin + lane;
    WideningToken found;
    found.row = std::int64_t{head} * a.room + first;
    if (lane < kWideningTokens && token < region.end) {
      const auto row = static_cast<std::uint32_t>(batch), at = static_cast<std::uint32_t>(token);
      const KvRows& places = a.keys.from;  // keys and values have one page table
      found.place = places.place(places.entry(row, at), row, at);
    }
    widen_half<Element, kIntegers>(a.keys, found, head);
    widen_half<Element, kIntegers>(a.values, found, head);
  }
}

}  // namespace hyla::attention
