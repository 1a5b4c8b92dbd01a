// gdn::decode: slots, views of one packed projection, and the fused norm of decode and MTP.
#include <gtest/gtest.h>
#include <hyla/gdn.h>

#include <cmath>

#include "ops/support/gdn_case.h"

namespace hyla::gdn_test {
namespace {

using gdn::DecodeParams;
using gdn::StateLayout;

void run(const Case& p, const DecodeParams& params,
         const std::function<void(Expectation&, const Results&)>& pool) {
  const Results results = p.results(dense);
  Expectation out(p.out, "out"), state(p.state, "state");
  p.expect_out(out, results);
  pool(state, results);
  gdn::decode(params);
  out.check();
  state.check();
}

TEST(GdnDecode, DtypesAndLayouts) {
  std::uint64_t seed = 0;
  for (DType io : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (DType state : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (StateLayout layout : {StateLayout::kKV, StateLayout::kVK}) {
        for (DType indices : {DType::kInt32, DType::kInt64}) {
          Spec spec{.lengths = {1, 1, 1}, .padding = {1}, .io = io, .state = state, .gates = io};
          spec.layout = layout;
          spec.indices = indices;
          spec.gate = gdn::Gate::Kind::kRaw;
          spec.beta = gdn::Beta::Kind::kLogit;
          spec.seed = ++seed;
          const Case p(spec);
          run(p, p.decode(),
              [&](Expectation& pool, const Results& results) { p.expect_final(pool, results); });
        }
      }
    }
  }
}

TEST(GdnDecode, HeadDims) {
  for (std::int64_t K : {8, 40, 64, 128, 256}) {
    for (std::int64_t V : {8, 96, 256}) {
      const Case p({.lengths = {1}, .Hq = 1, .Hk = 1, .HV = 2, .K = K, .V = V});
      run(p, p.decode(),
          [&](Expectation& pool, const Results& results) { p.expect_final(pool, results); });
    }
  }
}

TEST(GdnDecode, TheTokenDimensionMayBeThere) {
  const Case p({.lengths = {1, 1}});
  DecodeParams params = p.decode();
  for (TensorView* view :
       {&params.q, &params.k, &params.v, &params.out, &params.gate.value, &params.beta.value}) {
    *view = view->split(0, 1);  // [B, ...] -> [B, 1, ...]
  }
  run(p, params, [&](Expectation& pool, const Results& results) { p.expect_final(pool, results); });
}

TEST(GdnDecode, AbsentReadSlotsAreRowNumbers) {
  const Case p({.lengths = {1, 1, 1}, .read = {0, 1, 2}, .slots = 5});
  DecodeParams params = p.decode();
  params.read_slots = {};
  run(p, params, [&](Expectation& pool, const Results& results) { p.expect_final(pool, results); });
}

TEST(GdnDecode, SeveralRowsMayReadOneSlot) {
  // Row 2 was filled last, so its state is what slot 0 holds.
  Case p({.lengths = {1, 1, 1}, .read = {0, 0, 0}, .slots = 6});
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t head = 0; head < p.inputs[row].size(); ++head) {
      p.inputs[row][head].S0 = p.inputs[2][head].S0;
    }
  }
  const Tensor write = Tensor::of_indices(DType::kInt32, Index{3, -1, 5});
  DecodeParams params = p.decode();
  params.write_slots = write.view();
  run(p, params, [&](Expectation& pool, const Results& results) {
    p.expect_state(pool, {3}, results, 0, 1);
    p.expect_state(pool, {5}, results, 2, 1);
  });
}

