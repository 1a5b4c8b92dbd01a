// Cases small enough to compute on paper; every expected number is derived beside it. K = V = 8 and
// all entries not set are zero. S[k][v] is the state of key row k and value column v.
#include <gtest/gtest.h>
#include <hyla/gdn.h>

#include <cmath>
#include <limits>

#include "ops/support/gdn_case.h"

namespace hyla::gdn_test {
namespace {

using gdn::Beta;
using gdn::Gate;
using gdn::StateLayout;

constexpr std::int64_t kDim = 8;

Tensor zeros(Index shape) {
  Tensor tensor(DType::kFloat32, std::move(shape), 1);
  for_each_index(tensor.shape(), [&](const Index& i) { tensor.set(i, 0); });
  return tensor;
}

// One row of T tokens, one head unless said otherwise, scale 1, no norm, zero state.
struct Hand {
  explicit Hand(std::int64_t T = 1, std::int64_t H = 1, std::int64_t HV = 1,
                StateLayout state_layout = StateLayout::kVK)
      : q(zeros({T, H, kDim})),
        k(zeros({T, H, kDim})),
        v(zeros({T, HV, kDim})),
        out(DType::kFloat32, {T, HV, kDim}),
        gate(zeros({T, HV})),
        beta(zeros({T, HV})),
        A_log(zeros({HV})),
        dt_bias(zeros({HV})),
        state(zeros({1, HV, kDim, kDim})),
        layout(state_layout) {}

  Tensor q, k, v, out, gate, beta, A_log, dt_bias, state;
  StateLayout layout;
  Gate::Kind gate_kind = Gate::Kind::kNone;
  Beta::Kind beta_kind = Beta::Kind::kNone;
  std::optional<double> scale = 1.0;
  bool l2norm = false;
  double l2norm_eps = 1e-6;

  void put(std::int64_t key, std::int64_t value, double x, std::int64_t head = 0) {
    state.set(state_index(layout, {0}, head, key, value), x);
  }
  double S(std::int64_t key, std::int64_t value, std::int64_t head = 0) const {
    return state.get(state_index(layout, {0}, head, key, value));
  }
  double o(std::int64_t t, std::int64_t value, std::int64_t head = 0) const {
    return out.get({t, head, value});
  }

