#include "ops/support/gdn_case.h"

#include <algorithm>
#include <cmath>

namespace hyla::gdn_test {
namespace {

using gdn::Beta;
using gdn::Gate;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

Spec completed(Spec spec) {
  const auto rows = static_cast<std::int64_t>(spec.lengths.size());
  if (spec.starts.empty()) {
    std::int64_t start = 0;
    for (std::int64_t length : spec.lengths) {
      spec.starts.push_back(start);
      start += length;
    }
  }
  if (spec.read.empty()) {
    for (std::int64_t row = 0; row < rows; ++row) spec.read.push_back(1 + 2 * row);
    for (std::int64_t row : spec.padding) spec.read[at(row)] = -1;
  }
  if (spec.slots == 0) {
    for (std::int64_t slot : spec.read) spec.slots = std::max(spec.slots, slot + 1);
    spec.slots += 2;
  }
  return spec;
}

std::vector<double> normalised(std::vector<double> x, bool l2norm) {
  if (!l2norm) return x;
  long double sum = 1e-6L;
  for (double value : x) sum += static_cast<long double>(value) * value;
  for (double& value : x) value = static_cast<double>(value / std::sqrt(sum));
  return x;
}

}  // namespace

Index state_shape(gdn::StateLayout layout, Index prefix, std::int64_t heads, std::int64_t K,
                  std::int64_t V) {
  const bool kv = layout == gdn::StateLayout::kKV;
  prefix.insert(prefix.end(), {heads, kv ? K : V, kv ? V : K});
  return prefix;
}

Index state_index(gdn::StateLayout layout, Index prefix, std::int64_t head, std::int64_t k,
                  std::int64_t v) {
  const bool kv = layout == gdn::StateLayout::kKV;
  prefix.insert(prefix.end(), {head, kv ? k : v, kv ? v : k});
  return prefix;
}

Case::Case(const Spec& given)
    : spec(completed(given)),
      rows(static_cast<std::int64_t>(spec.lengths.size())),
      total(0),
      heads(std::max(spec.Hq, spec.HV)) {
  Random random(spec.seed);
  for (std::int64_t row = 0; row < rows; ++row) total = std::max(total, start(row) + length(row));
  total += 2;  // tokens of nobody
  q = Tensor(spec.io, {total, spec.Hq, spec.K}, 3);
  k = Tensor(spec.io, {total, spec.Hk, spec.K}, 5);
  v = Tensor(spec.io, {total, spec.HV, spec.V}, 2);
  out = Tensor(spec.io, {total, heads, spec.V}, 1);
  const bool raw = spec.gate == Gate::Kind::kRaw;
  if (spec.gate != Gate::Kind::kNone)
    gate = Tensor::strided(spec.gates, {total, heads}, {1, total});
  if (spec.beta != Beta::Kind::kNone) beta = Tensor(spec.gates, {total, heads}, 2);
  if (raw) {
    A_log = Tensor::strided(DType::kFloat32, {heads}, {3});
    dt_bias = Tensor(DType::kBFloat16, {heads});
    A_log.fill(random, -1, 1);
    dt_bias.fill(random, -1, 1);
  }
  state = Tensor(spec.state, state_shape(spec.layout, {spec.slots}, heads, spec.K, spec.V), 4);

  for (std::int64_t row = 0; row < rows; ++row) {
    if (padding(row)) continue;
    const auto fill = [&](Tensor& tensor, const Index& from, const Index& extent, double low,
                          double high) {
      for_each_index(extent, [&](Index i) {
        for (std::size_t d = 0; d < from.size(); ++d) i[d] += from[d];
        tensor.set(i, random.uniform(low, high));
      });
    };
    fill(q, {start(row)}, {length(row), spec.Hq, spec.K}, -1, 1);
    fill(k, {start(row)}, {length(row), spec.Hk, spec.K}, -1, 1);
    fill(v, {start(row)}, {length(row), spec.HV, spec.V}, -1, 1);
    if (spec.gate == Gate::Kind::kLinear) fill(gate, {start(row)}, {length(row), heads}, 0.5, 1);
    if (spec.gate == Gate::Kind::kLog) fill(gate, {start(row)}, {length(row), heads}, -0.7, 0);
    if (raw) fill(gate, {start(row)}, {length(row), heads}, -2, 2);
    if (spec.beta == Beta::Kind::kProbability) {
      fill(beta, {start(row)}, {length(row), heads}, 0, 1);
    }
    if (spec.beta == Beta::Kind::kLogit) fill(beta, {start(row)}, {length(row), heads}, -3, 3);
    if (!spec.fresh.contains(row)) {
      const Index extent = state_shape(spec.layout, {1}, heads, spec.K, spec.V);
      fill(state, {slot(row)}, extent, -1, 1);
    }
  }
  Index offsets = spec.starts;
  offsets.push_back(rows == 0 ? 0 : start(rows - 1) + length(rows - 1));
  cu_seqlens = Tensor::of_indices(spec.indices, offsets);
  starts = Tensor::of_indices(spec.indices, spec.starts);
  lengths = Tensor::of_indices(spec.indices, spec.lengths);
  read_slots = Tensor::of_indices(spec.indices, spec.read);
  for (std::int64_t row = 0; row < rows; ++row) {
    inputs.emplace_back();
    for (std::int64_t head = 0; head < heads && !padding(row); ++head) {
      inputs.back().push_back(input(row, head));
    }
  }
}

std::int64_t Case::start(std::int64_t row) const { return spec.starts[at(row)]; }

HeadInput Case::input(std::int64_t row, std::int64_t head) const {
  HeadInput in;
  in.T = length(row);
  in.K = spec.K;
  in.V = spec.V;
  in.scale = spec.scale.value_or(std::pow(static_cast<double>(spec.K), -0.5));
  for (std::int64_t t = 0; t < in.T; ++t) {
    const std::int64_t token = start(row) + t;
    const auto read = [&](const Tensor& tensor, std::int64_t tensor_heads, std::int64_t dim) {
      std::vector<double> x;
      for (std::int64_t i = 0; i < dim; ++i) {
        x.push_back(tensor.get({token, head * tensor_heads / heads, i}));
      }
      return x;
    };
    const std::vector<double> q_t = normalised(read(q, spec.Hq, spec.K), spec.l2norm);
    const std::vector<double> k_t = normalised(read(k, spec.Hk, spec.K), spec.l2norm);
    const std::vector<double> v_t = read(v, spec.HV, spec.V);
    in.q.insert(in.q.end(), q_t.begin(), q_t.end());
    in.k.insert(in.k.end(), k_t.begin(), k_t.end());
    in.v.insert(in.v.end(), v_t.begin(), v_t.end());
    double log_alpha = 0, strength = 1;
    if (spec.gate == Gate::Kind::kLinear) log_alpha = std::log(gate.get({token, head}));
    if (spec.gate == Gate::Kind::kLog) log_alpha = gate.get({token, head});
    if (spec.gate == Gate::Kind::kRaw) {
      const long double x = static_cast<long double>(gate.get({token, head})) + dt_bias.get({head});
      log_alpha = static_cast<double>(-std::exp(static_cast<long double>(A_log.get({head}))) *
                                      std::log(1.0L + std::exp(x)));
    }
    if (spec.beta == Beta::Kind::kProbability) strength = beta.get({token, head});
    if (spec.beta == Beta::Kind::kLogit) {
      strength = 0.5 * (1 + std::tanh(0.5 * beta.get({token, head})));
    }
    in.log_alpha.push_back(log_alpha);
    in.beta.push_back(strength);
  }
  in.S0.assign(at(spec.K * spec.V), 0.0);
  if (spec.fresh.contains(row)) return in;
  for (std::int64_t i = 0; i < spec.K; ++i) {
    for (std::int64_t j = 0; j < spec.V; ++j) {
      in.S0[at(i * spec.V + j)] = state.get(state_index(spec.layout, {slot(row)}, head, i, j));
    }
  }
  return in;
}

template <class Params>
void Case::set_common(Params& params) const {
  params.gate = {spec.gate, gate.view(), A_log.view(), dt_bias.view()};
  params.beta = {spec.beta, beta.view()};
  params.state = state.view();
  params.read_slots = read_slots.view();
  params.layout = spec.layout;
  params.scale = spec.scale;
  params.l2norm = spec.l2norm;
  params.impl = implementation_under_test();
}

gdn::PrefillParams Case::prefill() const {
  gdn::PrefillParams params;
  params.q = q.view();
  params.k = k.view();
  params.v = v.view();
  params.out = out.view();
  params.cu_seqlens = cu_seqlens.view();
  set_common(params);
  return params;
}

gdn::MtpParams Case::mtp() const {
  gdn::MtpParams params;
  params.q = q.view();
  params.k = k.view();
  params.v = v.view();
  params.out = out.view();
  params.cu_seqlens = cu_seqlens.view();
  params.update_state = true;
  set_common(params);
  return params;
}

gdn::MtpParams Case::uniform() const {
  gdn::MtpParams params = mtp();
  const std::int64_t T = rows == 0 ? 1 : length(0);
  for (TensorView* view :
       {&params.q, &params.k, &params.v, &params.out, &params.gate.value, &params.beta.value}) {
    if (view->present()) *view = view->slice(0, 0, rows * T).split(0, T);
  }
  params.cu_seqlens = {};
  return params;
}

gdn::DecodeParams Case::decode(std::int64_t t) const {
  const gdn::MtpParams all = uniform();
  gdn::DecodeParams params;
  set_common(params);
  const auto token = [&](const TensorView& view) {
    return view.present() ? view.select(1, t) : view;
  };
  params.q = token(all.q);
  params.k = token(all.k);
  params.v = token(all.v);
  params.out = token(all.out);
  params.gate.value = token(all.gate.value);
  params.beta.value = token(all.beta.value);
  return params;
}

Results Case::results(const std::function<HeadResult(const HeadInput&)>& oracle) const {
  Results results;
  for (const auto& row : inputs) {
    results.emplace_back();
    for (const HeadInput& head : row) results.back().push_back(oracle(head));
  }
  return results;
}

double Case::magnitude(const Results& results, std::int64_t row, std::int64_t head) const {
  const HeadInput& in = inputs[at(row)][at(head)];
  const HeadResult& result = results[at(row)][at(head)];
  double values = std::max(largest(in.v), largest(result.o));
  for (const auto& [tokens, S] : result.states) values = std::max(values, largest(S));
  return values * std::max(1.0, largest(in.q)) * std::max(1.0, largest(in.k));
}

void Case::expect_out(Expectation& expected, const Results& results, double relative) const {
  for (std::int64_t row = 0; row < rows; ++row) {
    if (padding(row)) continue;
    for (std::int64_t head = 0; head < heads; ++head) {
      const double slack = attainable(relative) * magnitude(results, row, head);
      for_each_index({length(row), spec.V}, [&](const Index& i) {
        expected.element({start(row) + i[0], head, i[1]},
                         results[at(row)][at(head)].o[at(i[0] * spec.V + i[1])], slack);
      });
    }
  }
}

void Case::expect_state(Expectation& expected, const Index& prefix, const Results& results,
                        std::int64_t row, std::int64_t tokens, double relative) const {
  for (std::int64_t head = 0; head < heads; ++head) {
    const double slack = attainable(relative) * magnitude(results, row, head);
    const Matrix& S = results[at(row)][at(head)].states.at(tokens);
    for_each_index({spec.K, spec.V}, [&](const Index& i) {
      expected.element(state_index(spec.layout, prefix, head, i[0], i[1]),
                       S[at(i[0] * spec.V + i[1])], slack);
    });
  }
}

void Case::expect_final(Expectation& expected, const Results& results, double relative) const {
  for (std::int64_t row = 0; row < rows; ++row) {
    if (!padding(row)) expect_state(expected, {slot(row)}, results, row, length(row), relative);
  }
}

Packed::Packed(const Case& p, std::int64_t channel_stride, std::int64_t row_gap) {
  const std::int64_t channels = 2 * p.spec.Hk * p.spec.K + p.spec.HV * p.spec.V;
  qkv = Tensor::strided(p.spec.io, {p.total, channels},
                        {channels * channel_stride + row_gap, channel_stride});
  out = Tensor::strided(p.spec.io, {p.total, p.spec.HV * p.spec.V},
                        {p.spec.HV * p.spec.V * channel_stride + row_gap, channel_stride});
  for (std::int64_t row = 0; row < p.rows; ++row) {
    if (p.padding(row)) continue;
    for (std::int64_t t = p.start(row); t < p.start(row) + p.length(row); ++t) {
      std::int64_t channel = 0;
      for (const Tensor* part : {&p.q, &p.k, &p.v}) {
        for_each_index({part->shape()[1], part->shape()[2]}, [&](const Index& i) {
          qkv.set({t, channel++}, part->get({t, i[0], i[1]}));
        });
      }
    }
  }
}

gdn::RecurrenceParams Packed::params(const Case& p) const {
  const gdn::PrefillParams other = p.prefill();
  gdn::RecurrenceParams params;
  params.qkv = qkv.view();
  params.out = out.view();
  params.state = other.state;
  params.key_heads = p.spec.Hk;
  params.value_heads = p.spec.HV;
  params.key_dim = p.spec.K;
  params.value_dim = p.spec.V;
  params.cu_seqlens = other.cu_seqlens;
  params.gate = other.gate;
  params.beta = other.beta;
  params.read_slots = other.read_slots;
  params.layout = other.layout;
  params.scale = other.scale;
  params.l2norm = other.l2norm;
  params.impl = other.impl;
  return params;
}

void Packed::expect_out(Expectation& expected, const Case& p, const Results& results,
                        double relative) const {
  for (std::int64_t row = 0; row < p.rows; ++row) {
    if (p.padding(row)) continue;
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const double slack = p.attainable(relative) * p.magnitude(results, row, head);
      for_each_index({p.length(row), p.spec.V}, [&](const Index& i) {
        expected.element({p.start(row) + i[0], head * p.spec.V + i[1]},
                         results[at(row)][at(head)].o[at(i[0] * p.spec.V + i[1])], slack);
      });
    }
  }
}

}  // namespace hyla::gdn_test
