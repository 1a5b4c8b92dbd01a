// Chunked prefill on the GPU against the float64 reference: every CUDA implementation that takes a
// problem, over lengths, dims, dtypes, layouts, gates and heads, on friendly and hostile tensors;
// and the corners of its arithmetic.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuPrefill = Gpu;
using GpuPrefillOf = GpuParts;
using GpuPrefillAmong = GpuParts;

// Nothing, one token, one short of a chunk, a chunk, one more, several, a tail of one.
const std::vector<std::string> kLengths = {"1",       "63",         "64",         "65",
                                           "128+0+1", "200+64+3x4", "130+0+0+321"};

TEST_F(GpuPrefill, EveryLength) {
  std::uint64_t seed = 10;
  for (const std::string& lens : kLengths) {
    const std::string problem =
        "gdn_prefill:lens=" + lens + ",hq=2,hv=4,seed=" + std::to_string(++seed);
    check_all(problem, CaseOptions::plain());
    check_all(problem, CaseOptions::drawn(seed));
  }
}

TEST_F(GpuPrefill, EveryDtypeAndLayout) {
  std::uint64_t seed = 100;
  for (const char* io : {"bf16", "f16", "f32"}) {
    for (const char* state : {"f32", "bf16", "f16"}) {
      for (const char* layout : {"vk", "kv"}) {
        const std::string problem = std::string("gdn_prefill:lens=150+64+7,hq=1,hv=2,io=") + io +
                                    ",state=" + state + ",layout=" + layout +
                                    ",checkpoint=64,seed=" + std::to_string(++seed);
        check_all(problem, CaseOptions::plain());
        check_all(problem, CaseOptions::drawn(seed));
      }
    }
  }
}

TEST_F(GpuPrefill, EveryDim) {
  std::uint64_t seed = 200;
  for (const char* dims : {"k=64,v=64", "k=256,v=256", "k=64,v=128", "k=128,v=64", "k=8,v=8",
                           "k=72,v=40", "k=248,v=16"}) {
    const std::string problem = std::string("gdn_prefill:lens=170+3+64,hq=1,hv=2,checkpoint=64,") +
                                dims + ",seed=" + std::to_string(++seed);
    check_all(problem, CaseOptions::plain());
    check_all(problem, CaseOptions::drawn(seed));
  }
  // Long enough for two parts, and many short ones.
  for (const char* dims : {"k=64,v=64", "k=96,v=192", "k=128,v=256", "k=40,v=72"}) {
    EXPECT_GE(check_all(std::string("gdn_prefill:lens=700,hq=1,hv=2,layout=kv,io=f16,") + dims,
                        CaseOptions::plain()),
              2);
    EXPECT_GE(check_all(std::string("gdn_prefill:lens=65x12,hq=1,hv=2,norm=1,gate=raw,") + dims,
                        CaseOptions::plain()),
              2);
  }
}

// Sequences of a few tokens, where blocks of 8 tokens are an alternative to chunks.
TEST_F(GpuPrefill, ShortSequences) {
  std::uint64_t seed = 250;
  for (const char* lens : {"1", "7+8+9+0+16", "3x20+17"}) {
    for (const char* rest : {"", ",layout=kv,state=bf16", ",io=f16,norm=1,gate=raw,beta=logit"}) {
      const std::string problem = std::string("gdn_prefill:lens=") + lens + ",hq=2,hv=4" + rest +
                                  ",seed=" + std::to_string(++seed);
      EXPECT_GE(check_all(problem, CaseOptions::plain()), 3) << problem;
      check_all(problem, CaseOptions::drawn(seed));
    }
  }
}

bool takes(const std::string& problem, const std::string& implementation) {
  for (const Candidate& c : DeviceCall(random_call(parse_problem(problem))).explain()) {
    if (c.implementation == implementation) return c.supported;
  }
  return false;
}

// Steps of 16 tokens in all their forms: one or several blocks of value rows a multiprocessor, more
// CTAs than fit at once, value rows that are no multiple of a CTA's, one long sequence among them;
// CTAs that go through many tasks, some of which have no tokens.
TEST_P(GpuPrefillOf, StepsOfSixteen) {
  const std::string problem = "gdn_prefill:" + GetParam() + ",seed=271";
  EXPECT_TRUE(takes(problem, "cuda_steps")) << problem;
  check_all(problem, CaseOptions::plain());
  check_all(problem + ",layout=kv,state=f16,norm=1,gate=raw,beta=logit,io=f16",
            CaseOptions::drawn(270 + GetParam().size()));
}
INSTANTIATE_TEST_SUITE_P(Shapes, GpuPrefillOf,
                         ::testing::Values("lens=15+16+17+0+150,hq=1,hv=2", "lens=40,hq=1,hv=34",
                                           "lens=3x30+0x3+90+17x4,hq=1,hv=11,v=16",
                                           "lens=33+64,hq=1,hv=2,v=48", "lens=17x9,hq=1,hv=4,v=208",
                                           "lens=17+3x9+0x2+5,hq=1,hv=34",
                                           "lens=18+2x9+0x2+5,hq=1,hv=17,v=256",
                                           "lens=33+1+70+16+0+48+90+5+17x2,hq=4,hv=24",
                                           "lens=1x200+40+2x200,hq=1,hv=2"));

