// Random calls of the causal convolutions and the gated norm.
#include <algorithm>

#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

// What a GDN layer convolves: its q, k and v channels.
std::int64_t channels(const ProblemSpec& spec) { return 2 * spec.hq * spec.k + spec.hv * spec.v; }

// With variety also numbers of channels that no model has.
std::int64_t channels(const CaseBuilder& builder) {
  const std::int64_t all = channels(builder.spec());
  return builder.has("odd channels", 0.25) ? all - 1 - builder.kind("which channels", 7) : all;
}

bool in_place(const CaseBuilder& builder) {
  return builder.spec().in_place || builder.has("in place", 0.2);
}

constexpr std::int64_t kCheckpoints = 3;  // of a row, at the most

// The columns of a row beyond its window, and how they are used.
struct Columns {
  std::int64_t spare = 0;
  bool at_offset = false;
};

// `extra`: slots behind those of the rows, which nobody reads.
TensorView window_pool(CaseBuilder& builder, const Rows& rows, const Columns& columns,
                       std::int64_t extra) {
  const ProblemSpec& spec = builder.spec();
  const std::int64_t C = channels(builder), L = spec.width - 1 + columns.spare;
  const bool channels_last = spec.channels_last || (builder.options().packed &&
                                                    builder.random("pool order").chance(0, 0.5));
  const std::int64_t slots = rows.pool + extra;
  TensorView pool = channels_last
                        ? builder.loose_normal("state", spec.state, {slots, L, C}, 0, 1).swap(1, 2)
                        : builder.loose_normal("state", spec.state, {slots, C, L}, 0, 1);
  builder.poison_slots(pool, rows);
  if (extra > 0) poison(pool.slice(0, rows.pool, extra));
  return pool;
}

template <class Params>
void set_common(CaseBuilder& builder, Params& p, const Rows& rows, std::vector<std::int64_t> shape,
                const Columns& columns, std::int64_t extra_slots, bool with_pool = true) {
  const ProblemSpec& spec = builder.spec();
  const std::int64_t C = channels(builder);
  // Any strides: channels side by side, or tokens.
  const bool turned = builder.has("tokens side by side", 0.2);
  const auto last = static_cast<int>(shape.size()) - 1;
  if (turned) std::swap(shape[0], shape.back());
  p.x = builder.loose_normal("x", spec.io, shape, 0, 1);
  p.out = in_place(builder) ? p.x : builder.add_loose("out", spec.io, shape).view();
  if (turned) {
    p.x = p.x.swap(0, last);
    p.out = p.out.swap(0, last);
  }
  p.weight =
      builder.loose_normal("weight", builder.any_float("weight", spec.io), {C, spec.width}, 0, 0.5);
  if (builder.options().extras) {
    p.bias = builder.loose_normal("bias", builder.any_float("bias", spec.io), {C}, 0, 0.5);
  }
  if (builder.has("no activation", 0.3)) p.activation = conv::Activation::kNone;
  if (!with_pool) return;
  p.state = window_pool(builder, rows, columns, extra_slots);
  builder.set_slots(p, rows);
  if (columns.at_offset) {
    const Random draw = builder.random("window_offsets");
    std::vector<std::int64_t> offsets;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      offsets.push_back(draw.below(row, columns.spare + 1));
    }
    p.window_offsets = builder.indices("window_offsets", offsets);
  }
}

// Up to kCheckpoints counts a row, into slots of their own behind those of the rows.
void set_checkpoints(CaseBuilder& builder, conv::PrefillParams& p, const Rows& rows) {
  const Random draw = builder.random("checkpoints");
  std::vector<std::int64_t> offsets, slots;
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    std::int64_t tokens = draw.below(2 * row, 4);
    for (std::int64_t i = 0; i < kCheckpoints; ++i) {
      const std::int64_t at = row * kCheckpoints + i;
      const bool inside = tokens <= rows.lengths[static_cast<std::size_t>(row)];
      offsets.push_back(inside ? tokens : -1);
      slots.push_back(draw.chance(at + (1 << 20), 0.2) ? rows.first_slot - 1 : rows.pool + at);
      tokens += 1 + draw.below(at + (1 << 21), 40);
    }
  }
  const std::vector<std::int64_t> shape{rows.count(), kCheckpoints};
  p.checkpoint_offsets = builder.indices("checkpoint_offsets", offsets, shape);
  p.checkpoint_slots = builder.indices("checkpoint_slots", slots, shape);
}

}  // namespace

