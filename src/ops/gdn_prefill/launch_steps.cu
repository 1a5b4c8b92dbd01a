#include <limits>

#include "device/alignment.h"
#include "device/launch.h"
#include "ops/gdn_prefill/kernel_steps_ahead.cuh"
#include "ops/gdn_prefill/kernel_steps_stream.cuh"
#include "ops/gdn_prefill/launch_again.h"
#include "ops/gdn_prefill/launch_prefill.h"
#include "ops/gdn_prefill/plan_shape.h"

namespace hyla::gdn {
namespace {

// CTAs of so many value rows.
std::int64_t ctas_of(const PrefillProblem& p, int values) {
  return p.sequences.rows * p.heads * ((p.V + values - 1) / values);
}

TokenBytes in_bytes(const core::TokenView& view) {
  const auto size = view.present() ? static_cast<std::int64_t>(size_of(view.dtype)) : 0;
  return {static_cast<char*>(view.data), view.token_stride * size, view.head_stride * size};
}

// Four keys at once.
bool is_wide(const PoolView& pool) {
  const auto size = static_cast<std::int64_t>(pool.present() ? size_of(pool.dtype) : 4);
  return !pool.present() ||
         (pool.k_stride == 1 && device::aligned(pool.data, 4 * size) && pool.slot_stride % 4 == 0 &&
          pool.head_stride % 4 == 0 && pool.v_stride % 4 == 0);
}

// Of float32 whose value rows are one piece of memory.
bool is_dense(const PoolView& pool, std::int64_t K) {
  return pool.dtype == DType::kFloat32 && is_wide(pool) && pool.v_stride == K &&
         device::aligned(pool.data, 16);
}

bool is_usual(const PoolView& pool) {
  return !pool.present() || (pool.dtype == DType::kFloat32 && is_wide(pool));
}

bool fits_int(std::int64_t x) { return x >= 0 && x <= std::numeric_limits<std::int32_t>::max(); }

bool has_plain_indices(const PrefillProblem& p) {
  const auto plain = [](const core::IndexView& view) {
    return view.dtype == DType::kInt32 && fits_int(view.stride);
  };
  const core::IndexView& starts = p.has_initial_state;
  return plain(p.sequences.cu_seqlens) && !p.slots.read_columns.present() &&
         (!p.slots.read.present() || plain(p.slots.read)) &&
         (!p.slots.write.present() || plain(p.slots.write)) &&
         (!starts.present() || (size_of(starts.dtype) == 1 && fits_int(starts.stride)));
}

PlainIndices plain_indices(const PrefillProblem& p) {
  PlainIndices x;
  const core::IndexView& offsets = p.sequences.cu_seqlens;
  const auto set = [&](const core::IndexView& view, const auto*& data, int& stride, bool& has) {
    has = view.present();
    const core::IndexView& from = has ? view : offsets;
    data = static_cast<std::remove_reference_t<decltype(data)>>(from.data);
    stride = static_cast<int>(from.stride);
  };
  bool all = true;
  set(offsets, x.cu_seqlens, x.cu_stride, all);
  set(p.slots.read, x.read, x.read_stride, x.has_read);
  set(p.slots.write, x.write, x.write_stride, x.has_write);
  set(p.has_initial_state, x.starts, x.starts_stride, x.has_starts);
  return x;
}

bool is_usual(const PrefillProblem& p) {
  return has_plain_indices(p) && is_usual(p.initial) && is_usual(p.final);
}

StepArguments step_arguments(const PrefillProblem& p, int values) {
  StepArguments a;
  const auto divider = [](std::int64_t n) {
    return device::Divider(static_cast<std::uint32_t>(n));
  };
  a.blocks = static_cast<int>((p.V + values - 1) / values), a.heads = static_cast<int>(p.heads);
  a.by_blocks = divider(a.blocks), a.by_heads = divider(p.heads);
  if (is_usual(p)) a.indices = plain_indices(p);
  a.tokens = p.sequences.tokens;
  a.first_slot = p.slots.first;
  a.read_limit = p.slots.read_limit, a.write_limit = p.slots.write_limit;
  a.by_q = divider(p.heads / p.q_heads);
  a.by_k = divider(p.heads / p.k_heads);
  a.by_v = divider(p.heads / p.v_heads);
  a.k = in_bytes(p.k), a.q = in_bytes(p.q), a.v = in_bytes(p.v), a.out = in_bytes(p.out);
  a.gate = in_bytes(p.gate.value), a.beta = in_bytes(p.beta.value);
  a.initial = p.initial, a.final = p.final;
  a.checks_read = p.slots.read.present() || p.slots.read_limit != core::kNoLimit;
  a.values = static_cast<int>(p.V);
  a.scale = static_cast<float>(p.scale);
  a.eps = static_cast<float>(p.l2norm_eps);
  a.wide_initial = is_wide(p.initial), a.wide_final = is_wide(p.final);
  a.dense_initial = is_dense(p.initial, p.K) && p.V % kStepValues == 0;
  a.p = p;
  return a;
}

bool streams(const PrefillProblem& p, int multiprocessors) {
  return is_usual(p) && p.V % kStreamRows == 0 &&
         (!p.initial.present() || is_dense(p.initial, p.K)) &&
         2 * ctas_of(p, kStreamRows) > 3 * multiprocessors;
}

enum class Form {
  kTogether,     // a warp makes a step and walks; three CTAs a multiprocessor
  kAhead,        // some warps make, others walk; one CTA
  kAheadOfHalf,  // of half as many value rows
  kStream,       // as kAhead, through many tasks
};

Form form_of(const PrefillProblem& p, const Context& context) {
  const int multiprocessors = device::multiprocessors(context);
  if (ctas_of(p, kStepValues / 2) <= multiprocessors) return Form::kAheadOfHalf;
  if (ctas_of(p, kStepValues) <= multiprocessors) return Form::kAhead;
  return streams(p, multiprocessors) ? Form::kStream : Form::kTogether;
}

template <class Io>
void launch_stream(const PrefillProblem& p, const Context& context) {
  StepArguments a = step_arguments(p, kStreamRows);
  a.tasks = static_cast<int>(ctas_of(p, kStreamRows));
  const PlanShape plan = plan_shape(p, context);
  a.ranks = plan.rows > 1 && !(plan.longest > 0 && plan.even(kStep));
  const int multiprocessors = device::multiprocessors(context);
  const int most = multiprocessors * kStreamTasks;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(multiprocessors * ((a.tasks + most - 1) / most)));
  shape.block = dim3(kStreamThreads);
  shape.shared_bytes = sizeof(StreamShared<Io>);
  device::launch(prefill_steps_stream<Io>, shape, a, context);
}

template <class Io, bool Usual>
void launch_form(const PrefillProblem& p, Form form, const Context& context) {
  const int values = form == Form::kAheadOfHalf ? kStepValues / 2 : kStepValues;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(ctas_of(p, values)));
  StepArguments a = step_arguments(p, values);
  a.ahead = kStepCtas * device::multiprocessors(context);
  const auto launch = [&](auto kernel, int warps, std::size_t bytes) {
    shape.block = dim3(static_cast<unsigned>(warps) * 32);
    shape.shared_bytes = static_cast<unsigned>(bytes);
    device::launch(kernel, shape, a, context);
  };
  if (form == Form::kTogether) {
    launch(prefill_steps<Io, Usual>, kStepThreads / 32, sizeof(StepShared<Io>));
  } else if (form == Form::kAhead) {
    launch(prefill_steps_ahead<Io, Usual, 4>, 4 + kAheadMakers, sizeof(AheadShared<Io, 4>));
  } else {
    launch(prefill_steps_ahead<Io, Usual, 2>, 2 + kAheadMakers, sizeof(AheadShared<Io, 2>));
  }
}

