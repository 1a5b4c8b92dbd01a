#include "cpu/gdn_rows.h"

#include <algorithm>
#include <vector>

#include "cpu/gdn.h"

namespace hyla::cpu {
namespace {

// Less than this many state elements times tokens is not worth waking a thread: about 2 us.
constexpr std::int64_t kLeastWork = 32 << 10;

std::int64_t longest_row(const gdn::MtpProblem& p, const gdn::PrefillProblem* prefill) {
  if (prefill != nullptr) return kTokenBlock;
  if (!p.sequences.ragged()) return p.sequences.tokens;
  std::int64_t longest = 0;
  for (std::int64_t row = 0; row < p.sequences.rows; ++row) {
    longest = std::max(longest, p.sequences.length(row));
  }
  return longest;
}

// Pages of so much memory are found in the translation buffers of any core.
constexpr std::int64_t kKnownPages = 4 << 20;

// On the processors that have AMX a product of pairs takes twice as long as those of floats.
RowsPlan plan_rows(Target target, const gdn::MtpProblem& p) {
  RowsPlan plan;
  plan.tiles = target == Target::kAmx && rows_amx_refuses(p) == nullptr;
  // The norm looks at all values of a head at once.
  plan.parts = p.norm.present() ? 1 : p.V / (plan.tiles ? kTileRows : kPartWidth);
  plan.units = p.sequences.rows * p.heads * plan.parts;
  const gdn::PoolView& steps = p.states_out.present() ? p.states_out : p.final;
  const std::int64_t tokens = p.sequences.tokens * (p.sequences.ragged() ? 1 : p.sequences.rows);
  const std::int64_t bytes =
      tokens * p.heads * p.K * p.V * static_cast<std::int64_t>(size_of(steps.dtype));
  const std::int64_t states =
      p.sequences.rows * p.heads * p.K * p.V * static_cast<std::int64_t>(size_of(p.initial.dtype));
  plan.far = states > kCacheBytes;
  plan.twice = drops_crowds();
  plan.pages = states > kKnownPages && !plan.twice;
  // With 32 KiB what is fetched ahead throws out the rows at hand, but on Intel's processors
  // (Skylake: decode in the cache 54 us, with rows ahead in the first cache 43).
  plan.near = plan.twice || has_large_first_cache() || made_by_intel();
  plan.pairs = kOtherCpus || refuses(Target::kAmx) != nullptr;
  plan.stream = (p.states_out.present() || p.step_slots.present()) && bytes > kCacheBytes;
  return plan;
}

// `prefill`: not null, of that problem the short rows alone.
void run(Target target, const gdn::MtpProblem& p, const Context& context, bool one_way,
         const gdn::PrefillProblem* prefill) {
  const RowsKernels& kernels = rows_kernels(target);
  RowsPlan plan = plan_rows(target, p);
  plan.one_way = one_way;
  plan.prefill = prefill;
  if (plan.units == 0) return;
  const std::int64_t longest = longest_row(p, prefill);
  const std::int64_t work_of_unit = p.K * p.V / plan.parts * std::max<std::int64_t>(1, longest);
  const std::int64_t least = std::max<std::int64_t>(1, kLeastWork / work_of_unit);
  const int parts =
      static_cast<int>(std::clamp<std::int64_t>(plan.units / least, 1, thread_count(context)));
  const std::size_t state = static_cast<std::size_t>(p.K * p.V);
  std::vector<float> scratch;  // stays empty, and unallocated, for rows of few tokens
  if (longest > kTokenBlock) scratch.resize(state * static_cast<std::size_t>(parts));
  parallel_for(context, parts, [&](int i) {
    float* own = scratch.empty() ? nullptr : scratch.data() + state * static_cast<std::size_t>(i);
    // A copy: another thread has just written it, and its lines come faster all at once than
    // wherever one of them is needed first.
    const gdn::MtpProblem mine = p;
    kernels.run(mine, plan, part_of(plan.units, parts, i), own);
  });
}

}  // namespace

const char* rows_refuses(const gdn::Problem& p) {
  if (p.initial.k_stride != 1 && p.initial.v_stride != 1) {
    return "the state is contiguous neither along K nor along V";
  }
  return nullptr;
}

void run_rows(Target target, const gdn::MtpProblem& p, const Context& context) {
  run(target, p, context, context.batch_invariant, nullptr);
}

const char* rows_amx_refuses(const gdn::MtpProblem& p) {
  if (p.initial.dtype != DType::kBFloat16) return "AMX takes bfloat16 states";
  if (p.q.dtype != DType::kBFloat16) return "AMX takes bfloat16 tensors";
  if (p.initial.k_stride != 1) return "AMX takes states that are contiguous along K";
  if (p.K != 128 || p.V % kTileRows != 0) {
    return "AMX takes a K of 128 and a V that is a multiple of 16";
  }
  if (p.q.dim_stride != 1 || p.k.dim_stride != 1 || p.initial.v_stride % 2 != 0) {
    return "AMX takes pairs of contiguous q and k, and of rows of a state an even way apart";
  }
  if (p.states_out.present() || p.step_slots.present()) {
    return "AMX takes rows of which one state is wanted";
  }
  const std::int64_t tokens = p.sequences.tokens;
  if (!p.sequences.ragged() && (tokens < kTogether || tokens > kTokenBlock)) {
    return "AMX takes 3 to 8 tokens a row";
  }
  return nullptr;
}

// All rows have one token.
void run_decode(Target target, const gdn::DecodeProblem& p, const Context& context) {
  run(target, gdn::as_mtp(p), context, false, nullptr);
}

void run_short_rows(Target target, const gdn::PrefillProblem& p, const Context& context) {
  gdn::MtpProblem rows = gdn::as_mtp(p);
  rows.update_state = p.final.present();
  run(target, rows, context, context.batch_invariant, &p);
}

}  // namespace hyla::cpu