TEST_F(GpuPrefill, StepsOfSixteenRepeat) {
  check_repeats("gdn_prefill:lens=64+7x20,hq=2,hv=4,seed=7");
  check_repeats("gdn_prefill:lens=17x30+33x20,hq=2,hv=4,norm=1,gate=raw,beta=logit,seed=8");
}

TEST_F(GpuPrefill, EveryGate) {
  std::uint64_t seed = 300;
  for (const char* gate : {"none", "linear", "log", "raw"}) {
    for (const char* beta : {"none", "prob", "logit"}) {
      for (const char* norm : {"0", "1"}) {
        // beta = 1 on keys that are not normalised can grow without bound.
        if (std::string(beta) == "none" && std::string(norm) == "0") continue;
        const std::string problem = std::string("gdn_prefill:lens=140+30,hq=1,hv=4,gate=") + gate +
                                    ",beta=" + beta + ",norm=" + norm +
                                    ",seed=" + std::to_string(++seed);
        check_all(problem, CaseOptions::drawn(seed));
      }
    }
  }
}

TEST_F(GpuPrefill, GroupsOfHeads) {
  std::uint64_t seed = 400;
  for (const char* heads : {"hq=1,hv=1", "hq=1,hv=5", "hq=3,hv=6", "hq=4,hk=2,hv=2",
                            "hq=6,hk=1,hv=1", "hq=2,hk=2,hv=2"}) {
    const std::string problem =
        std::string("gdn_prefill:lens=100+65,") + heads + ",seed=" + std::to_string(++seed);
    check_all(problem, CaseOptions::plain());
    check_all(problem, CaseOptions::drawn(seed));
  }
}

// More tasks than multiprocessors, and lengths that differ much.
TEST_F(GpuPrefill, ManyTasks) {
  check_all("gdn_prefill:lens=700+3x40+64x20+0x5+130x6,hq=2,hv=4,seed=7", CaseOptions::plain());
  check_all("gdn_prefill:lens=1x600+65,hq=1,hv=2,seed=8", CaseOptions::plain());
  check_all("gdn_prefill:lens=5x90+70,hq=2,hv=8,seed=9", CaseOptions::plain());
}

// Few heads, so that plans which look up the sequence of a chunk take them; some are empty.
TEST_F(GpuPrefill, ManySequencesOfFewHeads) {
  const Random draw(3, "many sequences");
  for (std::int64_t i = 0; i < 4; ++i) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t row = 0; row < 40 + i; ++row) {
      const std::int64_t length = 1 + draw.below(100 * i + row, row % 8 == 0 ? 300 : 90);
      lengths.push_back(draw.chance(100 * i + row + 1000, 0.1) ? 0 : length);
    }
    check_all("gdn_prefill:lens=" + lengths_to_string(lengths) + ",hq=1,hv=2,device=cuda",
              CaseOptions::drawn(static_cast<std::uint64_t>(i)));
  }
}

// One or a few sequences so long that the others would wait for them: kernels of their own walk
// over them. Which ones these are is found on the device, wherever they lie.
TEST_P(GpuPrefillAmong, LongAmongShort) {
  std::uint64_t seed = 550;
  for (const char* io : {"bf16", "f16"}) {
    const std::string problem = "gdn_prefill:" + GetParam() + ",hq=1,hv=2,checkpoint=192,io=" + io +
                                ",seed=" + std::to_string(++seed);
    EXPECT_GE(check_all(problem, CaseOptions::plain()), 2) << problem;
    check_all(problem, CaseOptions::drawn(seed + GetParam().size()));
  }
}
// One, two, some that are alike, and all.
INSTANTIATE_TEST_SUITE_P(Lengths, GpuPrefillAmong,
                         ::testing::Values("lens=1500+64x12", "lens=64x5+0+1300+7x3+1000+0",
                                           "lens=900x3+64x4", "lens=1100+1000"));

