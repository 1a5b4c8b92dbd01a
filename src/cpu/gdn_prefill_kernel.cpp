#include "cpu/gdn_prefill.h"

#include <algorithm>
#include <cstring>

#include "cpu/gdn_rows.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/gdn_prefill_kernel.cpp"
#include "cpu/foreach_target.h"
#include "cpu/gdn_chunk.h"
#include "cpu/gdn_pool.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Heads head to head + heads of a sequence, value columns v0 to v0 + count.
template <class Op>
struct PrefillTask {
  const gdn::PrefillProblem& p;
  const PrefillBuffers<Op>& b;
  std::int64_t row, head, heads, v0, count;

  void run() const {
    const std::int64_t begin = p.sequences.begin(row), length = p.sequences.length(row);
    const std::int64_t checkpoints = p.checkpoint_count(row);
    for (std::int64_t i = 0; i < heads; ++i) load_state(i);
    ChunkNumbers numbers;
    std::int64_t next = 0;  // checkpoint
    for (std::int64_t t = 0;; t += numbers.tokens) {
      while (next < checkpoints && p.checkpoint_offset(row, next) == t) keep_checkpoint(next++);
      if (t == length) break;
      const std::int64_t cut = next < checkpoints ? p.checkpoint_offset(row, next) : length;
      numbers.tokens = std::min({kChunk, cut - t, length - t});
      numbers.padded = round_up(numbers.tokens, Op::kTiles ? kChunk : 8);
      load_chunk(p, row, begin + t, head, b, numbers);
      for (std::int64_t i = 0; i < heads; ++i) {
        run_chunk(p, row, begin + t, head + i, i, v0, count, b, numbers);
      }
    }
    if (!p.final.present()) return;
    const std::int64_t slot = p.slots.write_slot(row);
    if (slot != core::kNullSlot) store_states(p.final, slot);
  }

  void keep_checkpoint(std::int64_t i) const {
    if (p.checkpoints.present()) {
      store_states(p.checkpoints, p.checkpoint_starts.at(row) + i);
      return;
    }
    const std::int64_t slot = p.slots.checked(p.checkpoint_slots.at(row, i), p.final.slots);
    if (slot != core::kNullSlot) store_states(p.final, slot);
  }

  void load_state(std::int64_t i) const {
    float* state = b.state(i);
    for (std::int64_t j = 0; j < b.K * b.columns; j += kLanes) store(zero(), state + j);
    if (p.starts_from_pool(row)) {
      const std::int64_t slot = p.slots.read_slot(row);
      switch (p.initial.dtype) {
        case DType::kBFloat16:
          load_state(pool_at<bfloat16>(p.initial, slot, head + i), state);
          break;
        case DType::kFloat16:
          load_state(pool_at<float16>(p.initial, slot, head + i), state);
          break;
        default:
          load_state(pool_at<float>(p.initial, slot, head + i), state);
      }
    }
#if HYLA_TARGET_HAS_PAIRS
    if constexpr (Op::kSummed == 2) {
      for (std::int64_t k = 0; k < b.K; k += 2) {
        for (std::int64_t j = 0; j < b.columns; j += kLanes) {
          const float* from = state + k * b.columns + j;
          store_pairs(pack_pairs(load(from), load(from + b.columns)),
                      b.pairs_of(i) + k / 2 * b.columns + j);
        }
      }
    }
#endif
  }

  static constexpr std::int64_t kStrip = 16;  // columns that are transposed at a time

  template <class S>
  void load_state(const S* from, float* state) const {
    from += v0 * p.initial.v_stride;
    if (p.initial.v_stride == 1) {
      copy_lines(from, p.initial.k_stride, state, b.columns, count, b.K);
      return;
    }
    alignas(64) float strip[kStrip * kMaxDim];
    for (std::int64_t j = 0; j < count; j += kStrip) {
      const std::int64_t n = std::min(kStrip, count - j);
      copy_lines(from + j * p.initial.v_stride, p.initial.v_stride, strip, b.K, b.K, n);
      transpose(strip, b.K, n, b.K, state + j, b.columns);
    }
  }

  void store_states(const gdn::PoolView& pool, std::int64_t slot) const {
    for (std::int64_t i = 0; i < heads; ++i) {
      switch (pool.dtype) {
        case DType::kBFloat16:
          store_state(pool, pool_at<bfloat16>(pool, slot, head + i), b.state(i));
          break;
        case DType::kFloat16:
          store_state(pool, pool_at<float16>(pool, slot, head + i), b.state(i));
          break;
        default:
          store_state(pool, pool_at<float>(pool, slot, head + i), b.state(i));
      }
    }
  }
  template <class S>
  void store_state(const gdn::PoolView& pool, S* to, const float* state) const {
    to += v0 * pool.v_stride;
    if (pool.v_stride == 1) {
      copy_lines(state, b.columns, to, pool.k_stride, count, b.K);
      return;
    }
    alignas(64) float strip[kStrip * kMaxDim];
    for (std::int64_t j = 0; j < count; j += kStrip) {
      const std::int64_t n = std::min(kStrip, count - j);
      transpose(state + j, b.columns, b.K, n, strip, b.K);
      copy_lines(strip, b.K, to + j * pool.v_stride, pool.v_stride, b.K, n);
    }
  }
};

template <class Op>
void run_tasks(const gdn::PrefillProblem& p, const PrefillPlan& plan,
               std::atomic<std::int64_t>& next, float* scratch) {
  const std::int64_t count = p.V / plan.parts, groups = p.heads / plan.group;
  const PrefillBuffers<Op> buffers(scratch, p.K, count, plan.together);
  for (;;) {
    std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
    if (task >= plan.tasks) return;
    const std::int64_t part = task % plan.parts;
    task /= plan.parts;
    const std::int64_t slice = task % plan.slices();
    task /= plan.slices();
    const std::int64_t group = task % groups, row = task / groups;
    if (p.slots.read_slot(row) == core::kNullSlot) continue;
    if (plan.leaves_short && is_short_row(p, row)) continue;
    const std::int64_t first = slice * plan.together;
    const PrefillTask<Op> work{p,
                               buffers,
                               row,
                               group * plan.group + first,
                               std::min(plan.together, plan.group - first),
                               part * count,
                               count};
    work.run();
  }
}

void run_prefill(const gdn::PrefillProblem& p, const PrefillPlan& plan,
                 std::atomic<std::int64_t>& next, float* scratch) {
#if HYLA_TARGET_HAS_PAIRS
  if (p.q.dtype == DType::kBFloat16) return run_tasks<Pairs>(p, plan, next, scratch);
#endif
  run_tasks<Singles>(p, plan, next, scratch);
}

extern const PrefillKernels kPrefillKernels;
const PrefillKernels kPrefillKernels = {run_prefill};

#if HYLA_TARGET_HAS_PAIRS
void run_amx_prefill(const gdn::PrefillProblem& p, const PrefillPlan& plan,
                     std::atomic<std::int64_t>& next, float* scratch) {
  const amx::Scope tiles;
  run_tasks<AmxPairs>(p, plan, next, scratch);
}

extern const PrefillKernels kAmxPrefillKernels;
const PrefillKernels kAmxPrefillKernels = {run_amx_prefill};
#endif

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const PrefillKernels& prefill_kernels(Target target) {
#if defined(__x86_64__)
  if (target == Target::kAmx) return avx512_bf16::kAmxPrefillKernels;
#endif
  return HYLA_TARGET_SELECT(kPrefillKernels);
}
}  // namespace hyla::cpu
#endif
