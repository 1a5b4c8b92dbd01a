// From a sum of weighted values to the output: divide, add the sink, write, LSE.
#pragma once

#include "arch/exponential.cuh"
#include "device/dtype.cuh"
#include "ops/attention_decode/shape.h"

namespace hyla::attention::decode {

inline constexpr float kLn2 = 0.6931471805599453f;

// Largest logit, in log2, and the sum of 2^(logit - top).
struct Softmax {
  float top = -INFINITY, sum = 0;
};

// 2^(x - top), 0 for a piece without keys.
__device__ __forceinline__ float weight(float x, float top) {
  return x == -INFINITY ? 0.0f : arch::exp2_fast(x - top);
}

// A sum of pieces: softmax and four columns.
struct Added {
  Softmax all;
  float x[4] = {};

  // One more, with the same bits whichever kernel does it.
  __device__ __forceinline__ void add(const Softmax& sums, const float (&values)[4]) {
    const float top = fmaxf(all.top, sums.top);
    const float old = weight(all.top, top), factor = weight(sums.top, top);
    all = {top, __fmaf_rn(factor, sums.sum, __fmul_rn(all.sum, old))};
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] = __fmaf_rn(factor, values[c], __fmul_rn(x[c], old));
  }
  // The same against a maximum that is at least this one's.
  __device__ __forceinline__ void raise(float top) {
    const float factor = weight(all.top, top);
    all = {top, all.sum * factor};
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] *= factor;
  }
  // One more, against the same maximum.
  __device__ __forceinline__ void add_raised(const Added& other) {
    all.sum += other.all.sum;
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] += other.x[c];
  }
};

template <class Shape>
__device__ __forceinline__ Added piece_at(const Pieces& pieces, int slot, int row, int column) {
  const std::int64_t at = static_cast<std::int64_t>(slot) * Shape::kRows + row;
  const float2 sums = __ldcg(pieces.sums + at);
  const float4 y = __ldcg(reinterpret_cast<const float4*>(pieces.values + at * Shape::D + column));
  return {{sums.x, sums.y}, {y.x, y.y, y.z, y.w}};
}

template <class Shape>
__device__ __forceinline__ void set_piece(const Pieces& pieces, int slot, int row, int column,
                                          const Softmax& softmax, const float (&x)[4]) {
  const std::int64_t at = static_cast<std::int64_t>(slot) * Shape::kRows + row;
  __stcg(reinterpret_cast<float4*>(pieces.values + at * Shape::D + column),
         make_float4(x[0], x[1], x[2], x[3]));
  if (column == 0) __stcg(pieces.sums + at, make_float2(softmax.top, softmax.sum));
}

struct QueryRow {
  int token = -1, head = 0;  // token < 0: none
};

// Which query the packed row `in_cta` of a chunk is; the chunk has rows [first_row, first_row +
// rows) of its sequence.
template <class Shape>
__device__ __forceinline__ QueryRow query_row(const Arguments& a, int first_token, int first_head,
                                              int first_row, int rows, int in_cta) {
  const int block_head = in_cta / Shape::kChunk, row = in_cta % Shape::kChunk;
  QueryRow query;
  if (row < rows) {
    const int token = a.q.by_group(first_row + row);
    query.token = first_token + token;
    query.head = (first_head + block_head) * a.q.group + (first_row + row - token * a.q.group);
  }
  return query;
}

// What the sum of weighted values is multiplied with, and the LSE. A row that sees no key is zeros,
// with a sink too.
struct Finish {
  float factor = 0, lse = -INFINITY;
};
__device__ __forceinline__ Finish finish(const Output& out, int head, const Softmax& softmax) {
  Finish result;
  if (softmax.top == -INFINITY) {
    result.lse += softmax.sum;  // NaN where all logits are, which a maximum does not see
    return result;
  }
  float top = softmax.top, sum = softmax.sum;
  result.factor = 1;
  if (out.sinks != nullptr) {
    const float sink =
        kLog2E * device::load_number(out.sinks, out.sinks_dtype, head * out.sinks_stride);
    top = fmaxf(top, sink);
    result.factor = arch::exp2_fast(softmax.top - top);
    sum = sum * result.factor + arch::exp2_fast(sink - top);
  }
  result.factor /= sum;
  result.lse = (top + log2f(sum)) * kLn2;
  return result;
}

// N values from `column` on.
template <int N>
__device__ __forceinline__ void write_columns(const Output& out, const QueryRow& query,
                                              const Finish& with, int column, float (&x)[N]) {
  if (column < out.dim) {
    const std::int64_t at = query.token * out.token_stride + query.head * out.head_stride + column;
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] *= with.factor;
    if (out.wide) {
      device::store_wide(out.data, out.dtype, at, x);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) device::store_number(out.data, out.dtype, at + i, x[i]);
    }
  }
  if (column == 0 && out.lse != nullptr) {
    out.lse[query.token * out.lse_token_stride + query.head * out.lse_head_stride] = with.lse;
  }
}

template <int N>
__device__ __forceinline__ void write_out(const Output& out, const QueryRow& query,
                                          const Softmax& softmax, int column, float (&x)[N]) {
  write_columns(out, query, finish(out, query.head, softmax), column, x);
}

}  // namespace hyla::attention::decode