TEST(GdnDecode, FirstSlotAndColumns) {
  const Case p({.lengths = {1, 1, 1}, .padding = {1}, .read = {4, 2, 3}, .slots = 8});
  const Tensor table =
      Tensor::of_table(DType::kInt64, {Index{99999, 4}, Index{2, 99999}, Index{99999, 3}});
  const Tensor columns = Tensor::of_indices(DType::kUInt32, Index{1, 0, 4000000000});
  const Tensor write = Tensor::of_indices(DType::kInt32, Index{6, 99999, 2});  // 2 < 3: null
  DecodeParams params = p.decode();
  params.first_slot = 3;
  params.read_slots = table.view();
  params.read_columns = columns.view();
  params.write_slots = write.view();
  run(p, params,
      [&](Expectation& pool, const Results& results) { p.expect_state(pool, {6}, results, 0, 1); });
}

// q, k, v, a and b as slices of the rows of one projection, the output into a slice of another.
TEST(GdnDecode, SlicesOfOnePackedProjection) {
  const Case p({.lengths = {1, 1, 1}, .Hq = 2, .Hk = 2, .HV = 4});
  const std::int64_t qk = 2 * 16, width = 2 * qk + 4 * 24 + 4 + 4;
  Tensor packed(DType::kFloat32, {p.rows, width}, 5);
  for (std::int64_t row = 0; row < p.rows; ++row) {
    std::int64_t column = 0;
    for (const Tensor* part : {&p.q, &p.k, &p.v}) {
      for_each_index({part->shape()[1], part->shape()[2]}, [&](const Index& i) {
        packed.set({row, column++}, part->get({row, i[0], i[1]}));
      });
    }
    for (const Tensor* part : {&p.gate, &p.beta}) {
      for (std::int64_t head = 0; head < 4; ++head) {
        packed.set({row, column++}, part->get({row, head}));
      }
    }
  }
  const TensorView rows = packed.view();
  DecodeParams params = p.decode();
  params.q = rows.slice(1, 0, qk).split(1, 16);
  params.k = rows.slice(1, qk, qk).split(1, 16);
  params.v = rows.slice(1, 2 * qk, 4 * 24).split(1, 24);
  params.gate.value = rows.slice(1, 2 * qk + 4 * 24, 4);
  params.beta.value = rows.slice(1, 2 * qk + 4 * 24 + 4, 4);
  Expectation unchanged(packed, "packed");
  run(p, params, [&](Expectation& pool, const Results& results) { p.expect_final(pool, results); });
  unchanged.check();
}

// The output may even be the slice of the same rows that nobody reads.
TEST(GdnDecode, OutputBesideTheInputsInOnePackedRow) {
  const Case p({.lengths = {1, 1, 1}, .Hq = 1, .Hk = 1, .HV = 1, .K = 8, .V = 8});
  Tensor packed(DType::kFloat32, {p.rows, 16}, 3);  // v | out
  for_each_index({p.rows, 8}, [&](const Index& i) { packed.set(i, p.v.get({i[0], 0, i[1]})); });
  DecodeParams params = p.decode();
  params.v = packed.view().slice(1, 0, 8).split(1, 8);
  params.out = packed.view().slice(1, 8, 8).split(1, 8);
  const Results results = p.results(dense);
  Expectation expected(packed, "packed");
  for_each_index({p.rows, 8}, [&](const Index& i) {
    expected.element({i[0], 8 + i[1]},
                     results[static_cast<std::size_t>(i[0])][0].o[static_cast<std::size_t>(i[1])],
                     kReassociation * p.magnitude(results, i[0], 0));
  });
  gdn::decode(params);
  expected.check();
}

