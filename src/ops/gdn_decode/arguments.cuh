// What the one-token kernels receive: a DecodeProblem without what they do not need. Small, with
// 32-bit strides (the launcher sends what does not fit elsewhere), because at small batch the time
// is latency.
#pragma once

#include <cstdint>

#include "device/activation.cuh"
#include "device/dtype.cuh"
#include "problem/gdn_decode.h"

namespace hyla::gdn {

// How a kernel learns its options. The usual call of an engine (raw gate and logit beta in the
// dtype of q, A_log float32, L2 norm, int32 read slots, aligned, dense states) has code of its own:
// code that is not there is not fetched. Measured on an H200, float32 VK, B = 1: 4.3 us with every
// option at run time.
enum class Options { kUsual, kAny };

struct RowHead {  // strides of [B, heads, ...] in elements
  std::uint32_t row = 0, head = 0;
};

struct DecodeArguments {
  const void *read_slots, *k, *q, *gate, *beta, *A_log, *dt_bias, *v;
  void *state, *out;
  std::uint32_t read_stride;
  std::uint32_t key_head_factor;  // head / (HV/H) = head * factor >> kKeyHeadShift
  RowHead q_stride, k_stride, v_stride, gate_stride, beta_stride, out_stride;
  std::uint32_t slot_stride, head_stride, line_stride;  // a line: V values (kKV) or K values (kVK)
  std::uint32_t A_log_stride, dt_bias_stride;
  std::int32_t first_slot, slots;
  float scale, l2norm_eps;
  DType dt_bias_dtype;
  // Only for Options::kAny.
  bool l2norm, wide_keys, wide_values;  // wide: aligned for vector loads
  Gate::Kind gate_kind;
  Beta::Kind beta_kind;
  DType gate_dtype, beta_dtype, A_log_dtype, read_dtype, column_dtype, write_dtype;
  const void *read_columns, *write_slots;
  std::uint32_t read_column_stride, column_stride, write_stride;
  std::int32_t table_columns;
};

// Exact for heads and group sizes below 1024.
inline constexpr int kKeyHeadShift = 22;
inline constexpr std::int64_t kMaxFastHeads = 1023;

__device__ __forceinline__ std::uint32_t key_head_of(const DecodeArguments& a, std::uint32_t head) {
  return head * a.key_head_factor >> kKeyHeadShift;
}

__device__ __forceinline__ std::int64_t at(const RowHead& stride, std::uint32_t row,
                                           std::uint32_t head) {
  return static_cast<std::int64_t>(row) * stride.row +
         head * static_cast<std::int64_t>(stride.head);
}

__device__ __forceinline__ std::int64_t load_index(const void* data, DType dtype,
                                                   std::int64_t offset) {
  if (dtype == DType::kInt32) return static_cast<const std::int32_t*>(data)[offset];
  if (dtype == DType::kInt64) return static_cast<const std::int64_t*>(data)[offset];
  return static_cast<const std::uint32_t*>(data)[offset];
}

template <Options O>
__device__ __forceinline__ std::int64_t read_slot(const DecodeArguments& a, std::uint32_t row) {
  const std::int64_t offset = static_cast<std::int64_t>(row) * a.read_stride;
  if constexpr (O == Options::kUsual) return static_cast<const std::int32_t*>(a.read_slots)[offset];
  if (a.read_slots == nullptr) return row;
  std::int64_t column = 0;
  if (a.read_columns != nullptr) {
    column = load_index(a.read_columns, a.column_dtype,
                        static_cast<std::int64_t>(row) * a.column_stride);
    column = max(std::int64_t{0}, min(column, std::int64_t{a.table_columns - 1}));
  }
  return load_index(a.read_slots, a.read_dtype, offset + column * a.read_column_stride);
}

template <Options O>
__device__ __forceinline__ std::int64_t write_slot(const DecodeArguments& a, std::uint32_t row,
                                                   std::int64_t read) {
  if (O == Options::kUsual || a.write_slots == nullptr) return read;
  return load_index(a.write_slots, a.write_dtype, static_cast<std::int64_t>(row) * a.write_stride);
}

__device__ __forceinline__ bool is_null(const DecodeArguments& a, std::int64_t slot) {
  return slot < a.first_slot || slot >= a.slots;
}

// The gates of a token as they lie in memory: asked for early, read as numbers while the state is
// on its way.
struct GateBits {
  std::uint32_t gate = 0, beta = 0, A_log = 0, dt_bias = 0;
};

template <Options O, class Io>
__device__ __forceinline__ GateBits load_gates(const DecodeArguments& a, std::uint32_t row,
                                               std::uint32_t head) {
  constexpr bool kUsual = O == Options::kUsual;
  constexpr DType kIo = device::kDTypeOf<Io>;
  const std::int64_t A_log = head * static_cast<std::int64_t>(a.A_log_stride);
  const std::int64_t dt_bias = head * static_cast<std::int64_t>(a.dt_bias_stride);
  GateBits bits;
  if (kUsual || a.gate_kind != Gate::Kind::kNone) {
    bits.gate =
        device::load_bits(a.gate, kUsual ? kIo : a.gate_dtype, at(a.gate_stride, row, head));
  }
  if (kUsual || a.gate_kind == Gate::Kind::kRaw) {
    bits.A_log = device::load_bits(a.A_log, kUsual ? DType::kFloat32 : a.A_log_dtype, A_log);
    bits.dt_bias = device::load_bits(a.dt_bias, a.dt_bias_dtype, dt_bias);
  }
  if (kUsual || a.beta_kind != Beta::Kind::kNone) {
    bits.beta =
        device::load_bits(a.beta, kUsual ? kIo : a.beta_dtype, at(a.beta_stride, row, head));
  }
  return bits;
}

template <Options O, class Io>
__device__ __forceinline__ float alpha_of(const DecodeArguments& a, const GateBits& bits) {
  constexpr bool kUsual = O == Options::kUsual;
  if (!kUsual && a.gate_kind == Gate::Kind::kNone) return 1.0f;
  const float x = device::number(bits.gate, kUsual ? device::kDTypeOf<Io> : a.gate_dtype);
  if (!kUsual && a.gate_kind == Gate::Kind::kLinear) return x;
  if (!kUsual && a.gate_kind == Gate::Kind::kLog) return expf(x);
  const float A_log = device::number(bits.A_log, kUsual ? DType::kFloat32 : a.A_log_dtype);
  return expf(-expf(A_log) * device::softplus(x + device::number(bits.dt_bias, a.dt_bias_dtype)));
}

template <Options O, class Io>
__device__ __forceinline__ float beta_of(const DecodeArguments& a, const GateBits& bits) {
  constexpr bool kUsual = O == Options::kUsual;
  if (!kUsual && a.beta_kind == Beta::Kind::kNone) return 1.0f;
  const float x = device::number(bits.beta, kUsual ? device::kDTypeOf<Io> : a.beta_dtype);
  return kUsual || a.beta_kind == Beta::Kind::kLogit ? device::sigmoid(x) : x;
}

}  // namespace hyla::gdn
