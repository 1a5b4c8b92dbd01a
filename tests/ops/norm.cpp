#include <hyla/norm.h>

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "ops/support/guarded.h"
#include "ops/support/refusal.h"

namespace hyla::tests {
namespace {

using norm::Activation;
using Params = norm::GatedRmsParams;

TEST(GatedRms, ByHand) {
  const std::vector<float> x = {3, 4}, z = {0, 1}, weight = {5, 2};
  std::vector<float> out(2);
  Params params{.x = {x.data(), {1, 2}},
                .z = {z.data(), {1, 2}},
                .weight = {weight.data(), {2}},
                .out = {out.data(), {1, 2}},
                .eps = 3.5};
  // mean = (9 + 16) / 2 = 12.5, rsqrt(12.5 + 3.5) = 1/4; silu(0) = 0, silu(1) = 0.7310586
  norm::gated_rms(params);
  EXPECT_EQ(out[0], 0);
  EXPECT_FLOAT_EQ(out[1], 4 / 4.0f * 2 * 0.7310586f);
  // sigmoid(0) = 1/2, sigmoid(1) = 0.7310586
  params.gate = Activation::kSigmoid;
  norm::gated_rms(params);
  EXPECT_EQ(out[0], 3 / 4.0f * 5 / 2);
  EXPECT_FLOAT_EQ(out[1], 4 / 4.0f * 2 * 0.7310586f);
}

struct Case {
  Sizes shape;
  std::map<std::string, Tensor> tensors;
  Params params;

  explicit Case(Draw& draw) {
    const std::int64_t D = draw.pick<std::int64_t>({1, 2, 7, 64, 128, 300});
    shape =
        draw.chance(0.5) ? Sizes{draw.from(0, 4), D} : Sizes{draw.from(0, 3), draw.from(1, 3), D};
    params.x = add(draw, "x", shape);
    params.z = add(draw, "z", shape);
    params.out = add(draw, "out", shape);
    params.weight = tensors.emplace("weight", Tensor(draw.float_type(), {D}, {draw.from(1, 2)}))
                        .first->second.view();
    for (std::int64_t i = 0; i < D; ++i) tensors.at("weight").set(draw.number(), i);
    const double scale = draw.pick({0.0, 1e-3, 1.0, 100.0});
    for_each([&](const std::array<std::int64_t, 3>& at) {
      tensors.at("x").set(scale * draw.number(), at[0], at[1], at[2]);
      tensors.at("z").set(4 * draw.number(), at[0], at[1], at[2]);
    });
    params.eps = draw.pick({1e-6, 1e-5, 0.1});
    params.gate = draw.pick({Activation::kSilu, Activation::kSigmoid});
  }

