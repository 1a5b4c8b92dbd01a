#include "ops/gdn_mtp/launch_mtp.h"

#include <limits>

#include "ops/gdn_mtp/select.cuh"
#include "ops/gdn_mtp/select_block.cuh"

namespace hyla::gdn {
namespace {

constexpr int kK = 128;
constexpr std::int64_t kMaxCluster = 8;

constexpr int kRows = kMtpBlockWarps * kMtpBlockWarpRows;  // of a CTA
constexpr int kLeastRows = 32;

bool narrow(const core::TokenView& view) {
  constexpr std::int64_t kMax = std::numeric_limits<std::uint32_t>::max();
  return view.row_stride <= kMax && view.token_stride <= kMax && view.head_stride <= kMax;
}

bool narrow(const PoolView& pool) {
  constexpr std::int64_t kMax = std::numeric_limits<std::uint32_t>::max();
  return pool.slot_stride <= kMax && pool.head_stride <= kMax && pool.k_stride <= kMax &&
         pool.v_stride <= kMax;
}

// Contiguous, and accesses of `chunk` elements are aligned.
bool wide(const core::TokenView& view, std::int64_t chunk) {
  return view.dim_stride == 1 && device::aligned(view, chunk);
}

TokenStrides strides(const core::TokenView& view) {
  return {static_cast<std::uint32_t>(view.row_stride),
          static_cast<std::uint32_t>(view.token_stride),
          static_cast<std::uint32_t>(view.head_stride)};
}

bool narrow(const core::IndexView& view) {
  constexpr std::int64_t kMax = std::numeric_limits<std::uint32_t>::max();
  return view.stride <= kMax && view.column_stride <= kMax && view.columns <= kMax;
}

IndexArgument index(const core::IndexView& view) {
  if (!view.present()) return {};
  return {view.data, static_cast<std::uint32_t>(view.stride),
          static_cast<std::uint32_t>(view.column_stride), view.dtype == DType::kInt64,
          view.dtype == DType::kInt32};
}

bool is_int32(const core::IndexView& view) {
  return !view.present() || view.dtype == DType::kInt32;
}

bool is_usual(const MtpProblem& p) {
  const bool dense = p.layout == StateLayout::kKV || p.initial.v_stride == kK;
  return p.V % kRows == 0 && dense && has_usual_gates(p) && p.l2norm && is_int32(p.slots.read) &&
         !p.slots.read_columns.present() && is_int32(p.slots.write) && is_int32(p.commit_lengths) &&
         !p.sequences.ragged() && p.sequences.tokens <= kMtpBlockTokens && p.update_state &&
         !p.norm.present();
}

MtpBlockArguments arguments(const MtpProblem& p) {
  MtpBlockArguments a{};
  set_gates(a.gates, p);
  a.q = p.q.data, a.k = p.k.data, a.v = p.v.data;
  a.state = p.initial.data, a.out = p.out.data;
  a.q_stride = strides(p.q), a.k_stride = strides(p.k), a.v_stride = strides(p.v);
  a.gate_stride = strides(p.gate.value), a.beta_stride = strides(p.beta.value);
  a.out_stride = strides(p.out);
  a.slot_stride = static_cast<std::uint32_t>(p.initial.slot_stride);
  a.head_stride = static_cast<std::uint32_t>(p.initial.head_stride);
  a.line_stride = static_cast<std::uint32_t>(p.layout == StateLayout::kVK ? p.initial.v_stride
                                                                          : p.initial.k_stride);
  a.group = device::Divider(static_cast<std::uint32_t>(p.heads / p.k_heads));
  a.scale = static_cast<float>(p.scale), a.l2norm_eps = static_cast<float>(p.l2norm_eps);
  a.tokens = static_cast<std::uint32_t>(p.sequences.tokens);
  a.read_slots = index(p.slots.read), a.write_slots = index(p.slots.write);
  a.commit_lengths = index(p.commit_lengths);
  a.first_slot = p.slots.first, a.slots = p.initial.slots;
  a.l2norm = p.l2norm, a.update_state = p.update_state;
  a.read_columns = index(p.slots.read_columns);
  a.cu_seqlens = index(p.sequences.cu_seqlens);
  a.starts = index(p.sequences.starts), a.lengths = index(p.sequences.lengths);
  a.columns = static_cast<std::uint32_t>(p.slots.read.columns);
  a.values = static_cast<std::uint32_t>(p.V);
  a.norm = p.norm;
  return a;
}

// Measured. kVK: up to 32 MiB of states more registers gain 2 %, beyond they lose 4. kKV: up to 8
// MiB, one wave of CTAs, lines a warp gain 14 % and lose beyond; whole lines gain 2 % at 128 MiB
// and nothing at 32. The bits of both kLines are others.
BlockShape shape_of(const MtpProblem& p, Options options, bool invariant) {
  constexpr std::int64_t kMiB = 1 << 20;
  const DType state = p.initial.dtype;
  if (options == Options::kAny || !has_shapes(state, p.q.dtype)) return BlockShape::kValues;
  const std::int64_t bytes =
      p.sequences.rows * p.heads * p.K * p.V * static_cast<std::int64_t>(size_of(state));
  if (p.layout == StateLayout::kVK) {
    return bytes <= 32 * kMiB ? BlockShape::kFew : BlockShape::kValues;
  }
  if (bytes <= 8 * kMiB && !invariant) {
    return p.slots.read.present() ? BlockShape::kSlotLines : BlockShape::kLines;
  }
  const bool whole = p.V % (kMtpWideWarps * kMtpBlockWarpRows) == 0;
  return bytes >= 64 * kMiB && whole ? BlockShape::kWide : BlockShape::kValues;
}

MtpBlockKernel kernel(const MtpProblem& p, const BlockChoice& choice) {
  const DType state = p.initial.dtype;
  if (state == DType::kFloat32) return select_block_f32(choice);
  return state == DType::kBFloat16 ? select_block_bf16(choice) : select_block_f16(choice);
}

}  // namespace

const char* mtp_block_refuses(const MtpProblem& p, const Context& context) {
  constexpr std::int64_t kMaxGrid = 65535;  // of a grid's y and z
  if (p.K != kK) return "takes K = 128";
  if (p.V % kLeastRows != 0) return "takes V that is a multiple of 32";
  if (p.q.dtype == DType::kFloat32) return "takes q, k, v in 16 bits";
  if (p.states_out.present() || p.step_slots.present()) return "keeps one state a row";
  if (p.heads > kMaxGrid || p.sequences.rows > kMaxGrid) return "more heads or rows than a grid";
  static_assert(256 / kRows <= kMaxCluster, "the fused norm takes a cluster a head");
  if (!wide(p.q, 8) || !wide(p.k, 8) || !wide(p.v, 2) || !wide(p.out, 2)) {
    return "q, k, v or out that is not aligned for vector accesses";
  }
  if (!aligned_states(p.initial, p.layout)) return "state lines that are not aligned to 16 bytes";
  if (!narrow(p.q) || !narrow(p.k) || !narrow(p.v) || !narrow(p.out) || !narrow(p.gate.value) ||
      !narrow(p.beta.value) || !narrow(p.initial) || !narrow(p.slots.read) ||
      !narrow(p.slots.write) || !narrow(p.slots.read_columns) || !narrow(p.commit_lengths) ||
      !narrow(p.sequences.cu_seqlens) || !narrow(p.sequences.starts) ||
      !narrow(p.sequences.lengths) ||
      p.sequences.tokens > std::numeric_limits<std::uint32_t>::max()) {
    return "a stride beyond 32 bits";
  }
  return device::refuses_device(context);
}

void launch_mtp_block(const MtpProblem& p, const Context& context) {
  if (p.sequences.rows == 0) return;
  const Options options = is_usual(p) ? Options::kUsual : Options::kAny;
  const BlockChoice choice{p.q.dtype, options, p.layout,
                           shape_of(p, options, context.batch_invariant)};
  const int warps = choice.shape == BlockShape::kWide ? kMtpWideWarps : kMtpBlockWarps;
  const int rows = warps * kMtpBlockWarpRows;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((p.V + rows - 1) / rows), static_cast<unsigned>(p.heads),
                    static_cast<unsigned>(p.sequences.rows));
  shape.block = dim3(static_cast<unsigned>(32 * warps));
  if (p.norm.present()) shape.cluster = shape.grid.x;
  device::launch(kernel(p, choice), shape, arguments(p), context);
}

}  // namespace hyla::gdn
