// Random calls of the Gated DeltaNet operations.
#include <algorithm>
#include <cmath>

#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

constexpr double kMeanLogDecay = -0.05;
constexpr double kStateDeviation = 0.3;
// softplus of this is zero in every precision that matters, so the head never forgets.
constexpr double kNeverForget = -60.0;

bool forgets(std::int64_t head) { return head % 4 != 3; }

using Dims = std::vector<std::int64_t>;

Dims with(Dims tokens, std::initializer_list<std::int64_t> rest) {
  tokens.insert(tokens.end(), rest);
  return tokens;
}

// The column block [begin, begin + heads * dim) of a packed projection as [tokens..., heads, dim].
TensorView block(const TensorView& packed, std::int64_t begin, std::int64_t heads,
                 std::int64_t dim) {
  const int last = packed.rank - 1;
  return packed.slice(last, begin, heads * dim).split(last, dim);
}

void scale(const TensorView& view, double factor) {
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    store_element(view, offset, factor * load_element(view, offset));
  });
}

// Without the L2 norm, keys and queries of length about 1, as the caller's own norm would leave.
double key_deviation(const ProblemSpec& spec) {
  return spec.norm ? 1.0 : 1.0 / std::sqrt(static_cast<double>(spec.k));
}

// The tensors that hold values of tokens; `tokens` is [B], [B, T] or [total].
struct TokenTensors {
  CaseBuilder& builder;
  Dims tokens;
  std::int64_t heads;  // of gates, outputs, states
  std::vector<TensorView> filled;

  template <class Params>
  void set_qkv(Params& p) {
    const ProblemSpec& spec = builder.spec();
    const double deviation = key_deviation(spec);
    if (builder.options().packed) {
      const std::int64_t q = spec.hq * spec.k, k = spec.hk * spec.k, v = spec.hv * spec.v;
      const TensorView packed =
          keep(builder.normal("qkv", spec.io, with(tokens, {q + k + v}), 0, 1));
      p.q = block(packed, 0, spec.hq, spec.k);
      p.k = block(packed, q, spec.hk, spec.k);
      p.v = block(packed, q + k, spec.hv, spec.v);
      scale(p.q, deviation);
      scale(p.k, deviation);
    } else {
      p.q = keep(builder.normal("q", spec.io, with(tokens, {spec.hq, spec.k}), 0, deviation));
      p.k = keep(builder.normal("k", spec.io, with(tokens, {spec.hk, spec.k}), 0, deviation));
      p.v = keep(builder.normal("v", spec.io, with(tokens, {spec.hv, spec.v}), 0, 1));
    }
    p.out = builder.output("out", spec.io, with(tokens, {heads, spec.v}));
  }

  // Raw gates and logits come from a projection, in its dtype; finished ones in float32.
  void set_gates(gdn::Gate& gate, gdn::Beta& beta) {
    const ProblemSpec& spec = builder.spec();
    const bool raw = spec.gate == gdn::Gate::Kind::kRaw;
    const bool logit = spec.beta == gdn::Beta::Kind::kLogit;
    gate.kind = spec.gate;
    beta.kind = spec.beta;
    TensorView a, b;
    if (builder.options().packed && raw && logit) {
      const TensorView ba = builder.output("ba", spec.io, with(tokens, {2 * heads}));
      b = ba.slice(ba.rank - 1, 0, heads);
      a = ba.slice(ba.rank - 1, heads, heads);
    } else {
      if (spec.gate != gdn::Gate::Kind::kNone) {
        a = builder.output("gate", raw ? spec.io : DType::kFloat32, with(tokens, {heads}));
      }
      if (spec.beta != gdn::Beta::Kind::kNone) {
        b = builder.output("beta", logit ? spec.io : DType::kFloat32, with(tokens, {heads}));
      }
    }
    if (a.present()) gate.value = keep(a);
    if (b.present()) beta.value = keep(b);
    if (a.present()) fill_gate(gate);
    if (b.present()) fill_beta(beta);
  }

  void set_norm(norm::GatedNorm& norm) {
    const ProblemSpec& spec = builder.spec();
    norm.z = keep(builder.normal("norm.z", spec.io, with(tokens, {heads, spec.v}), 0, 1));
    norm.weight = builder.normal("norm.weight", DType::kFloat32, {spec.v}, 1, 0.2);
  }

