#include "gpu_checks.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "testing/random.h"

namespace hyla::tool {
namespace {

using testing::ProblemSpec;

constexpr std::array kFloats = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
constexpr std::array kCaches = {DType::kBFloat16, DType::kFloat16, DType::kFloat8E4M3,
                                DType::kInt8};
constexpr std::array kLayouts = {gdn::StateLayout::kVK, gdn::StateLayout::kKV};
constexpr std::array kModes = {testing::Mode::kFinal, testing::Mode::kAll,
                               testing::Mode::kAccepted};

struct Dims {
  std::int64_t k, v;
};
// Fast ones more often.
constexpr std::array<Dims, 16> kDims = {{{128, 128},
                                         {128, 128},
                                         {64, 64},
                                         {256, 256},
                                         {128, 64},
                                         {64, 128},
                                         {128, 256},
                                         {256, 64},
                                         {8, 8},
                                         {72, 40},
                                         {104, 128},
                                         {248, 8},
                                         {32, 96},
                                         {16, 72},
                                         {128, 96},
                                         {128, 128}}};

// What no loop goes through is drawn, from the number of the problem alone: the suite is the same
// everywhere, and a problem's name does not change when another is added to another operation.
class Draw {
 public:
  Draw(std::uint64_t number, const char* operation) : random_(number, operation) {}

  template <class T, std::size_t N>
  const T& of(const std::array<T, N>& list) {
    return list[static_cast<std::size_t>(random_.below(next_++, N))];
  }
  bool chance(double probability) { return random_.chance(next_++, probability); }

 private:
  testing::Random random_;
  std::int64_t next_ = 0;
};

class Checks {
 public:
  void add(ProblemSpec spec, bool far = false) {
    spec.device = Device::Kind::kCuda;
    testing::check_problem(spec);
    all_.push_back({spec, far});
  }
  // The reference takes seconds over it: as it is, and replayed.
  void add_long(const char* problem) {
    add(testing::parse_problem(problem));
    all_.back().most_cases = 0;
  }
  void add_far(const char* problem) { add(testing::parse_problem(problem), true); }
  std::vector<CheckedProblem> take() && { return std::move(all_); }

