// What the copy engine is told about a problem, and which problems it can take.
#pragma once

#include <algorithm>
#include <limits>

#include "device/alignment.h"
#include "device/tensor_map.h"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

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

// Pairs along K are accessed at once.
inline bool paired(const PoolView& pool) {
  if (!pool.present() || pool.k_stride != 1) return true;
  return device::aligned(pool.data, 2 * static_cast<std::int64_t>(size_of(pool.dtype))) &&
         pool.slot_stride % 2 == 0 && pool.head_stride % 2 == 0 && pool.v_stride % 2 == 0;
}

// Null when the copy engine and the kernels over tiles take the problem's tensors.
inline const char* prefill_tiles_refuse(const PrefillProblem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (p.q.dtype == DType::kFloat32) return "takes bfloat16 and float16";
  if (p.checkpoint_offsets.present()) return "takes checkpoints every n tokens only";
  if (p.sequences.tokens > kMostTokens) return "more than 2^31 tokens";
  if (p.sequences.rows * p.heads > kMostTokens) return "more than 2^31 heads of sequences";
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
  a.maps = {device::tensor_map(tiles(p.q, p.q_heads, p.K, total)),
            device::tensor_map(tiles(p.k, p.k_heads, p.K, total)),
            device::tensor_map(tiles(p.v, p.v_heads, p.V, total)),
            device::tensor_map(tiles(p.out, p.heads, p.V, total))};
  a.p = p;
  a.tasks = static_cast<int>(p.sequences.rows * p.heads);
  return a;
}

}  // namespace hyla::gdn
