// The end of an item: denominators with sinks, log-sum-exp, and the output's rows from registers.
#pragma once

#include "ops/attention_prefill/arguments.cuh"
#include "ops/attention_prefill/softmax.cuh"

namespace hyla::attention {

// One row of a thread: which token and head of its group, and whether it exists.
struct QueryRow {
  int token, group_head;
  bool exists;
};

__device__ __forceinline__ QueryRow query_row(const Item& item, int row, int group,
                                              int tokens_per_tile) {
  const int token = row / group;
  return {item.token + token, row - token * group,
          token < tokens_per_tile && item.token + token < item.queries};
}

struct FinishedRow {
  float share;      // what the sums of values are multiplied with
  float logarithm;  // of the denominator, base e
};

// top: what the exponents of `sum` refer to, base 2. The sink joins the denominator here, once; a
// row that saw no key stays zero with it too.
template <class Arguments>
__device__ __forceinline__ FinishedRow finish_sums(const Arguments& a, int head, bool exists,
                                                   float top, float sum) {
  constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  const float infinity = __builtin_huge_valf();
  if (top == -infinity) return {0.0f, sum - infinity};  // NaN where all logits are
  float share = 1.0f;
  if (a.sinks != nullptr && exists) {
    const float sink = kLog2E * device::load_number(a.sinks, a.sinks_dtype, head * a.sinks_stride);
    const float higher = fmaxf(top, sink);
    share = arch::exp2_fast(top - higher);
    sum = sum * share + arch::exp2_fast(sink - higher);
    top = higher;
  }
  return {share / sum, kLn2 * (top + log2f(sum))};
}

// Finishes a row's softmax: returns what its output is multiplied with and writes its log-sum-exp.
template <class Element, class Arguments>
__device__ __forceinline__ float finish_row(const Arguments& a, const Item& item,
                                            const QueryRow& at, const SoftmaxRow& row,
                                            bool writes) {
  const int head = item.head * a.group + at.group_head;
  const FinishedRow done = finish_sums(
      a, head, at.exists, reference_of<Element>(row.maximum, a.factor), quad_sum(row.sum));
  if (a.lse != nullptr && at.exists && writes) {
    a.lse[(item.begin + at.token) * a.lse_token_stride + head * a.lse_head_stride] = done.logarithm;
  }
  return done.share;
}

// A thread's two rows of a piece, as they are.
template <class Shape, class Element, int Count, class Arguments>
__device__ __forceinline__ void store_piece(const Arguments& a, const Item& item, int first_row,
                                            const float (&o)[Count], const SoftmaxRow& upper,
                                            const SoftmaxRow& lower, int quad_lane) {
  const Partials& to = a.partials;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const SoftmaxRow& row = h == 0 ? upper : lower;
    const float sum = quad_sum(row.sum);
    if (!query_row(item, first_row + 8 * h, a.group, a.tokens_per_tile).exists) continue;
    const std::int64_t at = std::int64_t{item.slot} * Shape::kRows + first_row + 8 * h;
    if (quad_lane == 0) to.rows[at] = {reference_of<Element>(row.maximum, a.factor), sum};
    auto* values = reinterpret_cast<float2*>(to.values + at * Shape::kDim) + quad_lane;
#pragma unroll
    for (int j = 0; j < Count / 4; ++j) {
      values[4 * j] = make_float2(o[4 * j + 2 * h], o[4 * j + 2 * h + 1]);
    }
  }
}

// 32 columns of one row, two a thread and 8-column block: transposed over the four threads of the
// row, so that each holds eight neighbours.
__device__ __forceinline__ uint4 transposed(std::uint32_t x0, std::uint32_t x1, std::uint32_t x2,
                                            std::uint32_t x3, int quad_lane) {
  const bool odd = quad_lane & 1, upper = quad_lane & 2;
  const std::uint32_t e0 = __shfl_xor_sync(0xffffffffu, odd ? x0 : x1, 1);
  const std::uint32_t e1 = __shfl_xor_sync(0xffffffffu, odd ? x2 : x3, 1);
  const std::uint32_t y0 = odd ? e0 : x0, y1 = odd ? x1 : e0;
  const std::uint32_t y2 = odd ? e1 : x2, y3 = odd ? x3 : e1;
  const std::uint32_t f0 = __shfl_xor_sync(0xffffffffu, upper ? y0 : y2, 2);
  const std::uint32_t f1 = __shfl_xor_sync(0xffffffffu, upper ? y1 : y3, 2);
  return upper ? make_uint4(f0, f1, y2, y3) : make_uint4(y0, y1, f0, f1);
}

template <class Element, int Count, class Arguments>
__device__ __forceinline__ void store_rows(const Arguments& a, const Item& item,
                                           const float (&o)[Count], const QueryRow (&at)[2],
                                           const float (&share)[2], int quad_lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::int64_t offset = (item.begin + at[h].token) * a.out_token_stride +
                                (item.head * a.group + at[h].group_head) * a.out_head_stride;
    Element* row = static_cast<Element*>(a.out) + offset;
#pragma unroll
    for (int j = 0; j < Count / 16; ++j) {
      std::uint32_t x[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int e = 16 * j + 4 * b + 2 * h;
        x[b] = packed<Element>(o[e] * share[h], o[e + 1] * share[h]);
      }
      const uint4 chunk = transposed(x[0], x[1], x[2], x[3], quad_lane);
      const int column = 32 * j + 8 * quad_lane;
      if (at[h].exists && column < a.value_dim) *reinterpret_cast<uint4*>(row + column) = chunk;
    }
  }
}

}  // namespace hyla::attention
