// What the one-token kernels receive: a DecodeProblem without what they do not need. Small, with
// 32-bit strides (the launcher sends what does not fit elsewhere), because at small batch the time
// is latency.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/gdn_decode/gate_arguments.cuh"
#include "problem/gdn_decode.h"

namespace hyla::gdn {

struct RowHead {  // strides of [B, heads, ...] in elements
  std::uint32_t row = 0, head = 0;
};

// The fused gated norm of the output.
inline constexpr int kMaxCluster = 8;  // CTAs of a head
inline constexpr int kGatedDim = 128;  // K and V
struct GatedArguments {
  const void *z, *weight;
  RowHead z_stride;
  std::uint32_t weight_stride;
  DType weight_dtype;
  bool silu;  // else sigmoid
  float eps;
};

// In the order in which the kernels need them: a grid that starts finds none of it in the constant
// cache, which is filled line by line.
struct DecodeArguments {
  void* state;
  const void* read_slots;
  std::uint32_t slot_stride, head_stride, line_stride;  // a line: V values (kKV) or K values (kVK)
  std::uint32_t read_stride;
  std::int32_t first_slot;        // at least 0
  std::uint32_t slot_count;       // slots from first_slot on
  std::uint32_t key_head_factor;  // head / (HV/H) = head * factor >> kKeyHeadShift
  float scale;
  const void *k, *q, *v;
  RowHead k_stride, q_stride, v_stride, gate_stride, beta_stride;
  GateArguments gates;
  void* out;
  RowHead out_stride;
  float l2norm_eps;
  // Only for Options::kAny.
  bool l2norm, wide_keys;  // wide: aligned for vector loads
  DType read_dtype, column_dtype, write_dtype;
  std::int32_t slots;
  const void *read_columns, *write_slots;
  std::uint32_t read_column_stride, column_stride, write_stride;
  std::int32_t table_columns;
  GatedArguments gated;
};

// Exact for heads and group sizes below 1024.
inline constexpr int kKeyHeadShift = 22;
inline constexpr std::int64_t kMaxFastHeads = 1023;

__device__ __forceinline__ std::uint32_t key_head_of(const DecodeArguments& a, std::uint32_t head) {
  return head * a.key_head_factor >> kKeyHeadShift;
}

// Options::kUsual: every offset into q, k, v, out and the gates fits 32 bits.
template <Options O>
__device__ __forceinline__ std::int64_t at(const RowHead& stride, std::uint32_t row,
                                           std::uint32_t head) {
  if constexpr (O == Options::kUsual) return row * stride.row + head * stride.head;
  return static_cast<std::int64_t>(row) * stride.row +
         head * static_cast<std::int64_t>(stride.head);
}

__device__ __forceinline__ std::int64_t load_index(const void* data, DType dtype,
                                                   std::int64_t offset) {
  if (dtype == DType::kInt32) return static_cast<const std::int32_t*>(data)[offset];
  if (dtype == DType::kInt64) return static_cast<const std::int64_t*>(data)[offset];
  return static_cast<const std::uint32_t*>(data)[offset];
}

// 32 bits where they are enough: what comes before the state's loads is latency.
template <Options O>
using Slot = std::conditional_t<O == Options::kUsual, std::uint32_t, std::int64_t>;

template <Options O>
__device__ __forceinline__ Slot<O> read_slot(const DecodeArguments& a, std::uint32_t row) {
  const std::int64_t offset = static_cast<std::int64_t>(row) * a.read_stride;
  if (a.read_slots == nullptr) return row;
  if constexpr (O == Options::kUsual) {
    return static_cast<const std::uint32_t*>(a.read_slots)[offset];
  }
  std::int64_t column = 0;
  if (a.read_columns != nullptr) {
    column = load_index(a.read_columns, a.column_dtype,
                        static_cast<std::int64_t>(row) * a.column_stride);
    column = max(std::int64_t{0}, min(column, std::int64_t{a.table_columns - 1}));
  }
  return load_index(a.read_slots, a.read_dtype, offset + column * a.read_column_stride);
}

template <Options O>
__device__ __forceinline__ Slot<O> write_slot(const DecodeArguments& a, std::uint32_t row,
                                              Slot<O> read) {
  if (O == Options::kUsual || a.write_slots == nullptr) return read;
  return load_index(a.write_slots, a.write_dtype, static_cast<std::int64_t>(row) * a.write_stride);
}

template <Options O>
__device__ __forceinline__ bool is_null(const DecodeArguments& a, Slot<O> slot) {
  if constexpr (O == Options::kUsual) {
    return slot - static_cast<std::uint32_t>(a.first_slot) >= a.slot_count;
  }
  return slot < a.first_slot || slot >= a.slots;
}

}  // namespace hyla::gdn