Call random_conv_prefill(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const bool extras = builder.options().extras;
  Columns columns{spec.drafts, spec.drafts > 0};
  if (columns.spare == 0 && (extras || builder.options().gaps)) columns = {2, extras};
  conv::PrefillParams p;
  const bool ragged = !spec.lens.empty() || !builder.has("batch of rows", 0.5);
  Rows rows = builder.rows(row_lengths(spec), ragged);
  const bool with_pool = !builder.has("no state", 0.15);
  if (!with_pool) std::fill(rows.padded.begin(), rows.padded.end(), false);
  const std::int64_t C = channels(builder);
  std::vector<std::int64_t> shape{rows.total, C};
  if (!ragged) shape = {spec.b, spec.t, C};
  set_common(builder, p, rows, shape, columns, extras ? rows.count() * kCheckpoints : 0, with_pool);
  if (ragged) builder.set_sequences(p, rows);
  if (!with_pool) {
    builder.poison_tokens(p.x, rows, ragged);
    return std::move(builder).finish(p);
  }
  if (extras) set_checkpoints(builder, p, rows);
  if (builder.options().fresh_rows) p.has_initial_state = builder.fresh_rows(p.state, rows);
  builder.poison_tokens(p.x, rows, ragged);
  return std::move(builder).finish(p);
}

Call random_conv_update(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const bool ragged = !spec.lens.empty(), extras = builder.options().extras;
  conv::UpdateParams p;
  const Rows rows = builder.rows(row_lengths(spec), ragged);
  std::int64_t longest = 1;
  for (std::int64_t length : rows.lengths) longest = std::max(longest, length);
  const std::int64_t C = channels(builder);
  std::vector<std::int64_t> shape{spec.b, spec.t, C};
  if (ragged) shape = {rows.total, C};
  if (!ragged && spec.t == 1 && !builder.has("one token", 0.3)) shape = {spec.b, C};
  const Random draw = builder.random("commit_lengths");
  const bool commits = extras && spec.drafts == 0 && draw.chance(-1, 0.4);
  Columns columns{spec.drafts, spec.drafts > 0};
  if (extras && spec.drafts == 0) columns = {longest, !commits};
  if (commits) columns.spare = draw.below(-2, 3);
  set_common(builder, p, rows, shape, columns, 0);
  if (commits) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      lengths.push_back(draw.below(row, rows.lengths[static_cast<std::size_t>(row)] + 1));
    }
    p.commit_lengths = builder.indices("commit_lengths", lengths);
  }
  if (ragged) builder.set_sequences(p, rows);
  builder.poison_tokens(p.x, rows, ragged);
  return std::move(builder).finish(p);
}

Call random_gated_rms(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  norm::GatedRmsParams p;
  std::vector<std::int64_t> shape{spec.b, spec.hv, spec.v};
  if (builder.has("rows", 0.3)) shape = {spec.b * spec.hv, spec.v};
  p.x = builder.normal("x", spec.io, shape, 0, 1);
  p.z = builder.normal("z", builder.any_float("z", spec.io), shape, 0, 1);
  const DType weight = builder.any_float("weight", DType::kFloat32);
  p.weight = builder.loose_normal("weight", weight, {spec.v}, 1, 0.2);
  p.out = in_place(builder) ? p.x : builder.output("out", builder.any_float("out", spec.io), shape);
  if (builder.options().extras) p.gate = norm::Activation::kSigmoid;
  if (builder.has("eps", 0.3)) p.eps = 1e-3;
  return std::move(builder).finish(p);
}

}  // namespace hyla::testing
