// What the random calls of all Gated DeltaNet operations share: tensors of tokens, gates, pools.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "testing/case_builder.h"

namespace hyla::testing::detail {

inline constexpr double kMeanLogDecay = -0.05;
inline constexpr double kStateDeviation = 0.3;
// softplus of this is zero in every precision that matters, so the head never forgets.
inline constexpr double kNeverForget = -60.0;
// A raw gate that leaves nothing, and the share of such tokens in calls that have any.
inline constexpr double kForgetAll = 4000.0, kWipeShare = 0.04;
inline constexpr std::int64_t kSecond = std::int64_t{1} << 40;  // draws beside those of elements

inline bool forgets(std::int64_t head) { return head % 4 != 3; }

using Dims = std::vector<std::int64_t>;

inline Dims with(Dims tokens, std::initializer_list<std::int64_t> rest) {
  tokens.insert(tokens.end(), rest);
  return tokens;
}

// The column block [begin, begin + heads * dim) of a packed projection as [tokens..., heads, dim].
inline TensorView block(const TensorView& packed, std::int64_t begin, std::int64_t heads,
                        std::int64_t dim) {
  const int last = packed.rank - 1;
  return packed.slice(last, begin, heads * dim).split(last, dim);
}

inline void scale(const TensorView& view, double factor) {
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    store_element(view, offset, factor * load_element(view, offset));
  });
}

// Without the L2 norm, keys and queries of length about 1, as the caller's own norm would leave.
inline double key_deviation(const ProblemSpec& spec) {
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

  // Raw gates and logits mostly come from a projection, in its dtype; finished ones in float32.
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
        const DType usual = raw ? spec.io : DType::kFloat32;
        a = builder.add_loose("gate", builder.any_float("gate", usual), with(tokens, {heads}))
                .view();
      }
      if (spec.beta != gdn::Beta::Kind::kNone) {
        const DType usual = logit ? spec.io : DType::kFloat32;
        b = builder.add_loose("beta", builder.any_float("beta", usual), with(tokens, {heads}))
                .view();
      }
    }
    if (a.present()) gate.value = keep(a);
    if (b.present()) beta.value = keep(b);
    if (a.present()) fill_gate(gate);
    if (b.present()) fill_beta(beta);
  }

  void set_norm(norm::GatedNorm& norm) {
    const ProblemSpec& spec = builder.spec();
    const DType z = builder.any_float("norm.z", spec.io);
    norm.z = keep(builder.normal("norm.z", z, with(tokens, {heads, spec.v}), 0, 1));
    const DType weight = builder.any_float("norm.weight", DType::kFloat32);
    norm.weight = builder.loose_normal("norm.weight", weight, {spec.v}, 1, 0.2);
    if (builder.has("norm.gate", 0.5)) norm.gate = norm::Activation::kSigmoid;
    if (builder.has("norm.eps", 0.3)) norm.eps = 1e-3;
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
      const DType rates = builder.any_float("A_log", DType::kFloat32);
      gate.A_log = builder.loose_normal("A_log", rates, {heads}, log_rate, 0.3);
      const DType biases = builder.any_float("dt_bias", DType::kFloat32);
      Buffer& bias = builder.add_loose("dt_bias", biases, {heads});
      const Random bias_draw = builder.random("dt_bias");
      bias.fill_by([&](std::int64_t head) {
        return forgets(head) ? 0.1 * bias_draw.normal(head) : kNeverForget;
      });
      gate.dt_bias = bias.view();
    }
    // Some calls have tokens that wipe the state, and some that nearly do.
    const bool wipes = builder.has("wipes", 0.2);
    for_each_element(gate.value, [&](std::int64_t index, std::int64_t offset) {
      const std::int64_t head = index % heads;
      double value = forgets(head) ? kMeanLogDecay * 2 * draw.uniform(index) : 0;
      if (wipes && gate.kind != gdn::Gate::Kind::kRaw && draw.chance(~index, kWipeShare)) {
        value = draw.chance(index + kSecond, 0.5) ? -std::numeric_limits<double>::infinity() : -40;
      }
      if (gate.kind == gdn::Gate::Kind::kLinear) value = std::exp(value);
      if (gate.kind == gdn::Gate::Kind::kRaw) value = draw.normal(index);
      if (wipes && gate.kind == gdn::Gate::Kind::kRaw && draw.chance(~index, kWipeShare)) {
        value = kForgetAll;
      }
      store_element(gate.value, offset, value);
    });
  }

  void fill_beta(gdn::Beta& beta) {
    const Random draw = builder.random("beta values");
    const double most = builder.has("beta beyond 1", 0.2) ? 2 : 1;  // negative eigenvalues
    for_each_element(beta.value, [&](std::int64_t index, std::int64_t offset) {
      const bool logit = beta.kind == gdn::Beta::Kind::kLogit;
      store_element(beta.value, offset, logit ? draw.normal(index) : most * draw.uniform(index));
    });
  }
};

inline Dims state_dims(const ProblemSpec& spec, Dims outer, std::int64_t heads) {
  const bool kv = spec.layout == gdn::StateLayout::kKV;
  return with(std::move(outer), {heads, kv ? spec.k : spec.v, kv ? spec.v : spec.k});
}

// `extra`: slots behind those of the rows, which nobody reads. `loose`: of any strides.
inline TensorView random_pool(CaseBuilder& builder, const Rows& rows, std::int64_t heads,
                              std::int64_t extra = 0, bool loose = false) {
  const ProblemSpec& spec = builder.spec();
  const Dims dims = state_dims(spec, {rows.pool + extra}, heads);
  const TensorView pool = loose
                              ? builder.loose_normal("state", spec.state, dims, 0, kStateDeviation)
                              : builder.normal("state", spec.state, dims, 0, kStateDeviation);
  builder.poison_slots(pool, rows);
  if (extra > 0) poison(pool.slice(0, rows.pool, extra));
  return pool;
}

inline std::int64_t longest_of(const Rows& rows) {
  std::int64_t longest = 0;
  for (std::int64_t length : rows.lengths) longest = std::max(longest, length);
  return longest;
}

template <class Params>
void set_numbers(Params& p, const CaseBuilder& builder) {
  constexpr double kScales[] = {0.37, -1.5, 0.0};
  p.layout = builder.spec().layout;
  p.l2norm = builder.spec().norm;
  if (builder.has("scale", 0.4)) p.scale = kScales[builder.kind("which scale", 3)];
  if (builder.has("l2norm_eps", 0.3)) p.l2norm_eps = 1e-2;
}

// A table of slots [rows, columns] for states on the way: slots of their own behind those of the
// rows, some null, nobody's where a row has no such state. `count` says how many a row has.
template <class Count>
std::vector<std::int64_t> slots_on_the_way(const CaseBuilder& builder, const Rows& rows,
                                           std::int64_t columns, const Count& count) {
  const Random draw = builder.random("slots on the way");
  std::vector<std::int64_t> table;
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const bool padded = rows.padded[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < columns; ++i) {
      const std::int64_t at = row * columns + i;
      const bool used = !padded && i < count(row);
      table.push_back(!used                   ? CaseBuilder::kNobody
                      : draw.chance(at, 0.15) ? rows.first_slot - 1
                                              : rows.pool + at);
    }
  }
  return table;
}

}  // namespace hyla::testing::detail
