// What the copy engine is told about a problem, and which problems it can take.
#pragma once

#include <algorithm>
#include <limits>

#include "device/alignment.h"
#include "device/tensor_map.h"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

inline constexpr std::int64_t kMostTasks = std::int64_t{1} << 30;
inline constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max() - 64;

// Tiles of 64 tokens by 64 columns of one head. The stride of a dimension of one is not looked at.
inline device::TiledTensor tiles(const core::TokenView& view, std::int64_t heads, std::int64_t dim,
                                 std::int64_t tokens) {
  device::TiledTensor t;
  t.data = view.data;
  t.dtype = view.dtype;
  t.rank = 3;
  t.shape[0] = dim, t.shape[1] = heads, t.shape[2] = std::max<std::int64_t>(1, tokens);
  t.strides[0] = heads > 1 ? view.head_stride : dim;
  t.strides[1] = tokens > 1 ? view.token_stride : dim * heads;
  t.tile[0] = 64, t.tile[1] = 1, t.tile[2] = 64;
  return t;
}

// Tiles of 32 keys by 64 value rows of a state. The stride of a dimension of one is not looked at.
inline device::TiledTensor state_tiles(const PrefillProblem& p) {
  const PoolView& pool = p.final;
  device::TiledTensor t;
  t.data = pool.data;
  t.dtype = pool.dtype;
  t.rank = 4;
  t.shape[0] = p.K, t.shape[1] = p.V, t.shape[2] = p.heads;
  t.shape[3] = std::max<std::int64_t>(1, pool.slots);
  t.strides[0] = pool.v_stride;
  t.strides[1] = p.heads > 1 ? pool.head_stride : p.K * p.V;
  t.strides[2] = pool.slots > 1 ? pool.slot_stride : p.heads * p.K * p.V;
  t.tile[0] = 32, t.tile[1] = 64, t.tile[2] = t.tile[3] = 1;
  return t;
}

// Pairs along K are accessed at once.
inline bool paired(const PoolView& pool) {
  if (!pool.present() || pool.k_stride != 1) return true;
  return device::aligned(pool.data, 2 * static_cast<std::int64_t>(size_of(pool.dtype))) &&
         pool.slot_stride % 2 == 0 && pool.head_stride % 2 == 0 && pool.v_stride % 2 == 0;
}

// Every state is one piece of memory that the copy engine takes.
inline bool dense(const PoolView& pool, std::int64_t K, std::int64_t V) {
  if (!pool.present()) return false;
  const auto size = static_cast<std::int64_t>(size_of(pool.dtype));
  const bool rows = pool.k_stride == 1 && pool.v_stride == K;
  const bool columns = pool.v_stride == 1 && pool.k_stride == V;
  return (rows || columns) && device::aligned(pool.data, 16) && pool.slot_stride * size % 16 == 0 &&
         pool.head_stride * size % 16 == 0 && K * V * size % 32 == 0;
}

// Null when the copy engine and the kernels over tiles take the problem's tensors.
inline const char* prefill_tiles_refuse(const PrefillProblem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (p.q.dtype == DType::kFloat32) return "takes bfloat16 and float16";
  if (p.sequences.tokens > kMostTokens) return "more than 2^31 tokens";
  if (p.sequences.rows * p.heads > kMostTasks) return "more than 2^30 heads of sequences";
  const std::int64_t total = p.sequences.tokens;
  for (const device::TiledTensor& t :
       {tiles(p.q, p.q_heads, p.K, total), tiles(p.k, p.k_heads, p.K, total),
        tiles(p.v, p.v_heads, p.V, total), tiles(p.out, p.heads, p.V, total)}) {
    if (const char* reason = device::refuses_tiles(t)) return reason;
  }
  if (!paired(p.initial) || !paired(p.final) || !paired(p.checkpoints)) {
    return "states that are not aligned to pairs";
  }
  return nullptr;
}

inline FusedArguments arguments(const PrefillProblem& p) {
  const std::int64_t total = p.sequences.tokens;
  FusedArguments a;
  a.maps.q = device::tensor_map(tiles(p.q, p.q_heads, p.K, total));
  a.maps.k = device::tensor_map(tiles(p.k, p.k_heads, p.K, total));
  a.maps.v = device::tensor_map(tiles(p.v, p.v_heads, p.V, total));
  a.maps.out = device::tensor_map(tiles(p.out, p.heads, p.V, total));
  a.p = p;
  set_constants(a);
  const device::TiledTensor final = state_tiles(p);
  a.final_tiles = p.final.dtype == DType::kFloat32 && p.final.k_stride == 1 &&
                  device::refuses_tiles(final) == nullptr;
  if (a.final_tiles) a.maps.final = device::tensor_map(final);
  a.dense_states = dense(p.initial, p.K, p.V);
  return a;
}

}  // namespace hyla::gdn
