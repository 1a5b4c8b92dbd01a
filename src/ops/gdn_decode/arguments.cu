#include "ops/gdn_decode/arguments.h"

#include <algorithm>
#include <limits>

#include "device/alignment.h"
#include "device/launch.h"

namespace hyla::gdn {
namespace {

constexpr std::int64_t kMaxStride = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMaxGrid = 65535;  // of a grid's y and z

bool narrow(const core::TokenView& view) {
  return view.row_stride <= kMaxStride && view.head_stride <= kMaxStride;
}

bool narrow(const PoolView& pool) {
  return pool.slot_stride <= kMaxStride && pool.head_stride <= kMaxStride &&
         pool.k_stride <= kMaxStride && pool.v_stride <= kMaxStride &&
         pool.slots <= std::numeric_limits<std::int32_t>::max();
}

bool narrow(const core::IndexView& view) {
  return view.stride <= kMaxStride && view.column_stride <= kMaxStride &&
         view.columns <= std::numeric_limits<std::int32_t>::max();
}

RowHead strides(const core::TokenView& view) {
  return {static_cast<std::uint32_t>(view.row_stride),
          static_cast<std::uint32_t>(view.head_stride)};
}

// Offsets fit 32 bits, a head's elements included.
bool is_short(const core::TokenView& view, const DecodeProblem& p) {
  constexpr std::int64_t kMaxDim = 256;
  return p.sequences.rows * view.row_stride + p.heads * view.head_stride + kMaxDim <= kMaxStride;
}

std::int64_t line_stride(const DecodeProblem& p) {
  return p.layout == StateLayout::kVK ? p.initial.v_stride : p.initial.k_stride;
}

// The most elements of q or k that one access brings.
std::int64_t widest_keys(const DecodeProblem& p) {
  const auto chunk = 16 / static_cast<std::int64_t>(size_of(p.initial.dtype));
  return p.layout == StateLayout::kVK ? std::max(chunk, p.K / 32) : 8;
}

bool has_wide_keys(const DecodeProblem& p) {
  return device::aligned(p.q, widest_keys(p)) && device::aligned(p.k, widest_keys(p));
}

bool is_usual(const DecodeProblem& p, bool wide_keys) {
  return wide_keys && has_usual_gates(p) && is_short(p.q, p) && is_short(p.k, p) &&
         is_short(p.v, p) && is_short(p.out, p) && is_short(p.gate.value, p) &&
         is_short(p.beta.value, p) && p.l2norm &&
         (!p.slots.read.present() || p.slots.read.dtype == DType::kInt32) &&
         !p.slots.read_columns.present() && !p.slots.write.present() &&
         (p.layout == StateLayout::kKV || line_stride(p) == p.K);
}

bool takes_gated(const DecodeProblem& p) {
  return is_usual(p, has_wide_keys(p)) && p.K == kGatedDim && p.V == kGatedDim &&
         p.q.dtype != DType::kFloat32 && p.norm.z.dtype == p.q.dtype && is_short(p.norm.z, p) &&
         p.norm.weight.stride <= kMaxStride;
}

void set_gated(GatedArguments& a, const DecodeProblem& p) {
  a.z = p.norm.z.data, a.weight = p.norm.weight.data;
  a.z_stride = strides(p.norm.z);
  a.weight_stride = static_cast<std::uint32_t>(p.norm.weight.stride);
  a.weight_dtype = p.norm.weight.dtype;
  a.silu = p.norm.gate == norm::Activation::kSilu;
  a.eps = static_cast<float>(p.norm.eps);
}

}  // namespace

const char* decode_refuses(const DecodeProblem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (p.norm.present() && !takes_gated(p)) {
    return "fuses the gated norm into the usual call with K = V = 128 and 16 bits";
  }
  if (p.heads > kMaxFastHeads || p.sequences.rows > kMaxGrid)
    return "more heads or rows than a grid";
  if (!narrow(p.q) || !narrow(p.k) || !narrow(p.v) || !narrow(p.out) || !narrow(p.gate.value) ||
      !narrow(p.beta.value) || !narrow(p.initial) || !narrow(p.slots.read) ||
      !narrow(p.slots.write) || !narrow(p.slots.read_columns) ||
      p.slots.first > std::numeric_limits<std::int32_t>::max()) {
    return "a stride or slot beyond 32 bits";
  }
  const auto size = static_cast<std::int64_t>(size_of(p.initial.dtype));
  if (!device::aligned(p.initial.data, 16) || p.initial.slot_stride * size % 16 != 0 ||
      p.initial.head_stride * size % 16 != 0 || line_stride(p) * size % 16 != 0) {
    return "state lines that are not aligned to 16 bytes";
  }
  return nullptr;
}

HostArguments decode_arguments(const DecodeProblem& p) {
  HostArguments result;  // in place: what is copied as soon as it is made waits for its stores
  DecodeArguments& a = result.device;
  set_gates(a.gates, p);
  a.read_slots = p.slots.read.data;
  a.k = p.k.data, a.q = p.q.data, a.v = p.v.data;
  a.state = p.initial.data, a.out = p.out.data;
  a.read_stride = static_cast<std::uint32_t>(p.slots.read.stride);
  const auto group = static_cast<std::uint32_t>(p.heads) / static_cast<std::uint32_t>(p.k_heads);
  a.key_head_factor = ((1u << kKeyHeadShift) + group - 1) / group;
  a.q_stride = strides(p.q), a.k_stride = strides(p.k), a.v_stride = strides(p.v);
  a.gate_stride = strides(p.gate.value), a.beta_stride = strides(p.beta.value);
  a.out_stride = strides(p.out);
  a.slot_stride = static_cast<std::uint32_t>(p.initial.slot_stride);
  a.head_stride = static_cast<std::uint32_t>(p.initial.head_stride);
  a.line_stride = static_cast<std::uint32_t>(line_stride(p));
  a.first_slot = static_cast<std::int32_t>(std::max<std::int64_t>(p.slots.first, 0));
  a.slots = static_cast<std::int32_t>(p.initial.slots);
  a.slot_count = static_cast<std::uint32_t>(std::max(a.slots - a.first_slot, 0));
  a.scale = static_cast<float>(p.scale), a.l2norm_eps = static_cast<float>(p.l2norm_eps);
  a.l2norm = p.l2norm;
  a.read_dtype = p.slots.read.dtype, a.write_dtype = p.slots.write.dtype;
  a.column_dtype = p.slots.read_columns.dtype;
  a.read_columns = p.slots.read_columns.data, a.write_slots = p.slots.write.data;
  a.read_column_stride = static_cast<std::uint32_t>(p.slots.read.column_stride);
  a.column_stride = static_cast<std::uint32_t>(p.slots.read_columns.stride);
  a.write_stride = static_cast<std::uint32_t>(p.slots.write.stride);
  a.table_columns = static_cast<std::int32_t>(p.slots.read.columns);
  a.wide_keys = has_wide_keys(p);
  a.gated = {};
  if (p.norm.present()) set_gated(a.gated, p);
  result.usual = is_usual(p, a.wide_keys);
  return result;
}

}  // namespace hyla::gdn