// The first call of docs/gdn.md, word for word.
TEST(GdnDecode, FirstCallOfThePage) {
  constexpr std::int64_t B = 2, H = 1, HV = 2, K = 8, V = 16, slots = 3;
  std::vector<float> keys(B * H * K, 1.0f), values(B * HV * V, 2.0f), outputs(B * HV * V);
  std::vector<float> states(slots * HV * V * K), gates(B * HV), parameters(HV);
  const float *q = keys.data(), *k = q, *v = values.data(), *a = gates.data(), *b = a;
  const float *A_log = parameters.data(), *dt_bias = A_log;
  float *out = outputs.data(), *pool = states.data();
  const std::int32_t slot_of_row[B] = {2, 0};

  hyla::gdn::DecodeParams p;
  p.q = {q, {B, H, K}};
  p.k = {k, {B, H, K}};
  p.v = {v, {B, HV, V}};
  p.out = {out, {B, HV, V}};
  p.state = {pool, {slots, HV, V, K}};
  p.gate = hyla::gdn::Gate::raw({a, {B, HV}}, {A_log, {HV}}, {dt_bias, {HV}});
  p.beta = hyla::gdn::Beta::logit({b, {B, HV}});
  p.read_slots = {slot_of_row, {B}};
  p.l2norm = true;
  hyla::gdn::decode(p);
  // k = q = 1/sqrt(8) each (eps aside), beta = 1/2: S = k v / 2, o = |q|^2 v / 2 / sqrt(8)
  for (float o : outputs) EXPECT_NEAR(o, 1 / std::sqrt(8.0), 1e-6);
}

// o * rsqrt(mean(o^2) + eps) * weight * activation(z) of the oracle's outputs, before any rounding.
void normalise(Results& results, const Case& p, const Tensor& z, const Tensor& weight, double eps,
               norm::Activation gate) {
  for (std::int64_t row = 0; row < p.rows; ++row) {
    if (p.padding(row)) continue;
    for (std::int64_t head = 0; head < p.heads; ++head) {
      Matrix& o = results[static_cast<std::size_t>(row)][static_cast<std::size_t>(head)].o;
      for (std::int64_t t = 0; t < p.length(row); ++t) {
        double* x = o.data() + t * p.spec.V;
        double mean = 0;
        for (std::int64_t j = 0; j < p.spec.V; ++j) {
          mean += x[j] * x[j] / static_cast<double>(p.spec.V);
        }
        for (std::int64_t j = 0; j < p.spec.V; ++j) {
          const double zj = z.get({p.start(row) + t, head, j});
          const double sigmoid = 1 / (1 + std::exp(-zj));
          x[j] *= weight.get({j}) / std::sqrt(mean + eps) *
                  (gate == norm::Activation::kSilu ? zj * sigmoid : sigmoid);
        }
      }
    }
  }
}

TEST(GdnFusedNorm, IsTheNormOfTheUnroundedOutput) {
  for (norm::Activation gate : {norm::Activation::kSilu, norm::Activation::kSigmoid}) {
    for (bool decode : {true, false}) {
      for (DType other : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        Spec spec{.lengths = decode ? Index{1, 1, 1} : Index{3, 3, 3}, .padding = {1}};
        spec.io = DType::kBFloat16;
        const Case p(spec);
        Random random(3);
        Tensor z(other, {p.total, p.heads, spec.V}, 2),
            weight = Tensor::strided(other, {spec.V}, {2});
        weight.fill(random, 0.5, 2);
        for (std::int64_t row : {0, 2}) {
          for_each_index({p.length(row), p.heads, spec.V}, [&](Index i) {
            i[0] += p.start(row);
            z.set(i, random.uniform(-3, 3));
          });
        }
        Results results = p.results(dense);
        normalise(results, p, z, weight, 0.01, gate);
        Expectation out(p.out, "out"), state(p.state, "state");
        // eps = 0.01 bounds the factor by 10, weight and activation by 2 and 3.
        p.expect_out(out, results, 60 * kReassociation);
        p.expect_final(state, results);
        norm::GatedNorm epilogue;
        epilogue.weight = weight.view();
        epilogue.eps = 0.01;
        epilogue.gate = gate;
        if (decode) {
          DecodeParams params = p.decode();
          epilogue.z = z.view().slice(0, 0, 3);
          params.norm = epilogue;
          gdn::decode(params);
        } else {
          gdn::MtpParams params = p.mtp();
          epilogue.z = z.view();
          params.norm = epilogue;
          gdn::mtp(params);
        }
        out.check();
        state.check();
      }
    }
  }
}

}  // namespace
}  // namespace hyla::gdn_test