  void poison_unread(const Rows& rows, bool ragged) {
    for (const TensorView& view : filled) builder.poison_tokens(view, rows, ragged);
  }

 private:
  TensorView keep(const TensorView& view) {
    filled.push_back(view);
    return view;
  }

  void fill_gate(gdn::Gate& gate) {
    const Random draw = builder.random("gate values");
    if (gate.kind == gdn::Gate::Kind::kRaw) {
      // exp(A_log) * softplus(N(0, 1)), which is 0.8 in the mean, gives the decay wanted.
      const double log_rate = std::log(-kMeanLogDecay / 0.8);
      gate.A_log = builder.normal("A_log", DType::kFloat32, {heads}, log_rate, 0.3);
      Buffer& bias = builder.add("dt_bias", DType::kFloat32, {heads});
      const Random bias_draw = builder.random("dt_bias");
      bias.fill_by([&](std::int64_t head) {
        return forgets(head) ? 0.1 * bias_draw.normal(head) : kNeverForget;
      });
      gate.dt_bias = bias.view();
    }
    for_each_element(gate.value, [&](std::int64_t index, std::int64_t offset) {
      const std::int64_t head = index % heads;
      double value = forgets(head) ? kMeanLogDecay * 2 * draw.uniform(index) : 0;
      if (gate.kind == gdn::Gate::Kind::kLinear) value = std::exp(value);
      if (gate.kind == gdn::Gate::Kind::kRaw) value = draw.normal(index);
      store_element(gate.value, offset, value);
    });
  }

  void fill_beta(gdn::Beta& beta) {
    const Random draw = builder.random("beta values");
    for_each_element(beta.value, [&](std::int64_t index, std::int64_t offset) {
      const bool logit = beta.kind == gdn::Beta::Kind::kLogit;
      store_element(beta.value, offset, logit ? draw.normal(index) : draw.uniform(index));
    });
  }
};

Dims state_dims(const ProblemSpec& spec, Dims outer, std::int64_t heads) {
  const bool kv = spec.layout == gdn::StateLayout::kKV;
  return with(std::move(outer), {heads, kv ? spec.k : spec.v, kv ? spec.v : spec.k});
}

TensorView random_pool(CaseBuilder& builder, const Rows& rows, std::int64_t heads) {
  const ProblemSpec& spec = builder.spec();
  const TensorView pool =
      builder.normal("state", spec.state, state_dims(spec, {rows.pool}, heads), 0, kStateDeviation);
  builder.poison_slots(pool, rows);
  return pool;
}

template <class Params>
void set_numbers(Params& p, const ProblemSpec& spec) {
  p.layout = spec.layout;
  p.l2norm = spec.norm;
}

}  // namespace

Call random_decode(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  gdn::DecodeParams p;
  const Rows rows = builder.rows(row_lengths(spec), false);
  TokenTensors tokens{builder, {spec.b}, spec.hv, {}};
  tokens.set_qkv(p);
  tokens.set_gates(p.gate, p.beta);
  if (spec.gated || builder.options().extras) tokens.set_norm(p.norm);
  p.state = random_pool(builder, rows, spec.hv);
  builder.set_slots(p, rows);
  set_numbers(p, spec);
  tokens.poison_unread(rows, false);
  return std::move(builder).finish(p);
}

Call random_mtp(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const bool ragged = !spec.lens.empty();
  gdn::MtpParams p;
  const Rows rows = builder.rows(row_lengths(spec), ragged);
  TokenTensors tokens{builder, ragged ? Dims{rows.total} : Dims{spec.b, spec.t}, spec.hv, {}};
  tokens.set_qkv(p);
  tokens.set_gates(p.gate, p.beta);
  if (spec.gated || builder.options().extras) tokens.set_norm(p.norm);
  p.state = random_pool(builder, rows, spec.hv);
  if (ragged) builder.set_sequences(p, rows);
  builder.set_slots(p, rows);
  p.update_state = spec.mode != Mode::kAll;
  if (spec.mode == Mode::kAll) {
    p.write_slots = {};
    std::int64_t longest = 0;
    for (std::int64_t length : rows.lengths) longest = std::max(longest, length);
    p.states_out = builder.output("states_out", spec.state,
                                  state_dims(spec, {rows.count(), longest}, spec.hv));
  }
  if (spec.mode == Mode::kAccepted) {
    const Random draw = builder.random("commit_lengths");
    std::vector<std::int64_t> accepted;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      accepted.push_back(draw.below(row, rows.lengths[static_cast<std::size_t>(row)] + 1));
    }
    p.commit_lengths = builder.indices("commit_lengths", accepted);
  }
  set_numbers(p, spec);
  tokens.poison_unread(rows, ragged);
  return std::move(builder).finish(p);
}