TEST_F(GpuPrefill, LongAmongVeryManyShort) {
  // One of more than are ranked.
  check_all("gdn_prefill:lens=1x520+1100+9,hq=1,hv=1,checkpoint=192,seed=7", CaseOptions::plain());
  check_repeats("gdn_prefill:lens=1500+64x40,hq=1,hv=2,seed=7");
}

// Few tasks, long enough to be split over multiprocessors.
TEST_F(GpuPrefill, FewLongSequences) {
  std::uint64_t seed = 500;
  for (const char* io : {"bf16", "f16"}) {
    for (const char* lens : {"2000", "1000+0+1500", "1100+1+64+900"}) {
      const std::string problem = std::string("gdn_prefill:lens=") + lens +
                                  ",hq=1,hv=2,checkpoint=192,io=" + io +
                                  ",seed=" + std::to_string(++seed);
      EXPECT_GE(check_all(problem, CaseOptions::plain()), 3) << problem;
      check_all(problem, CaseOptions::drawn(seed));
    }
  }
}

gdn::PrefillParams& params(Call& call) { return std::get<gdn::PrefillParams>(call.params); }

template <class Value>
void fill(const TensorView& view, Value&& value) {
  for_each_element(view, [&](std::int64_t index, std::int64_t offset) {
    store_element(view, offset, value(index, load_element(view, offset)));
  });
}

// So few and so long that segments of a sequence are worked on at once.
TEST_F(GpuPrefill, Segments) {
  for (const char* io : {"bf16", "f16"}) {
    for (const char* lens : {"4000", "6000+100+5000"}) {
      const std::string problem =
          std::string("gdn_prefill:lens=") + lens + ",hq=1,hv=1,io=" + io + ",seed=9";
      EXPECT_GE(check_all(problem, CaseOptions::plain()), 4) << problem;
      EXPECT_TRUE(takes(problem, "cuda_segments")) << problem;
    }
  }
}

// Heads that forget everything inside a segment and heads that forget nothing, gates that wipe,
// keys that let the recurrence grow: what a segment forgets is found on the device.
TEST_F(GpuPrefill, SegmentsThatForget) {
  const std::string problem = "gdn_prefill:lens=2500,hq=1,hv=2,gate=log,seed=21";
  const auto with = [&](const char* what, auto&& alpha) {
    Call call = random_call(parse_problem(problem));
    fill(params(call).gate.value,
         [&](std::int64_t i, double x) { return alpha(i / 2, static_cast<int>(i % 2), x); });
    EXPECT_GE(check_call(what, call), 4) << what;
  };
  with("a decay a head", [](std::int64_t, int head, double) { return -1.0 * head; });
  with("a wipe now and then", [](std::int64_t token, int head, double x) {
    return (token + 17 * head) % 450 == 5 ? -INFINITY : x / 50;
  });
  with("a decay that ends in the middle",
       [](std::int64_t token, int, double) { return token < 1250 ? -1.5 : 0.0; });
  with("a decay that begins in the middle",
       [](std::int64_t token, int, double) { return token > 1250 ? -1.5 : 0.0; });
  // |k| = 2 and beta = 1: tokens that multiply by -3 along their key, under decays that win.
  Call grows = random_call(parse_problem(problem));
  fill(params(grows).k, [](std::int64_t, double x) { return 2 * x; });
  fill(params(grows).gate.value, [](std::int64_t, double) { return -1.5; });
  check_call("keys that grow", grows);
}

TEST_F(GpuPrefill, HostileTensors) {
  for (int seed = 600; seed < 608; ++seed) {
    check_all("gdn_prefill:lens=130+0+64+5x3,hq=2,hv=4,checkpoint=64,seed=" + std::to_string(seed),
              CaseOptions::hostile());
  }
}

TEST_F(GpuPrefill, SameBitsEveryTime) {
  check_repeats("gdn_prefill:lens=300+64+3x50,hq=2,hv=4,checkpoint=64,seed=7");
  check_repeats("gdn_prefill:lens=2000,hq=2,hv=4,seed=7");
  check_repeats("gdn_prefill:lens=100+30,hq=2,hv=4,k=64,v=64,seed=7");
}

TEST_F(GpuPrefill, ACapturedGraphFollowsNewSlotsAndLengths) {
  CaseOptions options = CaseOptions::scattered();
  for (const char* lens : {"200+64+30+0+65", "1500+700", "1400+64x9", "0x3+70x4+1200+1"}) {
    check_replays(std::string("gdn_prefill:lens=") + lens + ",hq=1,hv=2,slots=32", options);
  }
}

