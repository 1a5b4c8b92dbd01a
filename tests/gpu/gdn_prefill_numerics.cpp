// How exact chunked prefill on the GPU is: against the plain chunked algorithm, which keeps in
// bfloat16 what the kernels keep in bfloat16 and is exact otherwise; and where the recurrence grows
// beyond the range of fp16, in which the kernels invert.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuPrefillNumerics = Gpu;
using Numbers = std::vector<double>;

gdn::PrefillParams& params(Call& call) { return std::get<gdn::PrefillParams>(call.params); }

Numbers read(const TensorView& view) {
  Numbers values;
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    values.push_back(load_element(view, offset));
  });
  return values;
}

template <class Value>
void fill(const TensorView& view, Value&& value) {
  for_each_element(view, [&](std::int64_t index, std::int64_t offset) {
    store_element(view, offset, value(index, load_element(view, offset)));
  });
}

constexpr int kDim = 128, kChunk = 64;

// One head of one sequence: keys and values of kDim, outputs and the state afterwards.
struct Head {
  int tokens = 0;
  Numbers q, k, v;          // [tokens, kDim]
  Numbers log_alpha, beta;  // [tokens]
  Numbers state;            // [value, key]
  double scale = 1 / std::sqrt(kDim);
};

struct Result {
  Numbers out, state;
};

// Ties to even.
double to_bfloat16(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

Result token_by_token(const Head& h) {
  Result r{Numbers(h.tokens * kDim), h.state};
  for (int t = 0; t < h.tokens; ++t) {
    const double alpha = std::exp(h.log_alpha[t]);
    const double *q = &h.q[t * kDim], *k = &h.k[t * kDim];
    for (int v = 0; v < kDim; ++v) {
      double* s = &r.state[v * kDim];
      double seen = 0, out = 0;
      for (int i = 0; i < kDim; ++i) seen += (s[i] *= alpha) * k[i];
      const double delta = h.beta[t] * (h.v[t * kDim + v] - seen);
      for (int i = 0; i < kDim; ++i) out += (s[i] += delta * k[i]) * q[i];
      r.out[t * kDim + v] = h.scale * out;
    }
  }
  return r;
}

// The formulas of src/ops/gdn_prefill/README.md with operands of products in bfloat16.
Result plain_chunks(const Head& h) {
  Result r{Numbers(h.tokens * kDim), h.state};
  for (int first = 0; first < h.tokens; first += kChunk) {
    const int n = std::min(kChunk, h.tokens - first);
    const double *q = &h.q[first * kDim], *k = &h.k[first * kDim], *v = &h.v[first * kDim];
    const double* beta = &h.beta[first];
    Numbers g(n), T(n * n), P(n * n);
    for (int i = 0; i < n; ++i) g[i] = h.log_alpha[first + i] + (i > 0 ? g[i - 1] : 0);
    const auto dot = [](const double* a, const double* b) {
      double sum = 0;
      for (int i = 0; i < kDim; ++i) sum += a[i] * b[i];
      return sum;
    };
    for (int i = 0; i < n; ++i) {
      T[i * n + i] = 1;
      for (int j = 0; j <= i; ++j) {
        const double decay = std::exp(g[i] - g[j]);
        P[i * n + j] = to_bfloat16(h.scale * decay * dot(q + i * kDim, k + j * kDim));
        if (j == i) continue;
        const double l = beta[i] * decay * dot(k + i * kDim, k + j * kDim);
        for (int m = 0; m <= j; ++m) T[i * n + m] -= l * T[j * n + m];
      }
    }
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j <= i; ++j) T[i * n + j] = to_bfloat16(T[i * n + j] * beta[j]);
    }
    for (int c = 0; c < kDim; ++c) {
      double* s = &r.state[c * kDim];
      Numbers rounded(kDim), w(n), u(n);
      for (int i = 0; i < kDim; ++i) rounded[i] = to_bfloat16(s[i]);
      for (int t = 0; t < n; ++t) {
        const double seen = std::exp(g[t]) * dot(k + t * kDim, rounded.data());
        w[t] = to_bfloat16(v[t * kDim + c] - seen);
      }
      for (int t = 0; t < n; ++t) {
        for (int j = 0; j <= t; ++j) u[t] += T[t * n + j] * w[j];
      }
      for (int t = 0; t < n; ++t) {
        double out = h.scale * std::exp(g[t]) * dot(q + t * kDim, rounded.data());
        for (int j = 0; j <= t; ++j) out += P[t * n + j] * to_bfloat16(u[j]);
        r.out[(first + t) * kDim + c] = to_bfloat16(out);
      }
      for (int i = 0; i < kDim; ++i) s[i] *= std::exp(g[n - 1]);
      for (int t = 0; t < n; ++t) {
        const double left = to_bfloat16(std::exp(g[n - 1] - g[t]) * u[t]);
        for (int i = 0; i < kDim; ++i) s[i] += left * k[t * kDim + i];
      }
    }
  }
  return r;
}

