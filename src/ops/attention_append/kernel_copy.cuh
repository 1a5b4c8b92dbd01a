// Appends rows as they are, 16 bytes at a time, several in flight a thread.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/attention_append/tokens.cuh"

namespace hyla::attention::appending {

__global__ void __launch_bounds__(kThreads) append_copy(const __grid_constant__ Arguments a) {
  constexpr int kAtOnce = 8;
  __shared__ TokenTile tile;
  arch::wait_for_previous_grid();
  find_tokens(a, tile);
  const auto heads = static_cast<int>(a.problem.heads);
  const auto size = static_cast<std::int64_t>(size_of(a.k.dtype));
  const int keys = heads * a.k_chunks, both = keys + heads * a.v_chunks;
  const int total = tile.count * both;
  for (int base = static_cast<int>(threadIdx.x); base < total; base += kAtOnce * kThreads) {
    uint4 x[kAtOnce];
    char* to[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = base + i * kThreads, token = a.by_token(at), in_token = at - token * both;
      to[i] = nullptr;
      if (at >= total || !tile.places[token].somewhere()) continue;
      const bool is_key = in_token < keys;
      const int in_kind = is_key ? in_token : in_token - keys;
      const int head = is_key ? a.by_k_head(in_kind) : a.by_v_head(in_kind);
      const int chunk = in_kind - head * (is_key ? a.k_chunks : a.v_chunks);
      const TensorView& from = is_key ? a.problem.k : a.problem.v;
      const CacheTensor& cache = is_key ? a.k : a.v;
      const std::int64_t offset = (tile.first + token) * from.strides[0] + head * from.strides[1];
      x[i] = __ldcs(
          reinterpret_cast<const uint4*>(static_cast<const char*>(from.data) + offset * size) +
          chunk);
      to[i] = static_cast<char*>(cache.data) + cache.offset(tile.places[token], head) * size +
              chunk * 16;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (to[i] != nullptr) *reinterpret_cast<uint4*>(to[i]) = x[i];
    }
  }
}

}  // namespace hyla::attention::appending