Call corner(const char* options) {
  return random_call(parse_problem(std::string("gdn_prefill:lens=200+1100,hq=1,hv=2,") + options));
}

TEST_F(GpuPrefill, AlphaZeroWipesTheState) {
  Call call = corner("gate=linear");
  fill(params(call).gate.value,
       [](std::int64_t i, double x) { return i % 7 == 3 || i % 64 == 0 ? 0.0 : x; });
  check_call("alpha = 0", call);
  Call log = corner("gate=log");
  fill(params(log).gate.value, [](std::int64_t i, double x) { return i % 5 == 2 ? -INFINITY : x; });
  check_call("ln(alpha) = -inf", log);
}

TEST_F(GpuPrefill, AlphaOneForgetsNothing) {
  Call call = corner("gate=linear");
  fill(params(call).gate.value, [](std::int64_t, double) { return 1.0; });
  check_call("alpha = 1", call);
}

TEST_F(GpuPrefill, StrongDecay) {
  Call call = corner("gate=log");
  fill(params(call).gate.value, [](std::int64_t i, double x) { return i % 3 == 0 ? x : -100.0; });
  check_call("ln(alpha) = -100", call);
}

// Keys of length 16; beta such that the recurrence does not grow: beta |k|^2 <= 2.
TEST_F(GpuPrefill, LongKeys) {
  Call call = corner("gate=linear");
  fill(params(call).k, [](std::int64_t, double x) { return 16 * x; });
  fill(params(call).beta.value, [](std::int64_t, double x) { return x / 256; });
  check_call("|k| = 16", call);
}

// Keys of length 16 and beta up to 1 under gates that wipe more than the keys add.
TEST_F(GpuPrefill, LongKeysThatGrowBetweenWipes) {
  Call call = corner("gate=linear");
  fill(params(call).k, [](std::int64_t, double x) { return 16 * x; });
  const std::int64_t heads = 2;
  fill(params(call).gate.value,
       [&](std::int64_t i, double x) { return i / heads % 3 == 0 ? 0.0 : x; });
  check_call("|k| = 16, alpha = 0 every third token", call);
}

TEST_F(GpuPrefill, BetaUpToTwo) {
  Call call = corner("norm=1,gate=linear");
  fill(params(call).beta.value, [](std::int64_t, double x) { return 2 * x; });
  check_call("beta up to 2", call);
}

// Lengths over many powers of two and zeros in one chunk: too far apart for the range of fp16, in
// which blocks of the inverse are kept, unless columns are normalised before. Inputs of fp16 have
// less room themselves.
TEST_F(GpuPrefill, KeysOfVeryDifferentLengths) {
  for (const char* options :
       {"norm=1,gate=linear", "norm=1,gate=linear,io=f16", "norm=1,gate=log"}) {
    Call call = corner(options);
    const bool half = params(call).k.dtype == DType::kFloat16;
    const auto spread = [&](std::int64_t i, double x) {
      const auto row = static_cast<int>(i / 128);
      return row % 13 == 5 ? 0.0 : std::ldexp(x, row * 7 % (half ? 19 : 31) - (half ? 14 : 15));
    };
    fill(params(call).k, spread);
    fill(params(call).q, spread);
    if (params(call).gate.kind == gdn::Gate::Kind::kLog) {
      fill(params(call).gate.value, [](std::int64_t, double) { return -0.5; });
    }
    check_call(options, call);
  }
}

// What is written at a checkpoint is what a call on that prefix writes in the end, to the bit.
TEST_F(GpuPrefill, ACheckpointIsTheFinalStateOfAPrefix) {
  for (const char* length : {"320", "2000"}) {
    const std::string rest = ",hq=1,hv=2,seed=11";
    const Call whole = random_call(
        parse_problem("gdn_prefill:lens=" + std::string(length) + rest + ",checkpoint=128"));
    const DeviceCall gpu(whole);
    for (const Candidate& candidate : gpu.explain()) {
      if (!candidate.supported) continue;
      gpu.upload(whole);
      gpu.launch(candidate.implementation);
      Call with = gpu.result();
      Call prefix = whole;
      gdn::PrefillParams& p = params(prefix);
      p.checkpoint_every = 0;
      p.checkpoints = p.checkpoint_starts = {};
      store_element(p.cu_seqlens, p.cu_seqlens.strides[0], 256);
      const DeviceCall shorter(prefix);
      bool runs = false;
      for (const Candidate& c : shorter.explain()) {
        runs |= c.implementation == candidate.implementation && c.supported;
      }
      if (!runs) continue;
      shorter.launch(candidate.implementation);
      Call without = shorter.result();
      const TensorView checkpoint = params(with).checkpoints.select(0, 1);
      const TensorView final = params(without).state.select(0, 0);
      std::vector<double> a, b;
      for_each_element(checkpoint, [&](std::int64_t, std::int64_t offset) {
        a.push_back(load_element(checkpoint, offset));
      });
      for_each_element(final, [&](std::int64_t, std::int64_t offset) {
        b.push_back(load_element(final, offset));
      });
      EXPECT_EQ(a, b) << candidate.implementation << " of " << length;
    }
  }
}

