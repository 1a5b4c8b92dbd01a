// The attention kernel that takes everything: any dims, dtypes, masks and caches, and any operand.
// Float32 throughout. CUDA only; attention_cuda.h launches it for operands of your own.
//
// It sees keys and values through a Source:
//   static constexpr bool kPerToken     every query token has its own list of keys
//   key_count(call, row)                keys of a row, or entries of a token's list
//   has(row, token, key)                is there such a key? asked before it is loaded
//   load_k(row, token, key, head, d, x), load_v(...)  eight values from d on, as float
#ifndef HYLA_ATTENTION_ROWS_KERNEL_H_
#define HYLA_ATTENTION_ROWS_KERNEL_H_

#include <hyla/attention_queries.h>

#include <cstdint>

namespace hyla::attention::rows {

inline constexpr int kWarps = 8, kThreads = kWarps * 32;
inline constexpr int kRowsPerWarp = 2;  // packed rows: token * group + head of group
inline constexpr int kTileRows = kWarps * kRowsPerWarp;
inline constexpr int kKeys = 32;              // keys a step, one a lane
inline constexpr int kMaxColumns = 512 / 32;  // values a lane

__device__ inline float element(const TensorView& view, std::int64_t offset) {
  switch (view.dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(view.data)[offset];
    case DType::kBFloat16:
      return static_cast<float>(static_cast<const bfloat16*>(view.data)[offset]);
    default:
      return static_cast<float>(static_cast<const float16*>(view.data)[offset]);
  }
}

__device__ inline void set_element(const TensorView& view, std::int64_t offset, float x) {
  switch (view.dtype) {
    case DType::kFloat32:
      static_cast<float*>(view.data)[offset] = x;
      break;
    case DType::kBFloat16:
      static_cast<bfloat16*>(view.data)[offset] = bfloat16(x);
      break;
    default:
      static_cast<float16*>(view.data)[offset] = float16(x);
  }
}

// Queries of a row as far as the tensors reach: offsets on the device are not checked before.
__device__ inline std::int64_t safe_length(const Queries& call, std::int64_t row) {
  const std::int64_t total = call.q.shape[0], begin = call.begin(row), length = call.length(row);
  if (begin < 0 || begin > total || length < 0) return 0;
  return length < total - begin ? length : total - begin;
}

struct RowPart {
  std::int64_t row = -1, part = 0;  // row < 0: none
};

// Parts are numbered over the rows in order, count(row) each; finds number `index` by a scan over
// all rows. For all kThreads threads of a CTA at once.
template <class Count>
__device__ inline RowPart find_part(std::int64_t row_count, std::int64_t index, Count&& count) {
  __shared__ std::int64_t warp_sums[kWarps];
  __shared__ std::int64_t found[2];
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const std::int64_t share = (row_count + kThreads - 1) / kThreads;
  const std::int64_t first = thread * share;
  const std::int64_t last = first + share < row_count ? first + share : row_count;
  std::int64_t sum = 0;
  for (std::int64_t row = first; row < last; ++row) sum += count(row);
  std::int64_t before = sum;
  for (int step = 1; step < 32; step *= 2) {
    const std::int64_t other = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) warp_sums[warp] = before;
  if (thread == 0) found[0] = -1, found[1] = 0;
  __syncthreads();
  before -= sum;
  for (int w = 0; w < warp; ++w) before += warp_sums[w];
  if (index >= before && index < before + sum) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t own = count(row);
      if (index < before + own) {
        found[0] = row, found[1] = index - before;
        break;
      }
      before += own;
    }
  }
  __syncthreads();
  return {found[0], found[1]};
}

struct Tile {
  std::int64_t row, first, rows;  // packed rows [first, first + rows) of `row`; rows 0: none
};

