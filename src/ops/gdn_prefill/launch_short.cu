// The kernels of gdn.mtp (src/ops/gdn_mtp): 8 tokens at a time for short sequences, one at a time
// for what chunks do not take.
#include "device/launch.h"
#include "ops/gdn_mtp/launch_mtp.h"
#include "ops/gdn_prefill/launch_prefill.h"
#include "ops/gdn_prefill/plan_shape.h"

namespace hyla::gdn {
namespace {

MtpProblem as_blocks(const PrefillProblem& p) {
  MtpProblem result = as_mtp(p);
  // Without update_state every write slot is null, of which the block kernel knows only so.
  result.update_state = p.final.present() && p.slots.write_limit > 0;
  return result;
}

bool is_same(const PoolView& a, const PoolView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.slot_stride == b.slot_stride &&
         a.head_stride == b.head_stride && a.k_stride == b.k_stride && a.v_stride == b.v_stride;
}

// Why none of them takes a problem.
const char* blocks_refuse(const PrefillProblem& p, const Context& context) {
  if (context.batch_invariant) return "bits that differ from those of chunks";
  if (!p.initial.present() || p.has_initial_state.present()) {
    return "takes sequences that all start from the pool";
  }
  if (p.final.present() && !is_same(p.initial, p.final)) return "takes states that change in place";
  if (p.checkpoint_every > 0 || p.checkpoint_offsets.present()) return "keeps no checkpoints";
  if (p.q_heads != p.k_heads || p.v_heads != p.heads) return "takes as many q heads as k heads";
  return nullptr;
}

}  // namespace

const char* prefill_block_refuses(const PrefillProblem& p, const Context& context) {
  const char* reason = blocks_refuse(p, context);
  return reason != nullptr ? reason : mtp_block_refuses(as_blocks(p), context);
}

double prefill_block_us(const PrefillProblem& p, const Context& context) {
  return block_us(plan_shape(p, context));
}

void launch_prefill_block(const PrefillProblem& p, const Workspace&, const Context& context) {
  launch_mtp_block(as_blocks(p), context);
}

double prefill_vk_us(const PrefillProblem& p, const Context& context) {
  return vk_us(plan_shape(p, context));
}

const char* prefill_vk_refuses(const PrefillProblem& p, const Context& context) {
  const char* reason = blocks_refuse(p, context);
  return reason != nullptr ? reason : mtp_vk_refuses(as_blocks(p), context);
}

void launch_prefill_vk(const PrefillProblem& p, const Workspace&, const Context& context) {
  launch_mtp_vk(as_blocks(p), context);
}

const char* prefill_kv_refuses(const PrefillProblem& p, const Context& context) {
  const char* reason = blocks_refuse(p, context);
  return reason != nullptr ? reason : mtp_kv_refuses(as_blocks(p), context);
}

void launch_prefill_kv(const PrefillProblem& p, const Workspace&, const Context& context) {
  launch_mtp_kv(as_blocks(p), context);
}

}  // namespace hyla::gdn
