#include "cpu/gdn_prefill.h"

#include <algorithm>
#include <memory>
#include <new>

#include "cpu/gdn.h"
#include "cpu/gdn_rows.h"
#include "cpu/parallel.h"

namespace hyla::cpu {
namespace {

constexpr std::int64_t kMostTogether = 4;  // states that fit into a core's L2 cache
constexpr std::int64_t kPadding = 16;      // floats: the widest vector

bool has_lines(const gdn::PoolView& pool) {
  return !pool.present() || pool.k_stride == 1 || pool.v_stride == 1;
}

// What PrefillBuffers takes, for a part of `width` value columns.
std::int64_t scratch_floats(std::int64_t K, std::int64_t width, std::int64_t together) {
  const std::int64_t columns = width + kPadding;
  const std::int64_t tokens = 3 * kChunk * K + kChunk * K + 4 * kChunk * kChunk;
  const std::int64_t values = 4 * kChunk * columns;
  const std::int64_t states = together * (K * columns + K * columns / 2);
  return tokens + values + states + 16 * kPadding;
}

PrefillPlan plan_prefill(const gdn::PrefillProblem& p, int threads) {
  PrefillPlan plan;
  const std::int64_t shared = std::max(p.q_heads, p.k_heads);
  plan.group = p.heads / shared;
  plan.together = std::min(plan.group, kMostTogether);
  std::int64_t tasks = p.sequences.rows * shared * plan.slices();
  // More tasks than threads, by one head a task, then by parts of heads.
  if (tasks < threads) {
    plan.together = 1;
    tasks = p.sequences.rows * p.heads;
  }
  while (tasks * plan.parts < threads && p.V % (2 * plan.parts * 8) == 0) plan.parts *= 2;
  plan.tasks = tasks * plan.parts;
  plan.scratch = scratch_floats(p.K, p.V / plan.parts, plan.together);
  return plan;
}

bool same_lines(const gdn::PoolView& a, const gdn::PoolView& b) {
  return a.dtype == b.dtype && a.k_stride == b.k_stride && a.v_stride == b.v_stride;
}

// Chunks are work for 32 tokens whatever a row has. A row alone decides, so its bits do not depend
// on others; but they depend on how long it is, which batch_invariant rules out.
bool runs_short_rows(const gdn::PrefillProblem& p, const Context& context) {
  return !context.batch_invariant && p.initial.present() && rows_refuses(p) == nullptr &&
         (!p.final.present() || same_lines(p.initial, p.final)) && p.checkpoint_every == 0 &&
         !p.checkpoint_offsets.present();
}

struct FreeAligned {
  void operator()(float* data) const { ::operator delete (data, std::align_val_t{64}); }
};

}  // namespace

const char* prefill_refuses(const gdn::PrefillProblem& p) {
  if (!has_lines(p.initial) || !has_lines(p.final) || !has_lines(p.checkpoints)) {
    return "a state is contiguous neither along K nor along V";
  }
  return nullptr;
}

const char* prefill_amx_refuses(const gdn::PrefillProblem& p) {
  if (p.q.dtype != DType::kBFloat16) return "AMX takes bfloat16 tensors";
  if (p.K % 32 != 0) return "AMX takes a K that is a multiple of 32";
  return prefill_refuses(p);
}

void run_prefill(Target target, const gdn::PrefillProblem& p, const Context& context) {
  PrefillPlan plan = plan_prefill(p, thread_count(context));
  if (plan.tasks == 0) return;
  std::int64_t short_rows = 0;
  if (runs_short_rows(p, context)) {
    for (std::int64_t row = 0; row < p.sequences.rows; ++row) short_rows += is_short_row(p, row);
  }
  if (short_rows > 0) {
    run_short_rows(target, p, context);
    if (short_rows == p.sequences.rows) return;
    plan.leaves_short = true;
  }
  const int workers = static_cast<int>(std::min<std::int64_t>(plan.tasks, thread_count(context)));
  const auto floats = static_cast<std::size_t>(plan.scratch);
  const std::unique_ptr<float, FreeAligned> scratch(static_cast<float*>(::operator new (
      floats * sizeof(float) * static_cast<std::size_t>(workers), std::align_val_t{64})));
  std::atomic<std::int64_t> next{0};
  parallel_for(context, workers, [&](int i) {
    prefill_kernels(target).run(p, plan, next,
                                scratch.get() + floats * static_cast<std::size_t>(i));
  });
}

}  // namespace hyla::cpu
