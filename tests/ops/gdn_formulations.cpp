// The same mathematics written differently: the reference must agree with the dense, the expanded
// and the chunked WY form on random ragged problems, and its four operations with each other.
#include <gtest/gtest.h>
#include <hyla/gdn.h>

#include <cmath>

#include "ops/support/gdn_case.h"
#include "problem/gdn_prefill.h"
#include "reference/gdn_head.h"

namespace hyla::gdn_test {
namespace {

using gdn::Beta;
using gdn::Gate;
using gdn::StateLayout;

// Forward substitution over up to 64 tokens amplifies float64 rounding; with normalised keys and
// beta <= 1 by less than this.
constexpr double kWy = 1e-9;

void check_prefill(const Case& p, const Results& results, double relative) {
  Expectation out(p.out, "out"), state(p.state, "state");
  p.expect_out(out, results, relative);
  p.expect_final(state, results, relative);
  gdn::prefill(p.prefill());
  out.check();
  state.check();
}

TEST(GdnFormulations, OraclesAgreeWithEachOther) {
  const Case p(Spec{.lengths = {12, 1, 9}, .K = 8, .V = 8});
  const Results a = p.results(dense), b = p.results(expanded);
  const Results c = p.results([](const HeadInput& h) { return wy(h, every(5, h.T)); });
  for (std::size_t row = 0; row < a.size(); ++row) {
    for (std::size_t head = 0; head < a[row].size(); ++head) {
      for (std::size_t i = 0; i < a[row][head].o.size(); ++i) {
        EXPECT_NEAR(a[row][head].o[i], b[row][head].o[i], 1e-13);
        EXPECT_NEAR(a[row][head].o[i], c[row][head].o[i], 1e-13);
      }
    }
  }
}

TEST(GdnFormulations, PrefillIsTheExpandedProduct) {
  for (Gate::Kind gate :
       {Gate::Kind::kNone, Gate::Kind::kLinear, Gate::Kind::kLog, Gate::Kind::kRaw}) {
    for (Beta::Kind beta : {Beta::Kind::kNone, Beta::Kind::kProbability, Beta::Kind::kLogit}) {
      for (bool l2norm : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "gate " << static_cast<int>(gate) << " beta "
                                          << static_cast<int>(beta) << " l2norm " << l2norm);
        Spec spec{.lengths = {7, 0, 10, 1}, .K = 8, .V = 16, .gate = gate, .beta = beta};
        spec.l2norm = l2norm;
        spec.layout = l2norm ? StateLayout::kKV : StateLayout::kVK;
        spec.seed = 10 + static_cast<std::uint64_t>(gate) * 7 + static_cast<std::uint64_t>(beta);
        const Case p(spec);
        check_prefill(p, p.results(expanded), kReassociation);
      }
    }
  }
}

TEST(GdnFormulations, PrefillIsTheChunkedWyForm) {
  for (std::int64_t chunk : {64, 16, 7, 1, 129}) {
    SCOPED_TRACE(::testing::Message() << "chunk " << chunk);
    Spec spec{.lengths = {63, 64, 0, 65, 1, 150}, .HV = 2, .K = 24, .V = 16};
    spec.seed = static_cast<std::uint64_t>(chunk);
    const Case p(spec);
    check_prefill(p, p.results([&](const HeadInput& h) { return wy(h, every(chunk, h.T)); }), kWy);
  }
}

TEST(GdnFormulations, WipesInsideAChunk) {
  Spec spec{.lengths = {70}, .K = 16, .V = 16};
  spec.gate = Gate::Kind::kLinear;
  Case p(spec);
  for (std::int64_t t : {0, 5, 6, 40, 64, 69}) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      p.gate.set({t, head}, 0);
      p.inputs[0][static_cast<std::size_t>(head)].log_alpha[static_cast<std::size_t>(t)] =
          -INFINITY;
    }
  }
  check_prefill(p, p.results([](const HeadInput& h) { return wy(h, every(64, h.T)); }), kWy);
}

TEST(GdnFormulations, BigHeadsInTheChunkedWyForm) {
  for (const auto& [K, V] : {std::pair{128, 128}, std::pair{256, 8}, std::pair{8, 256}}) {
    SCOPED_TRACE(::testing::Message() << "K " << K << " V " << V);
    Spec spec{.lengths = {65, 3}, .Hq = 1, .Hk = 1, .HV = 1, .K = K, .V = V};
    const Case p(spec);
    check_prefill(p, p.results([](const HeadInput& h) { return wy(h, every(64, h.T)); }), kWy);
  }
}

TEST(GdnFormulations, SixteenBitTensorsAreRoundedOnce) {
  for (DType io : {DType::kBFloat16, DType::kFloat16}) {
    for (DType state : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      Spec spec{.lengths = {20, 33}, .io = io, .state = state, .gates = io};
      spec.gate = Gate::Kind::kRaw;
      spec.beta = Beta::Kind::kLogit;
      const Case p(spec);
      check_prefill(p, p.results(dense), kReassociation);
    }
  }
}

TEST(GdnFormulations, GroupedQueriesOfPrefill) {
  Spec spec{.lengths = {9, 4}, .Hq = 6, .Hk = 2, .HV = 2};
  const Case p(spec);
  check_prefill(p, p.results(dense), kReassociation);
}

