#include "ops/gdn_prefill/launch_again.h"
#include "ops/gdn_prefill/launch_fused.cuh"
#include "ops/gdn_prefill/launch_prefill.h"
#include "ops/gdn_prefill/long_rows.cuh"
#include "ops/gdn_prefill/plan_shape.h"
#include "ops/gdn_prefill/start_order.cuh"
#include "ops/gdn_prefill/tile_arguments.h"

namespace hyla::gdn {
namespace {

bool has_room(const Workspace& workspace, std::size_t bytes, const Context& context) {
  return workspace.data != nullptr && workspace.bytes >= bytes &&
         workspace.device == context.device && device::aligned(workspace.data, 256);
}

}  // namespace

const char* prefill_fused_refuses(const PrefillProblem& p, const Context& context) {
  if (p.K != 128 || p.V != 128) return "takes K = V = 128";
  return prefill_tiles_refuse(p, context);
}

// It needs no workspace, but with one it has kernels in front that take long sequences.
void launch_prefill_fused(const PrefillProblem& p, const Workspace& workspace,
                          const Context& context) {
  if (p.sequences.rows == 0) return;
  FusedArguments a = arguments(p);
  const int multiprocessors = device::multiprocessors(context);
  const bool bf16 = p.q.dtype == DType::kBFloat16;
  int rows = long_rows(a.long_plan, p.sequences.rows, p.heads, p.sequences.tokens, p.max_length,
                       multiprocessors);
  const PlanLengths* const told = rows > 0 ? told_lengths(p) : nullptr;
  if (told != nullptr && told->ranked() && long_choice(a.long_plan, rows, *told).count == 0) {
    rows = 0;
  }
  if (p.checkpoint_offsets.present()) rows = 0;  // those kernels take no lists
  Context after = context;
  const std::size_t records = record_bytes(rows, p.heads, p.sequences.tokens);
  const auto order = static_cast<std::size_t>(order_count(rows * p.heads, p.V));
  const std::size_t needed = records + sizeof(LongRows) + order * sizeof(std::uint32_t);
  if (rows > 0 && has_room(workspace, needed, context)) {
    a.longs = reinterpret_cast<LongRows*>(static_cast<char*>(workspace.data) + records);
    if (a.long_plan.most_parts > 1 && states_in_place(p)) {
      a.order = reinterpret_cast<std::uint32_t*>(a.longs + 1);
    }
    a.long_rows = rows;
    a.parts = a.long_plan.most_parts;
    a.records = workspace.data;
    SplitShape shape;
    shape.tasks = static_cast<unsigned>(rows * p.heads);
    shape.prepare_ctas = static_cast<unsigned>(multiprocessors);
    shape.blocks = 2;
    shape.blocks_a_cta = static_cast<unsigned>(a.long_plan.blocks_a_cta);
    (bf16 ? launch_split_bf16 : launch_split_f16)(a, shape, context);
    after.programmatic_launch = true;
  }
  const int ctas = std::min(a.tasks, multiprocessors);
  (bf16 ? launch_fused_bf16 : launch_fused_f16)(a, static_cast<unsigned>(ctas), after);
  launch_again(a, context);
}

}  // namespace hyla::gdn