template <class Io>
void launch_form(const PrefillProblem& p, Form form, const Context& context) {
  if (form == Form::kStream) {
    launch_stream<Io>(p, context);
  } else if (is_usual(p)) {
    launch_form<Io, true>(p, form, context);
  } else {
    launch_form<Io, false>(p, form, context);
  }
}

}  // namespace

const char* prefill_steps_refuses(const PrefillProblem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (context.batch_invariant) return "bits that differ from those of chunks";
  if (p.q.dtype == DType::kFloat32) return "takes bfloat16 and float16";
  if (p.K != 128 || p.V % 16 != 0) return "takes K = 128, V a multiple of 16";
  if (p.checkpoint_every > 0 || p.checkpoint_offsets.present()) return "keeps no checkpoints";
  if (!fits_int(p.sequences.tokens + kStage)) return "more than 2^31 tokens";
  if (!fits_int(ctas_of(p, kStepValues))) {
    return "more than 2^31 blocks of value rows";
  }
  if (!device::aligned(p.k, 8) || !device::aligned(p.q, 8) || !device::aligned(p.v, 8) ||
      !device::aligned(p.out, 8)) {
    return "memory that is not aligned to 16 bytes";
  }
  return nullptr;
}

double prefill_steps_us(const PrefillProblem& p, const Context& context) {
  return steps_us(plan_shape(p, context));
}

void launch_prefill_steps(const PrefillProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0) return;
  const Form form = form_of(p, context);
  if (p.q.dtype == DType::kBFloat16) {
    launch_form<__nv_bfloat16>(p, form, context);
  } else {
    launch_form<__half>(p, form, context);
    FusedArguments a;
    a.p = p;
    set_constants(a);
    launch_again(a, context);
  }
}

}  // namespace hyla::gdn