double relative_error(const Numbers& got, const Numbers& exact) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - exact[i]) * (got[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(error / norm);
}

// Head `number` of the only sequence of a call with as many key heads as value heads.
Head head_of(Call& call, int number) {
  gdn::PrefillParams& p = params(call);
  Head h;
  h.tokens = static_cast<int>(p.q.shape[0]);
  h.q = read(p.q.select(1, number));
  h.k = read(p.k.select(1, number));
  h.v = read(p.v.select(1, number));
  h.log_alpha = read(p.gate.value.select(1, number));
  h.beta = read(p.beta.value.select(1, number));
  h.state = read(p.state.select(0, 0).select(0, number));
  return h;
}

// Errors of the kernels in the mean square, as multiples of the plain algorithm's.
void compare_with_plain(const std::string& name, Call call) {
  constexpr double kMost = 2;
  const DeviceCall gpu(call);
  const int heads = static_cast<int>(params(call).v.shape[1]);
  std::vector<Result> exact, plain;
  for (int i = 0; i < heads; ++i) {
    exact.push_back(token_by_token(head_of(call, i)));
    plain.push_back(plain_chunks(head_of(call, i)));
  }
  int ran = 0;
  for (const Candidate& candidate : gpu.explain()) {
    if (!candidate.supported) continue;
    gpu.upload(call);
    gpu.launch(candidate.implementation);
    Call result = gpu.result();
    for (int i = 0; i < heads; ++i) {
      const Numbers out = read(params(result).out.select(1, i));
      const Numbers state = read(params(result).state.select(0, 0).select(0, i));
      const double of_out = relative_error(out, exact[i].out),
                   plain_out = relative_error(plain[i].out, exact[i].out);
      const double of_state = relative_error(state, exact[i].state),
                   plain_state = relative_error(plain[i].state, exact[i].state);
      EXPECT_LE(of_out, kMost * plain_out) << name << " by " << candidate.implementation;
      EXPECT_LE(of_state, kMost * plain_state) << name << " by " << candidate.implementation;
      // The plain algorithm must itself be right, or the bound means nothing.
      EXPECT_LT(plain_out, 0.05) << name;
    }
    ++ran;
  }
  EXPECT_GT(ran, 1) << name;
}

Call heads_of(const char* options) {
  return random_call(
      parse_problem(std::string("gdn_prefill:lens=640,hq=2,hv=2,gate=log,") + options));
}

TEST_F(GpuPrefillNumerics, ErrorOfThePlainAlgorithm) {
  compare_with_plain("as drawn", heads_of("seed=1"));

  Call never = heads_of("seed=2");
  fill(params(never).gate.value, [](std::int64_t, double) { return 0.0; });
  compare_with_plain("alpha = 1", never);

  // On both sides of what the kernels call mild, ln(2) * 12 / 64 = 0.13 a token, and beyond
  // float32.
  for (const double mean : {0.1, 0.2, 0.8, 3.0}) {
    Call call = heads_of("seed=3");
    fill(params(call).gate.value,
         [&](std::int64_t i, double) { return -mean * (0.5 + static_cast<double>(i % 7) / 6); });
    compare_with_plain("mean decay " + std::to_string(mean), call);
  }

  Call strong = heads_of("seed=4");
  fill(params(strong).beta.value, [](std::int64_t, double x) { return 2 * x; });
  compare_with_plain("beta up to 2", strong);
}

// Between wipes the state grows by a factor of about 10 a token: far beyond 2^16 in a chunk, and
// within float32.
TEST_F(GpuPrefillNumerics, GrowthBeyondHalf) {
  Call wiped = random_call(parse_problem("gdn_prefill:lens=200+90,hq=1,hv=2,gate=linear,seed=5"));
  fill(params(wiped).k, [](std::int64_t, double x) { return 16 * x; });
  fill(params(wiped).gate.value,
       [](std::int64_t i, double x) { return i / 2 % 20 == 0 ? 0.0 : x; });
  check_call("|k| = 16, alpha = 0 every twentieth token", wiped);

  // Chunks that are mild: no wipe, so short sequences.
  Call mild = random_call(parse_problem("gdn_prefill:lens=20+17+9,hq=1,hv=2,gate=log,seed=6"));
  fill(params(mild).k, [](std::int64_t, double x) { return 16 * x; });
  check_call("|k| = 16, 20 tokens", mild);
}

double largest(const TensorView& view) {
  double most = 0;
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    most = std::max(most, std::abs(load_element(view, offset)));
  });
  return most;
}