template <bool kPerToken>
__device__ inline Tile find_tile(const Queries& call, std::int64_t index) {
  const std::int64_t group = call.query_heads / call.kv_heads;
  const std::int64_t per_token = (group + kTileRows - 1) / kTileRows;
  const RowPart at = find_part(call.rows, index, [&](std::int64_t row) {
    const std::int64_t tokens = safe_length(call, row);
    return kPerToken ? tokens * per_token : (tokens * group + kTileRows - 1) / kTileRows;
  });
  if (at.row < 0) return {0, 0, 0};
  const std::int64_t in_token = kPerToken ? at.part % per_token * kTileRows : 0;
  const std::int64_t first =
      kPerToken ? at.part / per_token * group + in_token : at.part * kTileRows;
  const std::int64_t rest =
      kPerToken ? group - in_token : safe_length(call, at.row) * group - first;
  return {at.row, first, rest < kTileRows ? rest : kTileRows};
}

__device__ inline float largest(float x) {
  for (int mask = 16; mask > 0; mask /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
  }
  return x;
}

__device__ inline float total(float x) {
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

// One packed row in the registers of a warp.
struct RowState {
  float top = -INFINITY, sum = 0;
  float values[kMaxColumns] = {};
  KeyRange keys;
};

// value [32, DV] in shared memory; `logit` is this lane's key.
__device__ inline void accumulate(RowState& state, float logit, const float* values, int value_dim,
                                  int lane) {
  const float top = fmaxf(state.top, largest(logit));
  // A maximum does not see NaN: where all logits are, it is that of a row without keys.
  if (top == -INFINITY && !__any_sync(0xffffffffu, isnan(logit))) return;
  const float old = expf(state.top - top), weight = expf(logit - top);
  state.top = top;
  state.sum = state.sum * old + total(weight);
#pragma unroll
  for (int c = 0; c < kMaxColumns; ++c) {
    if (c * 32 >= value_dim) break;
    state.values[c] *= old;
  }
  for (int key = 0; key < kKeys; ++key) {
    const float p = __shfl_sync(0xffffffffu, weight, key);
    const float* value = values + key * value_dim + lane;
#pragma unroll
    for (int c = 0; c < kMaxColumns; ++c) {
      if (c * 32 >= value_dim) break;
      if (c * 32 + lane < value_dim) state.values[c] += p * value[c * 32];
    }
  }
}

__device__ inline void write_row(const Queries& call, const RowState& state, std::int64_t token,
                                 std::int64_t head, int lane) {
  float top = state.top, denominator = state.sum, factor = 0;
  const bool any = state.sum != 0;
  if (any) {
    if (call.sinks.dtype != DType::kNone) {
      const float sink = element(call.sinks, head * call.sinks.strides[0]);
      top = fmaxf(top, sink);
      denominator = denominator * expf(state.top - top) + expf(sink - top);
    }
    factor = expf(state.top - top) / denominator;
  }
  const std::int64_t out = token * call.out.strides[0] + head * call.out.strides[1];
  const int value_dim = static_cast<int>(call.value_dim);
#pragma unroll
  for (int c = 0; c < kMaxColumns; ++c) {
    const int column = c * 32 + lane;
    if (column < value_dim) set_element(call.out, out + column, state.values[c] * factor);
  }
  if (lane == 0 && call.lse.dtype != DType::kNone) {
    static_cast<float*>(call.lse.data)[token * call.lse.strides[0] + head * call.lse.strides[1]] =
        any ? top + logf(denominator) : -INFINITY;
  }
}

inline std::size_t shared_bytes(std::int64_t head_dim, std::int64_t value_dim) {
  return static_cast<std::size_t>(kTileRows * head_dim + kKeys * (head_dim + 1) +
                                  kKeys * value_dim) *
         sizeof(float);
}

// Tiles that a call can have at most: what the host knows.
inline std::int64_t tile_bound(const Queries& call, bool per_token) {
  const std::int64_t group = call.query_heads / call.kv_heads, tokens = call.q.shape[0];
  if (per_token) return tokens * ((group + kTileRows - 1) / kTileRows);
  return tokens * group / kTileRows + (call.rows < tokens ? call.rows : tokens);
}

// Grid: (tiles, KV heads).
template <class Source>
__global__ void __launch_bounds__(kThreads)
    attention_rows(const __grid_constant__ Queries call, const __grid_constant__ Source source) {
  extern __shared__ float shared[];
  asm volatile("griddepcontrol.wait;" ::: "memory");  // under programmatic dependent launch
  const Tile tile = find_tile<Source::kPerToken>(call, blockIdx.x);
  if (tile.rows == 0) return;
  const int dim = static_cast<int>(call.head_dim), value_dim = static_cast<int>(call.value_dim);
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const std::int64_t group = call.query_heads / call.kv_heads, kv_head = blockIdx.y;
  float* queries = shared;                   // [16, D]
  float* keys = queries + kTileRows * dim;   // [32, D + 1]
  float* values = keys + kKeys * (dim + 1);  // [32, DV]
  const std::int64_t begin = call.begin(tile.row);
  const auto token_of = [&](std::int64_t r) { return begin + (tile.first + r) / group; };
  const auto head_of = [&](std::int64_t r) { return kv_head * group + (tile.first + r) % group; };
  for (int i = thread; i < tile.rows * dim; i += kThreads) {
    const int r = i / dim, d = i % dim;
    queries[i] =
        element(call.q, token_of(r) * call.q.strides[0] + head_of(r) * call.q.strides[1] + d);
  }

  const std::int64_t count = source.key_count(call, tile.row);
  const std::int64_t position = count - safe_length(call, tile.row);
  const auto visible = [&](std::int64_t r) {
    if (Source::kPerToken) return KeyRange{0, count};
    return call.mask.visible(position + (tile.first + r) / group, count);
  };
  const std::int64_t first_key = visible(0).begin, last_key = visible(tile.rows - 1).end;
  RowState states[kRowsPerWarp];
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int r = warp * kRowsPerWarp + i;
    states[i].keys = r < tile.rows ? visible(r) : KeyRange{0, 0};
  }

  constexpr double kMost = 0x1p126;  // a larger cap would be infinite, and is none to any logit
  const auto scale = static_cast<float>(call.scale);
  const auto cap = static_cast<float>(call.softcap < kMost ? call.softcap : kMost);
  const std::int64_t list = token_of(0);
  for (std::int64_t base = first_key; base < last_key; base += kKeys) {
    __syncthreads();
    const auto load = [&](float* to, int pitch, int width, auto&& read) {
      for (int i = thread; i < kKeys * (width / 8); i += kThreads) {
        const int key = i / (width / 8), d = i % (width / 8) * 8;
        float x[8] = {};
        if (base + key < last_key && source.has(tile.row, list, base + key)) {
          read(base + key, d, x);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) to[key * pitch + d + e] = x[e];
      }
    };
    load(keys, dim + 1, dim, [&](std::int64_t key, int d, float(&x)[8]) {
      source.load_k(tile.row, list, key, kv_head, d, x);
    });
    load(values, value_dim, value_dim, [&](std::int64_t key, int d, float(&x)[8]) {
      source.load_v(tile.row, list, key, kv_head, d, x);
    });
    __syncthreads();
    const std::int64_t key = base + lane;
    const bool there = !Source::kPerToken || (key < last_key && source.has(tile.row, list, key));
#pragma unroll
    for (int i = 0; i < kRowsPerWarp; ++i) {
      const int r = warp * kRowsPerWarp + i;
      if (r >= tile.rows) break;
      float logit = 0;
      for (int d = 0; d < dim; ++d) logit += queries[r * dim + d] * keys[lane * (dim + 1) + d];
      logit *= scale;
      if (cap > 0) logit = cap * tanhf(logit / cap);
      if (!there || key < states[i].keys.begin || key >= states[i].keys.end) logit = -INFINITY;
      accumulate(states[i], logit, values, value_dim, lane);
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int r = warp * kRowsPerWarp + i;
    if (r < tile.rows) write_row(call, states[i], token_of(r), head_of(r), lane);
  }
}

}  // namespace hyla::attention::rows

#endif  // HYLA_ATTENTION_ROWS_KERNEL_H_
