#include "ops/gdn_prefill/launch_fused.cuh"

#include <algorithm>
#include <limits>

#include "device/alignment.h"
#include "device/tensor_map.h"
#include "ops/gdn_prefill/launch_prefill.h"
#include "ops/gdn_prefill/plan.h"
#include "ops/gdn_prefill/record.cuh"
#include "ops/gdn_prefill/segments.cuh"

namespace hyla::gdn {
namespace {

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max() - 64;

// Tiles of 64 tokens by 64 columns of one head. The stride of a dimension of one is not looked at.
device::TiledTensor tiles(const core::TokenView& view, std::int64_t heads, std::int64_t dim,
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
bool paired(const PoolView& pool) {
  if (!pool.present() || pool.k_stride != 1) return true;
  return device::aligned(pool.data, 2 * static_cast<std::int64_t>(size_of(pool.dtype))) &&
         pool.slot_stride % 2 == 0 && pool.head_stride % 2 == 0 && pool.v_stride % 2 == 0;
}

// N and M of every segment but the last; together these are fewer than half of the
// multiprocessors, of which a device has at most 144.
constexpr std::size_t kSegmentBytes = 144 / 2 * 2 * kStateElements * sizeof(float);

PlanShape plan_shape(const PrefillProblem& p, const Context& context) {
  return {p.sequences.rows, p.heads, p.sequences.tokens, device::multiprocessors(context)};
}

FusedArguments arguments(const PrefillProblem& p) {
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

}  // namespace

const char* prefill_fused_refuses(const PrefillProblem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (p.K != 128 || p.V != 128) return "takes K = V = 128";
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

void launch_prefill_fused(const PrefillProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0) return;
  const FusedArguments a = arguments(p);
  const int ctas = std::min(a.tasks, device::multiprocessors(context));
  const auto launch = p.q.dtype == DType::kBFloat16 ? launch_fused_bf16 : launch_fused_f16;
  launch(a, static_cast<unsigned>(ctas), context);
}

namespace {

const char* refuses_split(const PrefillProblem& p, const Context& context) {
  if (const char* reason = prefill_fused_refuses(p, context)) return reason;
  if (!p.sequences.cu_seqlens.present()) return "takes sequences back to back";
  if (plan_shape(p, context).ctas_a_task() < 1) {
    return "sequences times heads that keep every multiprocessor busy";
  }
  return nullptr;
}

void run_split(FusedArguments& a, const Workspace& workspace, const Context& context) {
  const PrefillProblem& p = a.p;
  a.records = workspace.data;
  const std::int64_t items = chunk_slots(p.sequences.rows, p.sequences.tokens) * p.heads;
  const SplitShape shape{static_cast<unsigned>(
      std::min<std::int64_t>((items + 2) / 3, device::multiprocessors(context)))};
  const auto launch = p.q.dtype == DType::kBFloat16 ? launch_split_bf16 : launch_split_f16;
  launch(a, shape, context);
}

}  // namespace

const char* prefill_split_refuses(const PrefillProblem& p, const Context& context) {
  if (const char* reason = refuses_split(p, context)) return reason;
  const PlanShape shape = plan_shape(p, context);
  return split_us(shape) < fused_us(shape) ? nullptr : "too short to pay for a second kernel";
}

std::size_t prefill_split_bytes(const PrefillProblem& p) {
  return record_bytes(p.sequences.rows, p.heads, p.sequences.tokens);
}

void launch_prefill_split(const PrefillProblem& p, const Workspace& workspace,
                          const Context& context) {
  if (p.sequences.rows == 0) return;
  FusedArguments a = arguments(p);
  a.parts = split_parts(plan_shape(p, context));
  run_split(a, workspace, context);
}

const char* prefill_segments_refuses(const PrefillProblem& p, const Context& context) {
  if (context.batch_invariant) return "bits that depend on the length of the sequence";
  if (p.checkpoint_every > 0) return "states inside segments that are not known in time";
  if (const char* reason = refuses_split(p, context)) return reason;
  const PlanShape shape = plan_shape(p, context);
  const int parts = segment_parts(shape);
  if (parts == 0) return "too many sequences times heads for segments";
  return segments_us(shape, parts) < std::min(split_us(shape), fused_us(shape))
             ? nullptr
             : "too short for segments";
}

std::size_t prefill_segments_bytes(const PrefillProblem& p) {
  return prefill_split_bytes(p) + kSegmentBytes;
}

void launch_prefill_segments(const PrefillProblem& p, const Workspace& workspace,
                             const Context& context) {
  if (p.sequences.rows == 0) return;
  FusedArguments a = arguments(p);
  a.parts = segment_parts(plan_shape(p, context));
  a.transfers = true;
  a.states = reinterpret_cast<float*>(static_cast<char*>(workspace.data) + prefill_split_bytes(p));
  run_split(a, workspace, context);
}

std::size_t prefill_cuda_bytes(const PrefillBounds& bounds) {
  if (bounds.device.kind != Device::Kind::kCuda || bounds.key_dim != 128 ||
      bounds.value_dim != 128 || bounds.io == DType::kFloat32) {
    return 0;
  }
  Context context;
  context.device = bounds.device;
  if (device::refuses_device(context) != nullptr) return 0;
  PlanShape shape;
  shape.rows = 1;
  shape.heads = std::max(bounds.query_heads, bounds.value_heads);
  shape.multiprocessors = device::multiprocessors(context);
  const std::int64_t rows = std::min(bounds.max_sequences, shape.ctas_a_task());
  return rows < 1 ? 0 : record_bytes(rows, shape.heads, bounds.max_tokens) + kSegmentBytes;
}

}  // namespace hyla::gdn
