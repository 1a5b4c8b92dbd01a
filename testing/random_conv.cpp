// Random calls of the causal convolutions and the gated norm.
#include <algorithm>

#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

// What a GDN layer convolves: its q, k and v channels.
std::int64_t channels(const ProblemSpec& spec) { return 2 * spec.hq * spec.k + spec.hv * spec.v; }

template <class Params>
void set_common(CaseBuilder& builder, Params& p, const Rows& rows, std::vector<std::int64_t> shape,
                std::int64_t columns) {
  const ProblemSpec& spec = builder.spec();
  const std::int64_t C = channels(spec);
  p.x = builder.normal("x", spec.io, shape, 0, 1);
  p.out = builder.output("out", spec.io, shape);
  p.weight = builder.normal("weight", spec.io, {C, spec.width}, 0, 0.5);
  if (builder.options().extras) p.bias = builder.normal("bias", spec.io, {C}, 0, 0.5);
  p.state = builder.normal("state", spec.state, {rows.pool, C, columns}, 0, 1);
  builder.poison_slots(p.state, rows);
  builder.set_slots(p, rows);
  if (builder.options().extras) {
    const Random draw = builder.random("window_offsets");
    std::vector<std::int64_t> offsets;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      offsets.push_back(draw.below(row, columns - (spec.width - 1) + 1));
    }
    p.window_offsets = builder.indices("window_offsets", offsets);
  }
}

}  // namespace

Call random_conv_prefill(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const std::int64_t spare = builder.options().extras || builder.options().gaps ? 2 : 0;
  conv::PrefillParams p;
  const Rows rows = builder.rows(row_lengths(spec), true);
  set_common(builder, p, rows, {rows.total, channels(spec)}, spec.width - 1 + spare);
  builder.set_sequences(p, rows);
  if (builder.options().fresh_rows) p.has_initial_state = builder.fresh_rows(p.state, rows);
  builder.poison_tokens(p.x, rows, true);
  return std::move(builder).finish(p);
}

Call random_conv_update(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const bool ragged = !spec.lens.empty();
  conv::UpdateParams p;
  const Rows rows = builder.rows(row_lengths(spec), ragged);
  std::int64_t longest = 1;
  for (std::int64_t length : rows.lengths) longest = std::max(longest, length);
  std::vector<std::int64_t> shape{spec.b, spec.t, channels(spec)};
  if (ragged) shape = {rows.total, channels(spec)};
  if (!ragged && spec.t == 1) shape = {spec.b, channels(spec)};
  const std::int64_t columns = builder.options().extras ? spec.width - 1 + longest : spec.width - 1;
  set_common(builder, p, rows, shape, columns);
  if (ragged) builder.set_sequences(p, rows);
  builder.poison_tokens(p.x, rows, ragged);
  return std::move(builder).finish(p);
}

Call random_gated_rms(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  norm::GatedRmsParams p;
  const std::vector<std::int64_t> shape{spec.b, spec.hv, spec.v};
  p.x = builder.normal("x", spec.io, shape, 0, 1);
  p.z = builder.normal("z", spec.io, shape, 0, 1);
  p.weight = builder.normal("weight", DType::kFloat32, {spec.v}, 1, 0.2);
  p.out = builder.output("out", spec.io, shape);
  if (builder.options().extras) p.gate = norm::Activation::kSigmoid;
  return std::move(builder).finish(p);
}

}  // namespace hyla::testing
