// Random calls of decode, MTP and the recurrence.
#include "testing/random_gdn.h"

namespace hyla::testing {

using namespace detail;

Call random_decode(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  gdn::DecodeParams p;
  const Rows rows = builder.rows(row_lengths(spec), false);
  const Dims dims = builder.has("one token", 0.3) ? Dims{spec.b, 1} : Dims{spec.b};
  TokenTensors tokens{builder, dims, spec.hv, {}};
  tokens.set_qkv(p);
  tokens.set_gates(p.gate, p.beta);
  if (spec.gated || builder.options().extras) tokens.set_norm(p.norm);
  p.state = random_pool(builder, rows, spec.hv);
  builder.set_slots(p, rows);
  set_numbers(p, builder);
  tokens.poison_unread(rows, false);
  return std::move(builder).finish(p);
}

namespace {

// Every state into a slot of its own, one of them perhaps into the slot that the row came from.
void set_step_slots(CaseBuilder& builder, gdn::MtpParams& p, const Rows& rows,
                    std::int64_t columns) {
  std::vector<std::int64_t> table = slots_on_the_way(builder, rows, columns, [&](std::int64_t row) {
    return rows.lengths[static_cast<std::size_t>(row)];
  });
  const Random draw = builder.random("steps in place");
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const auto r = static_cast<std::size_t>(row);
    if (p.write_slots.present() || rows.padded[r] || rows.lengths[r] == 0) continue;
    if (!draw.chance(row, 0.3)) continue;
    const std::int64_t step = draw.below(row + (1 << 20), rows.lengths[r]);
    table[static_cast<std::size_t>(row * columns + step)] = rows.read[r];
  }
  p.step_slots = builder.indices("step_slots", table, {rows.count(), columns});
}

}  // namespace

Call random_mtp(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const bool ragged = !spec.lens.empty();
  gdn::MtpParams p;
  const Rows rows = builder.rows(row_lengths(spec), ragged);
  TokenTensors tokens{builder, ragged ? Dims{rows.total} : Dims{spec.b, spec.t}, spec.hv, {}};
  tokens.set_qkv(p);
  tokens.set_gates(p.gate, p.beta);
  if (spec.gated || builder.options().extras) tokens.set_norm(p.norm);
  // More room than the rows need is legal, and stays as it is.
  const std::int64_t spare = builder.has("spare steps", 0.3) ? 1 : 0;
  const std::int64_t columns = longest_of(rows) + spare;
  const bool steps = spec.mode != Mode::kAll && builder.has("step_slots", 0.5);
  p.state = random_pool(builder, rows, spec.hv, steps ? rows.count() * columns : 0);
  if (ragged) builder.set_sequences(p, rows);
  builder.set_slots(p, rows);
  p.update_state = spec.mode != Mode::kAll || builder.has("update_state", 0.4);
  if (!*p.update_state) p.write_slots = {};
  if (spec.mode == Mode::kAll) {
    p.states_out = builder.output("states_out", builder.any_float("states_out", spec.state),
                                  state_dims(spec, {rows.count() + spare, columns}, spec.hv));
  }
  if (steps) set_step_slots(builder, p, rows, columns);
  if (spec.mode == Mode::kAccepted && (!steps || p.write_slots.present())) {
    const Random draw = builder.random("commit_lengths");
    std::vector<std::int64_t> accepted;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      accepted.push_back(draw.below(row, rows.lengths[static_cast<std::size_t>(row)] + 1));
    }
    p.commit_lengths = builder.indices("commit_lengths", accepted);
  }
  set_numbers(p, builder);
  tokens.poison_unread(rows, ragged);
  return std::move(builder).finish(p);
}

Call random_recurrence(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  gdn::RecurrenceParams p;
  const Rows rows = builder.rows(row_lengths(spec), true);
  TokenTensors tokens{builder, {rows.total}, spec.hv, {}};
  p.key_heads = spec.hq;
  p.value_heads = spec.hv;
  p.key_dim = spec.k;
  p.value_dim = spec.v;
  const std::int64_t keys = 2 * spec.hq * spec.k;
  // Any strides: channels side by side, or tokens.
  const bool turned = builder.has("tokens side by side", 0.3);
  const std::int64_t channels = keys + spec.hv * spec.v;
  p.qkv = turned ? builder.loose_normal("qkv", spec.io, {channels, rows.total}, 0, 1).swap(0, 1)
                 : builder.normal("qkv", spec.io, {rows.total, channels}, 0, 1);
  scale(p.qkv.slice(1, 0, keys), key_deviation(spec));
  tokens.filled.push_back(p.qkv);
  p.out = turned ? builder.output("out", spec.io, {spec.hv * spec.v, rows.total}).swap(0, 1)
                 : builder.output("out", spec.io, {rows.total, spec.hv * spec.v});
  tokens.set_gates(p.gate, p.beta);
  p.state = random_pool(builder, rows, spec.hv, 0, true);
  builder.set_sequences(p, rows);
  builder.set_slots(p, rows);
  set_numbers(p, builder);
  tokens.poison_unread(rows, true);
  return std::move(builder).finish(p);
}

}  // namespace hyla::testing