  template <class Params>
  void fill(Params& params) const {
    params.q = q.view();
    params.k = k.view();
    params.v = v.view();
    params.out = out.view();
    params.state = state.view();
    if (gate_kind != Gate::Kind::kNone) params.gate = {gate_kind, gate.view(), {}, {}};
    if (gate_kind == Gate::Kind::kRaw) {
      params.gate.A_log = A_log.view();
      params.gate.dt_bias = dt_bias.view();
    }
    if (beta_kind != Beta::Kind::kNone) params.beta = {beta_kind, beta.view()};
    params.layout = layout;
    params.scale = scale;
    params.l2norm = l2norm;
    params.l2norm_eps = l2norm_eps;
    params.impl = implementation_under_test();
  }
  void decode() const {
    gdn::DecodeParams params;
    fill(params);
    gdn::decode(params);
  }
  void mtp() const {
    const Tensor offsets = Tensor::of_indices(DType::kInt64, {0, q.shape()[0]});
    gdn::MtpParams params;
    fill(params);
    params.cu_seqlens = offsets.view();
    params.update_state = true;
    gdn::mtp(params);
  }
  void prefill() const {
    const Tensor offsets = Tensor::of_indices(DType::kUInt32, {0, q.shape()[0]});
    gdn::PrefillParams params;
    fill(params);
    params.cu_seqlens = offsets.view();
    gdn::prefill(params);
  }
};

// S = [[4], [2]] (column 0), alpha = beta = scale = 1/2, k = (1, 2), v = (10, 3), q = (2, 1).
Hand first_token(std::int64_t T, StateLayout layout) {
  Hand h(T, 1, 1, layout);
  h.gate_kind = Gate::Kind::kLinear;
  h.beta_kind = Beta::Kind::kProbability;
  h.scale = 0.5;
  h.put(0, 0, 4);
  h.put(1, 0, 2);
  h.gate.set({0, 0}, 0.5);
  h.beta.set({0, 0}, 0.5);
  h.k.set({0, 0, 0}, 1);
  h.k.set({0, 0, 1}, 2);
  h.v.set({0, 0, 0}, 10);
  h.v.set({0, 0, 1}, 3);
  h.q.set({0, 0, 0}, 2);
  h.q.set({0, 0, 1}, 1);
  return h;
}

// Adds alpha = 1/2, beta = 2, k = (0, 1), v = (1, 0), q = (1, 0).
Hand two_tokens(StateLayout layout) {
  Hand h = first_token(2, layout);
  h.gate.set({1, 0}, 0.5);
  h.beta.set({1, 0}, 2);
  h.k.set({1, 0, 1}, 1);
  h.v.set({1, 0, 0}, 1);
  h.q.set({1, 0, 0}, 1);
  return h;
}

class GdnByHand : public ::testing::TestWithParam<StateLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, GdnByHand, ::testing::Values(StateLayout::kKV, StateLayout::kVK),
                         [](const auto& layout) {
                           return layout.param == StateLayout::kKV ? "KV" : "VK";
                         });

TEST_P(GdnByHand, OneToken) {
  Hand h = first_token(1, GetParam());
  h.decode();
  // decayed: S = [[2, 0], [1, 0]];  k^T S = (1*2 + 2*1, 0) = (4, 0)
  // delta = 1/2 ((10, 3) - (4, 0)) = (3, 1.5)
  // S = [[2 + 1*3, 0 + 1*1.5], [1 + 2*3, 0 + 2*1.5]]
  EXPECT_EQ(h.S(0, 0), 5);
  EXPECT_EQ(h.S(0, 1), 1.5);
  EXPECT_EQ(h.S(1, 0), 7);
  EXPECT_EQ(h.S(1, 1), 3);
  EXPECT_EQ(h.S(2, 0), 0);
  EXPECT_EQ(h.S(0, 2), 0);
  // o = 1/2 (2*5 + 1*7, 2*1.5 + 1*3)
  EXPECT_EQ(h.o(0, 0), 8.5);
  EXPECT_EQ(h.o(0, 1), 3);
  EXPECT_EQ(h.o(0, 2), 0);
}

TEST_P(GdnByHand, TwoTokens) {
  const auto check = [](const Hand& h) {
    EXPECT_EQ(h.o(0, 0), 8.5);  // as above
    EXPECT_EQ(h.o(0, 1), 3);
    // decayed: S = [[2.5, .75], [3.5, 1.5]];  k^T S = (3.5, 1.5)
    // delta = 2 ((1, 0) - (3.5, 1.5)) = (-5, -3);  only row 1 of S gets it: (-1.5, -1.5)
    EXPECT_EQ(h.S(0, 0), 2.5);
    EXPECT_EQ(h.S(0, 1), 0.75);
    EXPECT_EQ(h.S(1, 0), -1.5);
    EXPECT_EQ(h.S(1, 1), -1.5);
    // o = 1/2 (2.5, .75)
    EXPECT_EQ(h.o(1, 0), 1.25);
    EXPECT_EQ(h.o(1, 1), 0.375);
  };
  Hand h = two_tokens(GetParam());
  h.mtp();
  check(h);
  h = two_tokens(GetParam());
  h.prefill();
  check(h);
}

TEST_P(GdnByHand, LayoutIsWhereTheStateLies) {
  Hand h(1, 1, 1, GetParam());
  h.k.set({0, 0, 2}, 1);
  h.v.set({0, 0, 5}, 7);
  h.decode();
  // S = k v^T has one entry, at key 2 and value 5: element 2*8+5 of K x V, 5*8+2 of V x K. The rows
  // of this pool are 9 elements apart.
  const auto* pool = static_cast<const float*>(h.state.view().data);
  EXPECT_EQ(pool[GetParam() == StateLayout::kKV ? 2 * 9 + 5 : 5 * 9 + 2], 7);
}

// A state of 8 at S[0][0] and a key that does not touch it: what is left of it is alpha.
double decayed(const std::function<void(Hand&)>& set_gate) {
  Hand h;
  h.put(0, 0, 8);
  h.k.set({0, 0, 1}, 1);
  h.v.set({0, 0, 3}, 2);
  h.q.set({0, 0, 0}, 1);
  set_gate(h);
  h.decode();
  EXPECT_EQ(h.S(1, 3), 2);  // the new association, whatever the gate
  EXPECT_EQ(h.o(0, 0), h.S(0, 0));
  return h.S(0, 0) / 8;
}

TEST(GdnGate, Absent) {
  EXPECT_EQ(decayed([](Hand&) {}), 1);
}

TEST(GdnGate, Linear) {
  for (double alpha : {0.0, 0.25, 1.0}) {
    EXPECT_EQ(decayed([&](Hand& h) {
                h.gate_kind = Gate::Kind::kLinear;
                h.gate.set({0, 0}, alpha);
              }),
              alpha);
  }
}

TEST(GdnGate, Log) {
  const auto log_gate = [](double value) {
    return decayed([&](Hand& h) {
      h.gate_kind = Gate::Kind::kLog;
      h.gate.set({0, 0}, value);
    });
  };
  EXPECT_EQ(log_gate(-std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(log_gate(0), 1);
  EXPECT_EQ(log_gate(-1), static_cast<double>(static_cast<float>(8 * std::exp(-1.0))) / 8);
}

TEST(GdnGate, Raw) {
  const auto raw_gate = [](double a, double dt_bias, double A_log) {
    return decayed([&](Hand& h) {
      h.gate_kind = Gate::Kind::kRaw;
      h.gate.set({0, 0}, a);
      h.dt_bias.set({0}, dt_bias);
      h.A_log.set({0}, A_log);
    });
  };
  // softplus(3 - 3) = ln 2, exp(0) = 1: alpha = exp(-ln 2)
  EXPECT_EQ(raw_gate(3, -3, 0), 0.5);
  // softplus(1000) = 1000 though exp(1000) is infinite: alpha = exp(-1000) is 0 in float32
  EXPECT_EQ(raw_gate(1000, 0, 0), 0);
  // The same beyond the range of float64: exp(-10) * softplus(800) = 0.0363199: alpha = 0.964332
  EXPECT_NEAR(raw_gate(800, 0, -10), 0.964332, 1e-6);
  // softplus(-1000) = exp(-1000): alpha = 1
  EXPECT_EQ(raw_gate(-1000, 0, 0), 1);
  // exp(-1) * softplus(2 - 1) = 0.36788 * ln(1 + e) = 0.36788 * 1.31326 = 0.483123:
  // alpha = 0.616854
  EXPECT_NEAR(raw_gate(2, -1, -1), 0.616854, 1e-6);
  // An infinite `a` wipes, its negative keeps.
  EXPECT_EQ(raw_gate(std::numeric_limits<double>::infinity(), 0, 0), 0);
  EXPECT_EQ(raw_gate(-std::numeric_limits<double>::infinity(), 0, 0), 1);
}

// S[0][0] = 6, k = e0, v = 2: the new S[0][0] is 6 + beta (2 - 6).
double updated(Beta::Kind kind, double value) {
  Hand h;
  h.put(0, 0, 6);
  h.k.set({0, 0, 0}, 1);
  h.v.set({0, 0, 0}, 2);
  h.beta_kind = kind;
  h.beta.set({0, 0}, value);
  h.decode();
  return h.S(0, 0);
}

TEST(GdnBeta, AllKinds) {
  EXPECT_EQ(updated(Beta::Kind::kNone, 0), 2);            // beta = 1: forgets the old value
  EXPECT_EQ(updated(Beta::Kind::kProbability, 0), 6);     // nothing happens
  EXPECT_EQ(updated(Beta::Kind::kProbability, 0.25), 5);  // 6 - 1
  EXPECT_EQ(updated(Beta::Kind::kProbability, 1), 2);
  EXPECT_EQ(updated(Beta::Kind::kProbability, 2), -2);  // 6 - 8: a reflection
  EXPECT_EQ(updated(Beta::Kind::kLogit, 0), 4);         // sigmoid(0) = 1/2: 6 - 2
  EXPECT_EQ(updated(Beta::Kind::kLogit, 1000), 2);
  EXPECT_EQ(updated(Beta::Kind::kLogit, -1000), 6);
}

TEST(GdnScale, ZeroIsZeroAndAbsentIsOneOverRootK) {
  const auto output = [](std::optional<double> scale) {
    Hand h;
    h.put(0, 0, 3);
    h.q.set({0, 0, 0}, 1);
    h.scale = scale;
    h.decode();
    EXPECT_EQ(h.S(0, 0), 3);  // the scale is the output's alone
    return h.o(0, 0);
  };
  EXPECT_EQ(output(0.0), 0);
  EXPECT_EQ(output(-2.0), -6);
  EXPECT_EQ(output(std::nullopt), static_cast<double>(static_cast<float>(3 / std::sqrt(8.0))));
}

TEST(GdnL2Norm, EpsilonIsAddedToTheSumInsideTheRoot) {
  Hand h;
  h.l2norm = true;
  h.l2norm_eps = 11;
  h.k.set({0, 0, 0}, 3);  // 9 + 16 + 11 = 36: k becomes (1/2, 2/3)
  h.k.set({0, 0, 1}, 4);
  h.q.set({0, 0, 0}, 4);  // and q (2/3, 1/2)
  h.q.set({0, 0, 1}, 3);
  h.v.set({0, 0, 0}, 6);
  h.decode();
  EXPECT_EQ(h.S(0, 0), 3);
  EXPECT_EQ(h.S(1, 0), 4);
  EXPECT_EQ(h.o(0, 0), 4);  // 2/3 * 3 + 1/2 * 4
}

TEST(GdnRounding, OnceNotTwice) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    // u: half an ulp of the dtype above 1, so that 1 + u is a tie.
    const double u = dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
    const double tiny = dtype == DType::kBFloat16 ? 0x1p-39 : 0x1p-24;
    Hand h;
    h.state = Tensor(dtype, {1, 1, kDim, kDim});
    for_each_index(h.state.shape(), [&](const Index& i) { h.state.set(i, 0); });
    h.put(0, 0, tiny);
    h.k.set({0, 0, 0}, 1);
    h.v.set({0, 0, 0}, 2 + 2 * u);
    h.beta_kind = Beta::Kind::kProbability;
    h.beta.set({0, 0}, 0.5);
    h.decode();
    // S = tiny + 1/2 (2 + 2u - tiny) = 1 + u + tiny/2, a hair above the tie: up. By way of float32
    // the hair is lost and the tie goes to the even neighbour, 1.
    EXPECT_EQ(h.S(0, 0), 1 + 2 * u);
  }
}

TEST(GdnHeads, ValueHeadsShareTheKeyHeadBeforeThem) {
  Hand h(1, 2, 4);  // GVA: value heads 0, 1 use key head 0; 2, 3 use key head 1
  for (std::int64_t head = 0; head < 2; ++head) {
    h.k.set({0, head, head}, 1);  // key head h is e_h
    h.q.set({0, head, head}, 10 * static_cast<double>(head + 1));
  }
  for (std::int64_t head = 0; head < 4; ++head) {
    h.v.set({0, head, 0}, static_cast<double>(head + 1));
  }
  h.decode();
  for (std::int64_t head = 0; head < 4; ++head) {
    const std::int64_t key = head / 2;
    EXPECT_EQ(h.S(key, 0, head), head + 1);
    EXPECT_EQ(h.S(1 - key, 0, head), 0);
    EXPECT_EQ(h.o(0, 0, head), 10 * (key + 1) * (head + 1));
  }
}

TEST(GdnHeads, PrefillQueryHeadsShareTheKeyAndValueHeadBeforeThem) {
  Hand h(1, 4, 4);  // GQA: q heads 0, 1 use k and v head 0; 2, 3 use head 1. Four states.
  h.k = zeros({1, 2, kDim});
  h.v = zeros({1, 2, kDim});
  for (std::int64_t head = 0; head < 2; ++head) {
    h.k.set({0, head, head}, 1);
    h.v.set({0, head, 0}, static_cast<double>(head + 1));
  }
  for (std::int64_t head = 0; head < 4; ++head) {
    h.q.set({0, head, head / 2}, static_cast<double>(head + 5));
  }
  h.prefill();
  for (std::int64_t head = 0; head < 4; ++head) {
    EXPECT_EQ(h.S(head / 2, 0, head), head / 2 + 1);
    EXPECT_EQ(h.S(1 - head / 2, 0, head), 0);
    EXPECT_EQ(h.o(0, 0, head), (head + 5) * (head / 2 + 1));
  }
}

}  // namespace
}  // namespace hyla::gdn_test