std::vector<double> elements(const TensorView& view) {
  std::vector<double> values;
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    values.push_back(load_element(view, offset));
  });
  return values;
}

// A list names any token: chunks are not cut there, so the rest keeps its bits, and what is written
// has those of a call that ends there.
TEST_F(GpuPrefill, AListedCheckpointIsTheFinalStateOfAPrefix) {
  CaseOptions options;
  options.extras = true;
  for (const char* rest : {"", ",norm=1,gate=raw,beta=logit", ",io=f16"}) {
    const Call listed = random_call(
        parse_problem("gdn_prefill:lens=500,hq=1,hv=2,checkpoint=64,seed=17" + std::string(rest)),
        options);
    const auto run = [&](const Call& call) {
      const DeviceCall gpu(call);
      gpu.launch("cuda_fused");
      return gpu.result();
    };
    const auto without = [&](std::int64_t length) {
      Call call = listed;
      gdn::PrefillParams& p = params(call);
      p.checkpoint_offsets = p.checkpoints = p.checkpoint_starts = {};
      store_element(p.cu_seqlens, p.cu_seqlens.strides[0], static_cast<double>(length));
      return run(call);
    };
    Call with = run(listed), plain = without(500);
    EXPECT_EQ(elements(params(with).out), elements(params(plain).out)) << rest;
    EXPECT_EQ(elements(params(with).state), elements(params(plain).state)) << rest;
    const TensorView list = params(with).checkpoint_offsets;
    int inside = 0;
    for (std::int64_t i = 0; i < list.shape[1]; ++i) {
      const auto tokens = static_cast<std::int64_t>(load_element(list, i * list.strides[1]));
      if (tokens <= 0) continue;
      inside += tokens % 64 != 0 ? 1 : 0;
      Call prefix = without(tokens);
      EXPECT_EQ(elements(params(with).checkpoints.select(0, i)),
                elements(params(prefix).state.select(0, 0)))
          << rest << " after " << tokens;
    }
    EXPECT_GE(inside, 2);
  }
}

TEST_F(GpuPrefill, ListsOfCheckpoints) {
  CaseOptions options;
  options.extras = true;
  std::uint64_t seed = 700;
  for (const char* lens : {"64", "130+0+221+1", "7x40+70x4"}) {
    for (const char* rest : {"", ",norm=1,gate=raw,beta=logit,state=bf16,layout=kv"}) {
      check_all(std::string("gdn_prefill:lens=") + lens + ",hq=1,hv=4,checkpoint=64" + rest +
                    ",seed=" + std::to_string(++seed),
                options);
    }
  }
}

// 131072 tokens: the state's error must not grow with the length. Judged by the float32 kernel that
// walks token by token, since the float64 reference would take minutes; bf16 operands make an error
// of 2^-9 a chunk, of which the decay forgets all but the last few.
TEST_F(GpuPrefill, AStateAfterManyTokens) {
  const Call call = random_call(parse_problem("gdn_prefill:lens=131072,hq=1,hv=1,gate=log,seed=5"));
  const DeviceCall gpu(call);
  const auto state_of = [&](const std::string& implementation) {
    gpu.upload(call);
    gpu.launch(implementation);
    const Call result = gpu.result();
    const TensorView state = std::get<gdn::PrefillParams>(result.params).state.select(0, 0);
    std::vector<double> values;
    for_each_element(state, [&](std::int64_t, std::int64_t offset) {
      values.push_back(load_element(state, offset));
    });
    return values;
  };
  const std::vector<double> exact = state_of("cuda_tokens");
  for (const Candidate& candidate : gpu.explain()) {
    if (!candidate.supported || candidate.implementation == "cuda_tokens") continue;
    const std::vector<double> got = state_of(candidate.implementation);
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - exact[i]) * (got[i] - exact[i]);
      norm += exact[i] * exact[i];
    }
    const double relative = std::sqrt(error / norm);
    RecordProperty(candidate.implementation, std::to_string(relative));
    EXPECT_LT(relative, 4 * std::ldexp(1.0, -9)) << candidate.implementation;
  }
}

}  // namespace
}  // namespace hyla::testing