// The state before it is rounded to its storage type: float64 against float64.
TEST(GdnFormulations, UnroundedStatesAgreeWithTheWyForm) {
  Spec spec{.lengths = {130, 64}, .HV = 2, .K = 32, .V = 16};
  const Case p(spec);
  const gdn::PrefillProblem problem = gdn::validate(p.prefill(), Context{});
  const Results results = p.results([](const HeadInput& h) { return wy(h, every(13, h.T)); });
  reference::for_each_head(problem, [&](std::int64_t row, std::int64_t head, std::int64_t slot) {
    const HeadResult& want = results[static_cast<std::size_t>(row)][static_cast<std::size_t>(head)];
    std::size_t compared = 0;
    reference::run_head(
        problem, row, head, reference::load_state(problem, problem.initial, slot, head),
        [&](std::int64_t tokens, const reference::State& S) {
          const auto found = want.states.find(tokens);
          if (found == want.states.end()) return;
          ++compared;
          for (std::size_t i = 0; i < S.size(); ++i) {
            ASSERT_NEAR(S[i], found->second[i], kWy * p.magnitude(results, row, head));
          }
        });
    EXPECT_EQ(compared, want.states.size());
  });
}

TEST(GdnFormulations, FourOperationsOneMeaning) {
  for (StateLayout layout : {StateLayout::kKV, StateLayout::kVK}) {
    Spec spec{.lengths = {6, 6, 6}, .io = DType::kBFloat16, .layout = layout};
    spec.gate = Gate::Kind::kRaw;
    spec.beta = Beta::Kind::kLogit;
    const auto check = [&](const char* name, const std::function<void(const Case&)>& run) {
      SCOPED_TRACE(name);
      const Case p(spec);
      const Results results = p.results(dense);
      Expectation out(p.out, "out"), state(p.state, "state");
      p.expect_out(out, results);
      p.expect_final(state, results);
      run(p);
      out.check();
      state.check();
    };
    check("prefill", [](const Case& p) { gdn::prefill(p.prefill()); });
    check("ragged mtp", [](const Case& p) { gdn::mtp(p.mtp()); });
    check("uniform mtp", [](const Case& p) { gdn::mtp(p.uniform()); });

    const Case p(spec);
    const Packed packed(p, 1, 0);
    const Results results = p.results(dense);
    Expectation out(packed.out, "packed out"), state(p.state, "state");
    packed.expect_out(out, p, results);
    p.expect_final(state, results);
    gdn::recurrence(packed.params(p));
    out.check();
    state.check();
  }
}

// A cut rounds the state once: each element moves by half an ulp, a column v by at most
// 2^-24 ||S[:, v]||. With normalised keys, beta <= 2 and alpha <= 1 no later token stretches a
// difference, so `cuts` of them move a column by at most cuts * 2^-24 * its largest norm.
double rounding_drift(const HeadResult& result, std::int64_t K, std::int64_t V, double cuts) {
  double norm = 0;
  for (const auto& [tokens, S] : result.states) {
    for (std::int64_t j = 0; j < V; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < K; ++i) {
        const double x = S[static_cast<std::size_t>(i * V + j)];
        sum += x * x;
      }
      norm = std::max(norm, std::sqrt(sum));
    }
  }
  return cuts * 0x1p-24 * norm;
}

void check_cut(const Case& p, const std::function<void()>& run, double cuts) {
  const Results results = p.results(dense);
  double drift = 0, smallest = INFINITY;  // expectations are relative to a head's magnitude
  for (std::int64_t row = 0; row < p.rows; ++row) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const auto r = static_cast<std::size_t>(row), h = static_cast<std::size_t>(head);
      drift = std::max(drift, rounding_drift(results[r][h], p.spec.K, p.spec.V, cuts));
      smallest = std::min(smallest, p.magnitude(results, row, head));
    }
  }
  // |q| <= 1 and scale < 1: an output moves no further than a column.
  Expectation out(p.out, "out"), state(p.state, "state");
  p.expect_out(out, results, drift / smallest + kReassociation);
  p.expect_final(state, results, drift / smallest + kReassociation);
  run();
  out.check();
  state.check();
}

TEST(GdnFormulations, TokenByTokenAgreesUpToTheRoundingOfTheState) {
  const Case p(Spec{.lengths = {40, 40}});
  check_cut(
      p,
      [&] {
        for (std::int64_t t = 0; t < 40; ++t) gdn::decode(p.decode(t));
      },
      40);
}

TEST(GdnFormulations, CutAnywhereAgreesUpToTheRoundingOfTheState) {
  Random random(5);
  for (int trial = 0; trial < 4; ++trial) {
    Spec spec{.lengths = {40, 40}};
    spec.seed = static_cast<std::uint64_t>(trial) + 20;
    const Case p(spec);
    std::vector<std::int64_t> cuts{0, 40};
    for (int i = 0; i < 3; ++i) cuts.push_back(random.integer(0, 40));
    std::sort(cuts.begin(), cuts.end());
    check_cut(
        p,
        [&] {
          for (std::size_t i = 1; i < cuts.size(); ++i) {
            gdn::MtpParams params = p.uniform();
            for (TensorView* view : {&params.q, &params.k, &params.v, &params.out,
                                     &params.gate.value, &params.beta.value}) {
              *view = view->slice(1, cuts[i - 1], cuts[i] - cuts[i - 1]);
            }
            gdn::mtp(params);
          }
        },
        static_cast<double>(cuts.size()));
  }
}

}  // namespace
}  // namespace hyla::gdn_test
