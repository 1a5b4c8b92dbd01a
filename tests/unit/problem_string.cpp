#include "testing/problem_string.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hyla/error.h>

#include "testing/random.h"

namespace hyla::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Values that every key of the grammar can have, to draw from.
struct Draw {
  Random random;
  std::int64_t next = 0;
  std::int64_t below(std::int64_t limit) { return random.below(next++, limit); }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<std::int64_t>(values.size())));
  }
};

ProblemSpec random_spec(std::uint64_t seed) {
  Draw draw{Random(seed, "spec")};
  const std::vector<Operation> operations = all_operations();
  ProblemSpec spec = defaults(operations[static_cast<std::size_t>(
      draw.below(static_cast<std::int64_t>(operations.size())))]);
  const auto has = [&](std::string_view name) {
    for (const KeyInfo& key : keys_of(spec.operation)) {
      if (key.name == name) return true;
    }
    return false;
  };
  if (has("lens") && draw.below(2) == 0) {
    for (std::int64_t n = 1 + draw.below(5); n > 0; --n) spec.lens.push_back(draw.below(3) * 17);
  } else {
    spec.b = draw.below(9);
    if (has("t")) spec.t = draw.below(300);
  }
  if (has("hq")) spec.hq = spec.hk = 1 + draw.below(4);
  if (has("hv")) spec.hv = spec.hq * (1 + draw.below(3));
  if (has("k")) spec.k = 8 * (1 + draw.below(32));
  if (has("v")) spec.v = 8 * (1 + draw.below(32));
  if (has("d")) spec.d = 8 * (1 + draw.below(32));
  if (has("page")) {
    if (draw.below(2) == 0) spec.dv = 8 * (1 + draw.below(32));
    if (has("hq")) spec.hq = spec.hk * (1 + draw.below(4));
    spec.page = draw.below(1025);
    spec.kv = draw.pick(
        {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat8E4M3, DType::kInt8});
    if (has("rope")) spec.rope = draw.pick({Rope::kNone, Rope::kHalves, Rope::kPairs});
    if (has("by")) spec.by_slots = draw.below(2) == 0;
    if (has("mask")) {
      spec.mask = draw.pick({Mask::kCausal, Mask::kNone, Mask::kWindow, Mask::kChunked});
    }
    if (spec.mask == Mask::kWindow || spec.mask == Mask::kChunked) spec.window = 1 + draw.below(99);
    if (draw.below(2) == 0 || spec.operation == Operation::kAttentionDecode) spec.kvlen = {4096};
  }
  spec.io = draw.pick({DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  if (has("state")) spec.state = draw.pick({DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  if (has("gate")) {
    spec.layout = draw.pick({gdn::StateLayout::kKV, gdn::StateLayout::kVK});
    spec.gate = static_cast<gdn::Gate::Kind>(draw.below(4));
    spec.beta = static_cast<gdn::Beta::Kind>(draw.below(3));
    spec.norm = draw.below(2) == 0;
    if (has("gated")) spec.gated = draw.below(2) == 0;
  }
  if (has("slots") && draw.below(2) == 0) spec.slots = 16 + draw.below(100);
  if (has("mode")) spec.mode = draw.pick({Mode::kFinal, Mode::kAll, Mode::kAccepted});
  if (has("width")) {
    spec.width = 2 + draw.below(3);
    spec.drafts = draw.below(2) * 512;
    spec.channels_last = draw.below(2) == 0;
  }
  if (has("in_place")) spec.in_place = draw.below(2) == 0;
  if (has("checkpoint")) spec.checkpoint = 64 * draw.below(4);
  if (has("initial")) spec.initial = draw.below(2) == 0;
  if (has("longest")) spec.longest = draw.below(2) == 0;
  if (has("told")) spec.told = draw.below(2) == 0;
  spec.device = draw.pick({Device::Kind::kCpu, Device::Kind::kCuda});
  if (draw.below(2) == 0) spec.impl = draw.pick({"reference", "cpu_avx2", "x"});
  spec.threads = draw.below(9);
  spec.pdl = draw.below(2) == 0;
  spec.invariant = draw.below(2) == 0;
  spec.seed = draw.below(1000);
  return spec;
}

TEST(ProblemString, RandomSpecsComeBackFromTheirText) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const ProblemSpec spec = random_spec(seed);
    const std::string text = to_string(spec);
    ASSERT_EQ(parse_problem(text), spec) << text;
    ASSERT_EQ(to_string(parse_problem(text)), text);
  }
}

TEST(ProblemString, DefaultsNeedNoKeys) {
  for (Operation operation : all_operations()) {
    EXPECT_EQ(to_string(defaults(operation)), name_of(operation));
    EXPECT_EQ(parse_problem(name_of(operation)), defaults(operation));
  }
}

TEST(ProblemString, KeyHeadsFollowGivenQueryHeads) {
  EXPECT_EQ(parse_problem("gdn_prefill:hq=4,hv=8").hk, 4);
  EXPECT_EQ(parse_problem("gdn_prefill:hq=8,hk=4,hv=4").hk, 4);
  EXPECT_EQ(parse_problem("attention_decode").hk, 2);
  EXPECT_EQ(parse_problem("attention_decode:hq=16").hk, 16);
}

TEST(ProblemString, LengthsAreLengthTimesCount) {
  EXPECT_THAT(parse_problem("gdn_prefill:lens=8192x4").lens, ElementsAre(8192, 8192, 8192, 8192));
  EXPECT_THAT(parse_problem("gdn_prefill:lens=65+0+130").lens, ElementsAre(65, 0, 130));
  EXPECT_THAT(parse_problem("gdn_prefill:lens=7x2+3").lens, ElementsAre(7, 7, 3));
  EXPECT_THAT(parse_problem("gdn_prefill:lens=32768").lens, ElementsAre(32768));
  EXPECT_EQ(lengths_to_string({5, 5, 5, 0, 2, 2}), "5x3+0+2x2");
}

TEST(ProblemString, RowLengthsComeFromEitherForm) {
  EXPECT_THAT(row_lengths(parse_problem("gdn_mtp:b=2,t=3")), ElementsAre(3, 3));
  EXPECT_THAT(row_lengths(parse_problem("gdn_decode:b=2")), ElementsAre(1, 1));
  EXPECT_THAT(kv_lengths(parse_problem("attention_decode:b=2,kvlen=9")), ElementsAre(9, 9));
  EXPECT_THAT(kv_lengths(parse_problem("attention_decode:b=2,kvlen=9+4")), ElementsAre(9, 4));
  EXPECT_THAT(kv_lengths(parse_problem("attention_prefill:lens=3+5")), ElementsAre(3, 5));
}

struct Bad {
  const char* text;
  const char* argument;
  const char* expected;  // part of what the message says was expected
  const char* got;       // part of what it says came
};

class BadProblem : public ::testing::TestWithParam<Bad> {};

TEST_P(BadProblem, NamesWhatIsWrong) {
  const Bad& bad = GetParam();
  try {
    parse_problem(bad.text);
    FAIL() << bad.text << " was taken";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(error.argument(), bad.argument);
    EXPECT_THAT(error.expected(), HasSubstr(bad.expected));
    EXPECT_THAT(error.got(), HasSubstr(bad.got));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadProblem,
    ::testing::Values(
        Bad{"", "operation", "gdn_decode", "''"},
        Bad{"gdn_decoder", "operation", "gdn_decode, gdn_mtp", "gdn_decoder"},
        Bad{"gdn.decode:b=1", "operation", "gdn_decode", "gdn.decode"},
        Bad{"gdn_decode:batch=1", "batch", "a key of gdn_decode (b, hq", "batch"},
        Bad{"gdn_decode:lens=1+2", "lens", "a key of gdn_decode", "lens"},
        Bad{"gdn_decode:mode=all", "mode", "a key of gdn_decode", "mode"},
        Bad{"gdn_recurrence:hk=4", "hk", "a key of gdn_recurrence", "hk"},
        Bad{"conv_update:gate=raw", "gate", "a key of conv_update", "gate"},
        Bad{"attention_decode:hv=4", "hv", "a key of attention_decode", "hv"},
        Bad{"gdn_decode:b", "b", "after '='", "b"}, Bad{"gdn_decode:=4", "key", "a key of", "''"},
        Bad{"gdn_decode:b=1,", "key", "after the comma", "''"},
        Bad{"gdn_decode:b=1,,hq=2", "key", "a key of", "''"},
        Bad{"gdn_decode:b=1,b=1", "b", "once", "b=1"},
        Bad{"gdn_decode:b=-1", "b", "0 to 1048576", "-1"},
        Bad{"gdn_decode:b=1048577", "b", "0 to 1048576", "1048577"},
        Bad{"gdn_decode:b=1.5", "b", "an integer", "1.5"},
        Bad{"gdn_decode:b= 1", "b", "an integer", " 1"},
        Bad{"gdn_decode:b=0x10", "b", "an integer", "0x10"},
        Bad{"gdn_decode:b=99999999999999999999", "b", "an integer", "99999"},
        Bad{"gdn_mtp:t=-3", "t", "0 to", "-3"}, Bad{"gdn_decode:hq=0", "hq", "1 to 1024", "0"},
        Bad{"gdn_decode:hq=3,hv=4", "hv", "a multiple of hq = 3", "4"},
        Bad{"gdn_decode:hv=2000", "hv", "1 to 1024", "2000"},
        Bad{"gdn_prefill:hq=4,hk=2,hv=8", "hk", "hq, or hv", "2"},
        Bad{"gdn_prefill:hq=4,hk=4,hv=6", "hv", "a multiple", "6"},
        Bad{"gdn_decode:k=100", "k", "a multiple of 8 from 8 to 256", "100"},
        Bad{"gdn_decode:v=264", "v", "a multiple of 8 from 8 to 256", "264"},
        Bad{"attention_decode:d=7", "d", "a multiple of 8", "7"},
        Bad{"attention_decode:d=264", "d", "or 576 with dv=512", "264"},
        Bad{"attention_decode:d=576", "d", "or 576 with dv=512", "576"},
        Bad{"attention_append:d=128,dv=512", "dv", "or 512 with d=576", "512"},
        Bad{"attention_decode:hq=6,hk=4", "hk", "a divisor of hq = 6", "4"},
        Bad{"attention_decode:page=1025", "page", "0 to 1024", "1025"},
        Bad{"attention_append:scales=given", "scales", "own beside a cache", "given"},
        Bad{"attention_append:b=1,t=9,kvlen=8", "kvlen", "at least the 9 tokens", "8"},
        Bad{"attention_decode:b=3,kvlen=8+9", "kvlen", "each of the 3 rows", "8+9"},
        Bad{"attention_decode:mask=window", "window", "a size >= 1", "0"},
        Bad{"attention_decode:window=4", "window", "none without", "4"},
        Bad{"attention_decode:mask=full", "mask", "causal, none, window, chunked", "full"},
        Bad{"attention_decode:kv=f64", "kv", "bf16, f16, f32, e4m3, int8", "f64"},
        Bad{"gdn_decode:io=fp16", "io", "bf16, f16, f32", "fp16"},
        Bad{"gdn_decode:state=e4m3", "state", "f32, bf16, f16", "e4m3"},
        Bad{"gdn_decode:layout=KV", "layout", "vk, kv", "KV"},
        Bad{"gdn_decode:gate=exp", "gate", "none, linear, log, raw", "exp"},
        Bad{"gdn_decode:beta=1", "beta", "none, prob, logit", "1"},
        Bad{"gdn_decode:norm=2", "norm", "0, 1", "2"},
        Bad{"gdn_decode:b=4,slots=3", "slots", "at least the 4 rows", "3"},
        Bad{"gdn_mtp:mode=last", "mode", "final, all, accepted", "last"},
        Bad{"conv_update:width=5", "width", "2 to 4", "5"},
        Bad{"conv_update:t=6,drafts=4", "drafts", "at least 5", "4"},
        Bad{"conv_update:drafts=1025", "drafts", "0 to 1024", "1025"},
        Bad{"norm_gated_rms:pdl=2", "pdl", "0, 1", "2"},
        Bad{"gdn_prefill:checkpoint=100", "checkpoint", "a multiple of 64", "100"},
        Bad{"gdn_prefill:lens=", "lens", "8192x4", "''"},
        Bad{"gdn_prefill:lens=4+", "lens", "8192x4", "4+"},
        Bad{"gdn_prefill:lens=4x0", "lens", "8192x4", "4x0"},
        Bad{"gdn_prefill:lens=x4", "lens", "8192x4", "x4"},
        Bad{"gdn_prefill:lens=4x2x2", "lens", "8192x4", "4x2x2"},
        Bad{"gdn_prefill:lens=-1+2", "lens", "8192x4", "-1+2"},
        Bad{"gdn_prefill:lens=1x99999999", "lens", "at most 1048576", "1x99999999"},
        Bad{"gdn_prefill:lens=67108864x2", "lens", "67108864 tokens in all", "67108864x2"},
        Bad{"gdn_prefill:lens=4,b=2", "b", "none beside lens", "2"},
        Bad{"gdn_prefill:t=4,lens=4", "t", "none beside lens", "4"},
        Bad{"gdn_prefill:b=1048576,t=1048576", "t", "67108864 tokens in all", "1048576"},
        Bad{"gdn_decode:device=gpu", "device", "cpu, cuda", "gpu"},
        Bad{"gdn_decode:impl=A b", "impl", "lower-case letters", "A b"},
        Bad{"gdn_decode:threads=1025", "threads", "0 to 1024", "1025"},
        Bad{"gdn_decode:seed=-1", "seed", "0 to", "-1"}));

TEST(ProblemString, LongValuesAreCutInMessages) {
  try {
    parse_problem("gdn_decode:b=" + std::string(100000, '7'));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_LT(std::string(error.what()).size(), 300u);
  }
}

}  // namespace
}  // namespace hyla::testing