namespace {

// Up to kListed counts of tokens a row: none, all, whole chunks and anything else.
constexpr std::int64_t kListed = 6;
void set_listed_checkpoints(CaseBuilder& builder, gdn::PrefillParams& p, const Rows& rows,
                            std::int64_t heads) {
  const Random draw = builder.random("checkpoints");
  std::vector<std::int64_t> offsets, starts{0};
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const std::int64_t length = rows.lengths[static_cast<std::size_t>(row)];
    std::int64_t count = 0, tokens = draw.below(2 * row, 2);
    for (std::int64_t i = 0; i < kListed; ++i) {
      const std::int64_t at = row * kListed + i;
      if (tokens > length && count > 0 && offsets.back() >= 0 && offsets.back() < length) {
        tokens = length;
      }
      const bool inside = tokens <= length;
      offsets.push_back(inside ? tokens : -1);
      count += inside ? 1 : 0;
      tokens += 1 + draw.below(at + (1 << 21), draw.chance(at + (1 << 22), 0.5) ? 20 : 150);
      if (draw.chance(at + (1 << 20), 0.4)) tokens = (tokens + 63) / 64 * 64;
    }
    starts.push_back(starts.back() + count);
  }
  p.checkpoint_offsets = builder.indices("checkpoint_offsets", offsets, {rows.count(), kListed});
  p.checkpoint_starts = builder.indices("checkpoint_starts", starts);
  p.checkpoints = builder.output("checkpoints", builder.spec().state,
                                 state_dims(builder.spec(), {starts.back()}, heads));
}

}  // namespace

Call random_prefill(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const std::int64_t heads = std::max(spec.hq, spec.hv);
  gdn::PrefillParams p;
  const Rows rows = builder.rows(row_lengths(spec), true);
  TokenTensors tokens{builder, {rows.total}, heads, {}};
  tokens.set_qkv(p);
  tokens.set_gates(p.gate, p.beta);
  p.state = random_pool(builder, rows, heads);
  builder.set_sequences(p, rows);
  for (const std::int64_t length : rows.lengths) {
    if (spec.longest) p.max_length = std::max(p.max_length, length);
  }
  if (builder.options().extras) {  // unknown, too short, right or too long: no result depends on it
    p.max_length *= builder.random("max_length").below(0, 4);
    p.max_length /= 2;
  }
  builder.set_slots(p, rows);
  if (builder.options().fresh_rows) p.has_initial_state = builder.fresh_rows(p.state, rows);
  if (spec.checkpoint != 0 && builder.options().extras) {
    set_listed_checkpoints(builder, p, rows, heads);
  } else if (spec.checkpoint != 0) {
    std::vector<std::int64_t> starts{0};
    for (std::int64_t length : rows.lengths) {
      starts.push_back(starts.back() + length / spec.checkpoint);
    }
    p.checkpoint_every = spec.checkpoint;
    p.checkpoint_starts = builder.indices("checkpoint_starts", starts);
    p.checkpoints =
        builder.output("checkpoints", spec.state, state_dims(spec, {starts.back()}, heads));
  }
  set_numbers(p, spec);
  tokens.poison_unread(rows, true);
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
  p.qkv = builder.normal("qkv", spec.io, {rows.total, keys + spec.hv * spec.v}, 0, 1);
  scale(p.qkv.slice(1, 0, keys), key_deviation(spec));
  tokens.filled.push_back(p.qkv);
  p.out = builder.output("out", spec.io, {rows.total, spec.hv * spec.v});
  tokens.set_gates(p.gate, p.beta);
  p.state = random_pool(builder, rows, spec.hv);
  builder.set_sequences(p, rows);
  builder.set_slots(p, rows);
  set_numbers(p, spec);
  tokens.poison_unread(rows, true);
  return std::move(builder).finish(p);
}

}  // namespace hyla::testing