  TensorView add(Draw& draw, const char* name, const Sizes& sizes) {
    return tensors.emplace(name, Tensor(draw.float_type(), sizes, draw.strides(sizes, true)))
        .first->second.view();
  }
  template <class Body>
  void for_each(Body&& body) const {
    const std::int64_t last = shape.size() == 3 ? shape[2] : 1;
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      for (std::int64_t j = 0; j < shape[1]; ++j) {
        for (std::int64_t k = 0; k < last; ++k) body(std::array<std::int64_t, 3>{i, j, k});
      }
    }
  }
};

// The root of mean + eps of the vector at `at`, as a hypotenuse, which shares no rounding with a
// sum of squares.
long double root(const Tensor& x, const Case& test, std::array<std::int64_t, 3> at) {
  const std::int64_t D = test.shape.back();
  long double result = std::sqrt(static_cast<long double>(test.params.eps));
  for (std::int64_t d = 0; d < D; ++d) {
    at[test.shape.size() - 1] = d;
    const long double share = x.get(at[0], at[1], at[2]) / std::sqrt(static_cast<long double>(D));
    result = std::hypot(result, share);
  }
  return result;
}

void check(std::uint64_t seed) {
  Draw draw(seed);
  Case test(draw);
  const std::map<std::string, Tensor> before = test.tensors;
  const std::int64_t D = test.shape.back();
  for (const Candidate& candidate : explain(test.params)) {
    if (!candidate.supported) continue;
    SCOPED_TRACE(candidate.implementation);
    for (auto& [name, tensor] : test.tensors) tensor.restore(before.at(name));
    test.params.impl = candidate.implementation.c_str();
    norm::gated_rms(test.params);
    // D positive terms in a row lose at most D roundings; the rest is a dozen operations.
    double slack = static_cast<double>(D + 16) * unit_roundoff(candidate.implementation);
    // Gates of 16-bit results may cost a 128th of what their rounding does (cpu/quick_sigmoid.h).
    const bool quick =
        candidate.implementation.rfind("cpu_", 0) == 0 && test.params.out.dtype != DType::kFloat32;
    if (quick) slack += 0x1p-18;
    Tensor out = test.tensors.at("out"), untouched = before.at("out");
    long double divisor = 0;
    test.for_each([&](const std::array<std::int64_t, 3>& at) {
      const std::int64_t d = at[test.shape.size() - 1];
      if (d == 0) divisor = root(before.at("x"), test, at);
      const long double z = before.at("z").get(at[0], at[1], at[2]);
      const long double sigmoid = 1 / (1 + std::exp(-z));
      const auto want =
          static_cast<double>(static_cast<long double>(before.at("x").get(at[0], at[1], at[2])) /
                              divisor * static_cast<long double>(before.at("weight").get(d)) *
                              (test.params.gate == Activation::kSilu ? z * sigmoid : sigmoid));
      const double got = out.get(at[0], at[1], at[2]);
      EXPECT_LE(std::fabs(got - want),
                half_ulp(test.params.out.dtype, want) + slack * std::fabs(want))
          << "expected " << want << ", got " << got;
      out.set(0, at[0], at[1], at[2]);
      untouched.set(0, at[0], at[1], at[2]);
    });
    EXPECT_TRUE(out.same_memory(untouched)) << "written outside of out";
    for (const char* name : {"x", "z", "weight"}) {
      EXPECT_TRUE(test.tensors.at(name).same_memory(before.at(name))) << name << " was written";
    }
  }
}

TEST(GatedRms, AgreesWithAHypotenuse) {
  for (std::uint64_t seed = 0; seed < 400 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    check(seed);
  }
}

// The bits of a result that has memory of its own.
TEST(GatedRms, OutMayBeX) {
  for (std::uint64_t seed = 0; seed < 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    Case test(draw);
    Tensor& x = test.tensors.at("x");
    const Sizes strides(x.view().strides, x.view().strides + x.view().rank);
    Tensor apart(x.view().dtype, test.shape, strides);
    test.params.out = apart.view();
    norm::gated_rms(test.params);
    test.params.out = x.view();
    norm::gated_rms(test.params);
    test.for_each([&](const std::array<std::int64_t, 3>& at) {
      EXPECT_EQ(x.get(at[0], at[1], at[2]), apart.get(at[0], at[1], at[2]));
    });
  }
}

TEST(GatedRms, ClosedGatesGiveZeroAndOpenOnesStayFinite) {
  const std::vector<float> x = {1, 1, 1, 1}, weight(4, 1);
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> z = {-inf, -3e38f, -1000, 1000};
  std::vector<float> out(4);
  Params params{.x = {x.data(), {1, 4}},
                .z = {z.data(), {1, 4}},
                .weight = {weight.data(), {4}},
                .out = {out.data(), {1, 4}}};
  for (Activation gate : {Activation::kSilu, Activation::kSigmoid}) {
    params.gate = gate;
    norm::gated_rms(params);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(out[i], 0);
    EXPECT_FLOAT_EQ(out[3], gate == Activation::kSilu ? 999.9995f : 0.9999995f);  // 1/sqrt(1+1e-6)
  }
}

Call<Params> valid() {
  Call<Params> call;
  call.add("x", &Params::x, Tensor(DType::kBFloat16, {2, 3, 4}));
  call.add("z", &Params::z, Tensor(DType::kFloat16, {2, 3, 4}));
  call.add("weight", &Params::weight, Tensor(DType::kFloat32, {4}));
  call.add("out", &Params::out, Tensor(DType::kFloat32, {2, 3, 4}));
  return call;
}

void run(const Params& params, const Context& context) { norm::gated_rms(params, context); }

TEST(GatedRmsValidation, EveryField) {
  Call<Params> good = valid();
  EXPECT_NO_THROW(norm::gated_rms(good.params));
  expect_each_field_checked(valid,
                            std::vector<Field<Params>>{
                                {"x", &Params::x, true, false, {}},
                                {"z", &Params::z, true, false, {0, 1, 2}},
                                {"weight", &Params::weight, true, false, {0}},
                                {"out", &Params::out, true, true, {0, 1, 2}},
                            },
                            run);
}

TEST(GatedRmsValidation, Mistakes) {
  using C = Call<Params>;
  const auto spread = [](TensorView& view) { view.strides[2] = 2; };
  expect_mistakes_refused(
      valid,
      std::vector<Mistake<Params>>{
          {"x of rank 1", "x", [](C& c) { c.params.x = c.params.x.select(0, 0).select(0, 0); }},
          {"z of rank 2", "z", [](C& c) { c.params.z = c.params.z.select(0, 0); }},
          {"x with gaps", "x", [&](C& c) { spread(c.params.x); }},
          {"z with gaps", "z", [&](C& c) { spread(c.params.z); }},
          {"out with gaps", "out", [&](C& c) { spread(c.params.out); }},
          {"eps zero", "eps", [](C& c) { c.params.eps = 0; }},
          {"eps negative", "eps", [](C& c) { c.params.eps = -1e-6; }},
          {"eps not a number", "eps", [](C& c) { c.params.eps = std::nan(""); }},
          {"eps infinite", "eps", [](C& c) { c.params.eps = INFINITY; }},
          {"an unknown gate", "gate", [](C& c) { c.params.gate = static_cast<Activation>(9); }},
          {"an unknown implementation", "impl", [](C& c) { c.params.impl = "fastest"; }},
          {"a negative number of threads", "context.threads", [](C& c) { c.context.threads = -1; }},
          {"out one row behind x", "out",
           [](C& c) {
             c.params.x = c.params.x.slice(0, 0, 1);
             c.params.z = c.params.z.slice(0, 0, 1);
             c.params.out = c.params.x;
             c.params.out.data = static_cast<char*>(c.params.x.data) + 2 * sizeof(bfloat16);
           }},
          {"out over x with another dtype", "out",
           [](C& c) {
             c.params.out = c.params.x;
             c.params.out.dtype = DType::kFloat16;
           }},
          {"out over x in another order", "out",
           [](C& c) {
             c.params.out = c.params.x;
             std::swap(c.params.out.strides[0], c.params.out.strides[1]);
             c.params.out.strides[0] = 4;
             c.params.out.strides[1] = 8;
           }},
          {"out over z", "out", [](C& c) { c.params.out = c.params.z; }},
          {"out over the weights", "out", [](C& c) { c.params.weight.data = c.params.out.data; }},
      },
      run);
}

}  // namespace
}  // namespace hyla::tests