// Inputs of fp16 whose recurrence leaves the range of fp16, in which the kernels keep operands:
// |k| up to 16, beta up to 2, wiped every so many tokens. Queries are small, so that most outputs
// stay in range.
Call outgrows(const std::string& problem, int wiped_every, double length) {
  Call call = random_call(parse_problem("gdn_prefill:" + problem + ",io=f16,gate=linear"));
  gdn::PrefillParams& p = params(call);
  const std::int64_t heads = p.beta.value.shape[1];
  fill(p.k, [&](std::int64_t, double x) { return length * x; });
  fill(p.q, [](std::int64_t, double x) { return x / 1024; });
  fill(p.beta.value, [](std::int64_t, double x) { return 2 * x; });
  fill(p.gate.value,
       [&](std::int64_t i, double x) { return i / heads % wiped_every == 0 ? 0.0 : x; });
  return call;
}

TEST_F(GpuPrefillNumerics, HalfInputsThatOutgrowHalf) {
  struct Case {
    std::string problem;
    int wiped_every;
    double length;
  };
  int outgrown = 0;
  // Some sequence ends before a wipe.
  for (const Case& c :
       std::vector<Case>{{"lens=9x70,hq=1,hv=1,k=256,v=128,seed=10", 6, 16},
                         {"lens=16x40+5x9,hq=1,hv=6,seed=6", 6, 16},
                         {"lens=5+6+4,hq=1,hv=2,seed=1", 6, 16},
                         {"lens=59+64+70+191,hq=1,hv=2,seed=2", 6, 16},
                         {"lens=102+66,hq=1,hv=2,k=64,v=64,checkpoint=64,seed=7", 6, 16},
                         {"lens=102+66,hq=1,hv=2,k=72,v=40,layout=kv,seed=8", 6, 16},
                         {"lens=102+66,hq=1,hv=2,k=256,v=128,checkpoint=64,seed=9", 6, 16},
                         {"lens=264,hq=2,hk=1,hv=1,checkpoint=64,seed=5", 8, 10},
                         {"lens=702,hq=1,hv=1,state=bf16,layout=kv,seed=3", 6, 16},
                         {"lens=70x34,hq=1,hv=4,checkpoint=64,seed=4", 6, 16}}) {
    const Call call = outgrows(c.problem, c.wiped_every, c.length);
    check_call(c.problem, call);
    const DeviceCall gpu(call);
    gpu.launch("");
    Call result = gpu.result();
    outgrown += largest(params(result).state) > 65504 ? 1 : 0;
  }
  EXPECT_GE(outgrown, 7);  // or the inputs show nothing
}

// Segments of a long sequence that is spoilt in the end, or at first only.
TEST_F(GpuPrefillNumerics, SegmentsThatOutgrowHalf) {
  const auto part = [](std::int64_t from, std::int64_t to) {
    Call call = outgrows("lens=4000,hq=1,hv=1,seed=11", 6, 16);
    fill(params(call).k, [&](std::int64_t i, double x) {
      const std::int64_t token = i / kDim;
      return token >= from && token < to ? x : x / 16;
    });
    return call;
  };
  check_call("spoilt in the end", part(1500, 4000));
  check_call("right in the end", part(0, 3000));
}

}  // namespace
}  // namespace hyla::testing