 private:
  std::vector<CheckedProblem> all_;
};

void draw_gdn(ProblemSpec& spec, Draw& draw) {
  constexpr std::array<Dims, 5> kHeads = {{{1, 1}, {1, 2}, {2, 4}, {1, 3}, {2, 8}}};
  const Dims heads = draw.of(kHeads), dims = draw.of(kDims);
  spec.hq = spec.hk = heads.k;
  spec.hv = heads.v;
  spec.k = dims.k;
  spec.v = dims.v;
  spec.gate = draw.of(std::array{gdn::Gate::Kind::kRaw, gdn::Gate::Kind::kLinear,
                                 gdn::Gate::Kind::kLog, gdn::Gate::Kind::kNone});
  spec.beta = draw.of(
      std::array{gdn::Beta::Kind::kLogit, gdn::Beta::Kind::kProbability, gdn::Beta::Kind::kNone});
  spec.norm = draw.chance(0.5);
  spec.invariant = draw.chance(0.15);
  spec.pdl = draw.chance(0.15);
}

// State elements times tokens, which is what the reference's time grows with.
double gdn_work(const ProblemSpec& spec) {
  return static_cast<double>(std::max(spec.hq, spec.hv) * spec.k * spec.v) *
         static_cast<double>(testing::total_tokens(spec));
}

// body(spec, draw) for every dtype of inputs and states and every layout, `times` each.
template <class Body>
void for_each_state(testing::Operation operation, int times, const Body& body) {
  std::uint64_t number = 0;
  for (int time = 0; time < times; ++time) {
    for (const DType io : kFloats) {
      for (const DType state : kFloats) {
        for (const gdn::StateLayout layout : kLayouts) {
          Draw draw(number, testing::name_of(operation));
          ProblemSpec spec = testing::defaults(operation);
          spec.seed = static_cast<std::int64_t>(number++);
          spec.io = io;
          spec.state = state;
          spec.layout = layout;
          draw_gdn(spec, draw);
          body(spec, draw);
        }
      }
    }
  }
}

void add_decode(Checks& checks) {
  constexpr double kMostWork = 1.2e6;
  for_each_state(testing::Operation::kGdnDecode, 4, [&](ProblemSpec spec, Draw& draw) {
    spec.b = draw.of(std::array{1, 2, 5, 9, 17, 40});
    spec.gated = draw.chance(0.25);
    while (gdn_work(spec) > kMostWork && spec.b > 3) spec.b = spec.b / 2 + 1;
    checks.add(spec);
  });
}

void add_mtp(Checks& checks) {
  constexpr double kMostWork = 2.5e6;
  constexpr std::array kRagged = {"1+4+0+2", "3+0+7+1", "2+9+1", "8+8+3", "16+1"};
  for (const testing::Mode mode : kModes) {
    for_each_state(testing::Operation::kGdnMtp, 2, [&](ProblemSpec spec, Draw& draw) {
      spec.mode = mode;
      if (draw.chance(0.35)) {
        spec.lens = testing::parse_lengths("lens", draw.of(kRagged));
      } else {
        spec.t = draw.of(std::array{1, 2, 3, 4, 5, 6, 8, 11, 16});
        spec.b = draw.of(std::array{2, 3, 4});
      }
      spec.gated = draw.chance(0.25);
      if (gdn_work(spec) > kMostWork) spec.hq = spec.hk = spec.hv = 1;
      checks.add(spec);
    });
  }
}

void add_recurrence(Checks& checks) {
  constexpr std::array kLengths = {"3+0+7+1", "8x3", "19+8+0+1", "33+2", "1x5"};
  for_each_state(testing::Operation::kGdnRecurrence, 3, [&](ProblemSpec spec, Draw& draw) {
    spec.lens = testing::parse_lengths("lens", draw.of(kLengths));
    if (gdn_work(spec) > 3e6) spec.hq = spec.hk = spec.hv = 1;
    checks.add(spec);
  });
}

void add_prefill(Checks& checks) {
  constexpr double kMostWork = 1e7;
  constexpr std::array kLengths = {"65+0+130+1", "64",       "200",  "1+63+64+65", "300+7",
                                   "5x6",        "17x4+130", "16x9", "400"};
  for_each_state(testing::Operation::kGdnPrefill, 4, [&](ProblemSpec spec, Draw& draw) {
    spec.lens = testing::parse_lengths("lens", draw.of(kLengths));
    spec.longest = draw.chance(0.6);
    spec.checkpoint = draw.of(std::array{0, 0, 64, 128});
    if (draw.chance(0.2)) {  // more queries than values
      spec.hq = 2;
      spec.hk = spec.hv = 1;
    }
    if (gdn_work(spec) > kMostWork) spec.hq = spec.hk = spec.hv = 1;
    spec.initial = draw.chance(0.85);
    spec.told = draw.chance(0.4);
    checks.add(spec);
  });
}

void add_conv(Checks& checks) {
  constexpr std::array kUpdates = {"b=5", "b=3,t=4", "b=70", "lens=3+0+1+4"};
  constexpr std::array kPrefills = {"lens=3+0+70+1", "lens=17+0+16+33", "lens=130", "lens=2x40"};
  std::uint64_t number = 0;
  for (const DType io : kFloats) {
    for (const DType state : kFloats) {
      for (const int width : {2, 3, 4}) {
        for (const bool update : {false, true, true}) {
          Draw draw(number, "conv");
          ProblemSpec spec = testing::parse_problem(fmt::format(
              "{}:hq=2,hv=4,k={},v=24,{}", update ? "conv_update" : "conv_prefill",
              draw.of(std::array{16, 32, 64}), update ? draw.of(kUpdates) : draw.of(kPrefills)));
          spec.seed = static_cast<std::int64_t>(number++);
          spec.io = io;
          spec.state = state;
          spec.width = width;
          spec.channels_last = draw.chance(0.4);
          spec.drafts = update ? draw.of(std::array{0, 0, 3, 5}) : 0;
          spec.pdl = draw.chance(0.15);
          spec.in_place = draw.chance(0.25);
          checks.add(spec);
        }
      }
    }
  }
}

void add_norm(Checks& checks) {
  std::uint64_t number = 0;
  for (const DType io : kFloats) {
    for (const int v : {8, 40, 128, 136, 256}) {
      Draw draw(number++, "norm");
      ProblemSpec spec = testing::defaults(testing::Operation::kNormGatedRms);
      spec.io = io;
      spec.v = v;
      spec.b = draw.of(std::array{1, 7, 70});
      spec.hv = draw.of(std::array{1, 3, 4});
      checks.add(spec);
    }
  }
}

void add_merge(Checks& checks) {
  std::uint64_t number = 0;
  for (const DType io : kFloats) {
    for (const int d : {8, 40, 64, 128, 136, 256, 512}) {
      Draw draw(number++, "merge");
      ProblemSpec spec = testing::defaults(testing::Operation::kAttentionMerge);
      spec.io = io;
      spec.d = d;
      spec.b = draw.of(std::array{1, 7, 70});
      spec.hq = draw.of(std::array{1, 3, 16});
      spec.in_place = draw.of(std::array{false, true});
      checks.add(spec);
    }
  }
}

void draw_attention(ProblemSpec& spec, Draw& draw) {
  constexpr std::array<Dims, 6> kHeads = {{{8, 1}, {16, 2}, {4, 4}, {3, 1}, {12, 2}, {1, 1}}};
  const Dims heads = draw.of(kHeads);
  spec.hq = heads.k;
  spec.hk = heads.v;
  spec.d = draw.of(std::array{64, 128, 256, 256, 128, 8, 72, 192});
  spec.page = draw.of(std::array{0, 1, 7, 16, 16, 64, 256});
  spec.invariant = draw.chance(0.25);
  spec.mask =
      draw.of(std::array{testing::Mask::kCausal, testing::Mask::kCausal, testing::Mask::kNone,
                         testing::Mask::kWindow, testing::Mask::kChunked});
  const bool sized = spec.mask == testing::Mask::kWindow || spec.mask == testing::Mask::kChunked;
  spec.window = sized ? draw.of(std::array{1, 33, 80, 129}) : 0;
}

// body(spec, draw) for every dtype of queries and of the cache, `times` each.
template <class Body>
void for_each_cache(testing::Operation operation, int times, const Body& body) {
  std::uint64_t number = 0;
  for (int time = 0; time < times; ++time) {
    for (const DType io : kFloats) {
      for (const DType kv : kCaches) {
        Draw draw(number, testing::name_of(operation));
        ProblemSpec spec = testing::defaults(operation);
        spec.seed = static_cast<std::int64_t>(number++);
        spec.io = io;
        spec.kv = kv;
        body(spec, draw);
      }
    }
  }
}

void add_attention(Checks& checks) {
  constexpr std::array kDecodes = {"1+333+97", "700+64+65", "17", "1300+2", "200+0+31+129+64"};
  for_each_cache(testing::Operation::kAttentionDecode, 6, [&](ProblemSpec spec, Draw& draw) {
    draw_attention(spec, draw);
    spec.kvlen = testing::parse_lengths("kvlen", draw.of(kDecodes));
    spec.b = static_cast<std::int64_t>(spec.kvlen.size());
    spec.t = draw.of(std::array{1, 1, 1, 4, 16});
    for (std::int64_t& keys : spec.kvlen) keys = std::max(keys, spec.t);
    checks.add(spec);
  });
  constexpr std::array kQueries = {"90+0+150", "40+20", "1x4+81+4", "65+129", "17+33+64"};
  for_each_cache(testing::Operation::kAttentionPrefill, 6, [&](ProblemSpec spec, Draw& draw) {
    draw_attention(spec, draw);
    spec.lens = testing::parse_lengths("lens", draw.of(kQueries));
    spec.kvlen = spec.lens;
    const std::int64_t before = draw.of(std::array{0, 70, 200, 900});
    for (std::size_t i = 0; i < spec.kvlen.size(); i += 2) spec.kvlen[i] += before;
    if (spec.hq > 8) spec.hq = spec.hk * 4;
    checks.add(spec);
  });
  constexpr std::array kAppends = {"30+0+1", "1x7", "64+65", "130"};
  for_each_cache(testing::Operation::kAttentionAppend, 3, [&](ProblemSpec spec, Draw& draw) {
    spec.lens = testing::parse_lengths("lens", draw.of(kAppends));
    spec.kvlen = {140};
    spec.hk = draw.of(std::array{1, 2, 3});
    spec.d = draw.of(std::array{64, 128, 256, 72, 8});
    spec.page = draw.of(std::array{0, 1, 7, 16, 64});
    spec.rope =
        draw.of(std::array{testing::Rope::kNone, testing::Rope::kHalves, testing::Rope::kPairs});
    spec.given_scales = size_of(spec.kv) == 1 && draw.of(std::array{false, true});
    spec.by_slots = draw.of(std::array{false, false, true});
    checks.add(spec);
  });
}

// Caches of float32, which only the kernels that take everything know, and values of other widths.
void add_rare_caches(Checks& checks) {
  for (const char* problem :
       {"attention_decode:b=3,kvlen=1+333+97,hq=8,hk=1,d=128,kv=f32,io=f32",
        "attention_decode:b=2,t=4,kvlen=65+140,hq=4,hk=2,d=72,page=0,kv=f32,mask=window,window=33",
        "attention_prefill:lens=40+0+20,kvlen=90+0+20,hq=6,hk=2,d=64,page=7,kv=f32,io=f16",
        "attention_append:lens=30+0+1,kvlen=40,hk=2,d=64,page=16,kv=f32,io=f32,rope=halves",
        "attention_append:lens=64+65,kvlen=140,hk=1,d=128,page=0,kv=f32,rope=pairs",
        "attention_decode:b=3,kvlen=1+333+97,hq=8,hk=1,d=192,dv=128,page=64",
        "attention_decode:b=3,t=2,kvlen=2+333+97,hq=16,hk=1,d=576,dv=512,page=64",
        "attention_append:lens=30+0+1,kvlen=40,hk=1,d=576,dv=512,page=64",
        "attention_prefill:lens=90+0+70,kvlen=290+0+70,hq=4,hk=1,d=128,dv=64,page=16",
        "attention_prefill:lens=90+0+70,kvlen=290+0+70,hq=4,hk=1,d=64,dv=128,page=16,kv=e4m3"}) {
    checks.add(testing::parse_problem(problem));
  }
}

// 16-bit pools mostly: several shares of the suite have to find room for theirs at a time.
void add_far_pools(Checks& checks) {
  for (const char* problem :
       {"gdn_decode:b=9,hq=2,hv=4,state=bf16", "gdn_decode:b=9,hq=2,hv=4,layout=kv,state=f16",
        "gdn_decode:b=5,hq=1,hv=2", "gdn_mtp:b=5,t=3,hq=2,hv=4,state=bf16",
        "gdn_mtp:b=5,t=8,hq=1,hv=2,layout=kv,state=bf16,mode=accepted",
        "gdn_recurrence:lens=3+0+9+1,hq=2,hv=4,state=bf16",
        "gdn_recurrence:lens=3+0+9+1,hq=1,hv=2,layout=vk",
        "gdn_prefill:lens=65+0+130+1,hq=1,hv=2,state=bf16",
        "gdn_prefill:lens=65+0+30+1,hq=1,hv=2,k=64,v=64,layout=kv,state=f16,checkpoint=64",
        "conv_update:b=9,hq=2,hv=4,k=64,v=64",
        "conv_update:b=9,t=3,hq=2,hv=4,k=64,v=64,drafts=3,channels_last=1",
        "conv_prefill:lens=3+0+90+1,hq=2,hv=4,k=64,v=64",
        "conv_prefill:lens=3+0+90+1,hq=2,hv=4,k=64,v=64,channels_last=1",
        "attention_decode:b=3,kvlen=1+333+97,hq=8,hk=1,d=128,page=64",
        "attention_prefill:lens=90+0+150,hq=8,hk=1,d=128,page=64",
        "attention_append:lens=30+0+1,kvlen=40,hk=2,d=128,page=16",
        "attention_append:lens=30+0+1,kvlen=40,hk=2,d=128,page=16,by=slots"}) {
    checks.add_far(problem);
  }
}

}  // namespace

std::vector<CheckedProblem> gpu_checks() {
  Checks checks;
  checks.add_long("gdn_prefill:lens=8192,hq=1,hv=1");  // cuda_relay takes no shorter ones
  add_far_pools(checks);
  add_prefill(checks);
  add_attention(checks);
  add_rare_caches(checks);
  add_mtp(checks);
  add_decode(checks);
  add_recurrence(checks);
  add_conv(checks);
  add_norm(checks);
  add_merge(checks);
  return std::move(checks).take();
}

}  // namespace hyla::tool
