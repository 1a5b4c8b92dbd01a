// Rows of several tokens through the tensor cores: every length around the size of a block, every
// place where the kept state may lie, gates that wipe the state, the fused norm.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuBlock = Gpu;
using GpuBlockOf = GpuParts;

// At least the block kernel, the one that goes token by token, and the one that takes everything.
void check(const std::string& problem, const CaseOptions& options, int least = 3) {
  EXPECT_GE(check_all(problem, options), least) << problem;
}

TEST_F(GpuBlock, EveryLength) {
  for (int t = 1; t <= 20; ++t) {
    for (const char* mode : {"final", "accepted"}) {
      const std::string problem = "gdn_mtp:b=4,t=" + std::to_string(t) + ",hq=1,hv=2,mode=" + mode +
                                  ",seed=" + std::to_string(t);
      check(problem, CaseOptions::plain());
    }
  }
}

TEST_P(GpuBlockOf, EveryDtypeAndLayout) {
  std::uint64_t seed = 100;
  for (const char* io : {"bf16", "f16"}) {
    for (const char* state : {"f32", "bf16", "f16"}) {
      for (const char* layout : {"vk", "kv"}) {
        const std::string problem = GetParam() + "hq=1,hv=2,io=" + io + ",state=" + state +
                                    ",layout=" + layout + ",seed=" + std::to_string(++seed);
        check(problem, CaseOptions::plain());
        CaseOptions options = CaseOptions::drawn(seed);
        options.gaps = false;  // unaligned tensors are not for it
        check_all(problem, options);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Operations, GpuBlockOf,
                         ::testing::Values("gdn_mtp:b=3,t=3,", "gdn_mtp:b=3,t=8,",
                                           "gdn_mtp:b=6,t=7,mode=accepted,",
                                           "gdn_mtp:b=6,t=13,mode=accepted,",
                                           "gdn_mtp:lens=1+4+0+9+2,", "gdn_mtp:lens=1+2+0+5,",
                                           "gdn_recurrence:lens=3+0+19+1+8,"));

TEST_F(GpuBlock, OtherValueDimsAndHeads) {
  for (const char* dims :
       {"hq=1,hv=3,v=32", "hq=3,hv=3,v=64", "hq=1,hv=5,v=96", "hq=2,hv=2,v=256"}) {
    for (const char* layout : {"vk", "kv"}) {
      check("gdn_mtp:b=3,t=6," + std::string(dims) + ",layout=" + layout, CaseOptions::plain(), 2);
    }
  }
}

// The roles of a CTA's warps change with the head.
TEST_F(GpuBlock, ManyHeads) {
  for (const char* io : {"bf16", "f16"}) {
    for (const char* layout : {"vk", "kv"}) {
      check(
          "gdn_mtp:b=2,t=5,hq=5,hv=10,io=" + std::string(io) + ",state=" + io + ",layout=" + layout,
          CaseOptions::plain());
    }
  }
}

// Warps that own lines, up to 8 MiB of bfloat16 states [.., K, V]: every length, rows that are not
// written, slots elsewhere.
TEST_F(GpuBlock, LinesOfAWarp) {
  for (int t = 1; t <= 8; ++t) {
    for (const char* mode : {"final", "accepted"}) {
      const std::string problem = "gdn_mtp:b=3,t=" + std::to_string(t) +
                                  ",hq=1,hv=3,state=bf16,layout=kv,mode=" + mode +
                                  ",seed=" + std::to_string(t);
      check(problem, CaseOptions::plain());
      CaseOptions options = CaseOptions::scattered();
      options.padding = true;
      check(problem, options);
    }
  }
}

// More of them, and under batch_invariant few too: warps that own values. [.., V, K]: more than 32
// MiB, with fewer registers.
TEST_F(GpuBlock, ValuesOfAWarp) {
  check("gdn_mtp:b=130,t=3,hq=4,hv=8,state=bf16", CaseOptions::plain());
  check("gdn_mtp:b=33,t=5,hq=4,hv=8,state=bf16,layout=kv,mode=accepted", CaseOptions::plain());
  for (int t : {1, 3, 8}) {
    const std::string problem =
        "gdn_mtp:b=4,t=" + std::to_string(t) + ",hq=2,hv=4,state=bf16,layout=kv,mode=accepted";
    Call call = random_call(parse_problem(problem));
    call.context.batch_invariant = true;
    EXPECT_GE(check_call(problem, call), 3) << problem;
  }
}

// As many states as it takes for CTAs that own whole lines.
TEST_F(GpuBlock, WholeLines) {
  check("gdn_mtp:b=256,t=2,hq=4,hv=8,state=bf16,layout=kv,mode=accepted", CaseOptions::plain());
}

TEST_F(GpuBlock, FusedNorm) {
  CaseOptions options;
  options.extras = options.shuffled = options.padding = true;
  for (const char* operation : {"gdn_decode:b=5,", "gdn_mtp:b=4,t=4,", "gdn_mtp:b=4,t=8,",
                                "gdn_mtp:b=3,t=11,mode=accepted,", "gdn_mtp:lens=1+4+0+9+2,"}) {
    for (const char* dims : {"hq=2,hv=4", "hq=2,hv=4,v=32", "hq=1,hv=2,v=256,layout=kv",
                             "hq=2,hv=4,state=bf16,io=f16", "hq=2,hv=4,layout=kv"}) {
      check(std::string(operation) + dims, options, 2);
    }
  }
}

// Tokens that wipe the state, first and last ones too, and others that hardly do.
TEST_F(GpuBlock, WipingGates) {
  for (const char* gate : {"linear", "log"}) {
    for (int t : {1, 4, 7, 8, 12}) {
      for (const char* layout : {"vk", "kv"}) {
        const std::string problem = "gdn_mtp:b=6,t=" + std::to_string(t) +
                                    ",hq=2,hv=4,gate=" + gate + ",layout=" + layout +
                                    ",mode=accepted,seed=" + std::to_string(t);
        const Call call = random_call(parse_problem(problem));
        const auto& params = std::get<gdn::MtpParams>(call.params);
        const double wiped =
            gate == std::string("log") ? -std::numeric_limits<double>::infinity() : 0;
        const Random draw(static_cast<std::uint64_t>(t), "wiped");
        for_each_element(params.gate.value, [&](std::int64_t index, std::int64_t offset) {
          if (draw.below(index, 3) == 0) store_element(params.gate.value, offset, wiped);
        });
        EXPECT_GE(check_call(problem, call), 3) << problem;
      }
    }
  }
}

// Betas up to 2 and keys that hardly differ: the triangular system is as bad as it gets.
TEST_F(GpuBlock, NearlyEqualKeys) {
  for (int t : {4, 8}) {
    const std::string problem = "gdn_mtp:b=4,t=" + std::to_string(t) + ",hq=2,hv=4,beta=prob";
    const Call call = random_call(parse_problem(problem));
    const auto& params = std::get<gdn::MtpParams>(call.params);
    const std::int64_t row = t * 2 * 128, token = 2 * 128;
    for_each_element(params.k, [&](std::int64_t index, std::int64_t offset) {
      if (index % row < token) return;
      const double first = load_element(params.k, offset - index % row / token * token);
      store_element(params.k, offset, first + 0.05 * load_element(params.k, offset));
    });
    for_each_element(params.beta.value, [&](std::int64_t, std::int64_t offset) {
      store_element(params.beta.value, offset, 2 * load_element(params.beta.value, offset));
    });
    EXPECT_GE(check_call(problem, call), 3) << problem;
  }
}

TEST_F(GpuBlock, SameBitsEveryTime) {
  for (const char* problem : {"gdn_mtp:b=5,t=8,seed=7", "gdn_mtp:b=5,t=4,layout=kv,seed=7",
                              "gdn_recurrence:lens=3+0+19+1+8,state=bf16"}) {
    check_repeats(problem);
  }
}

TEST_F(GpuBlock, ACapturedGraphFollowsNewSlotsAndLengths) {
  CaseOptions options = CaseOptions::scattered();
  for (const char* problem : {"gdn_mtp:lens=1+8+0+11+2,hq=2,hv=4,slots=32,mode=accepted",
                              "gdn_mtp:lens=1+4+2,hq=2,hv=4,slots=32,layout=kv"}) {
    check_replays(problem, options);
  }
}

}  // namespace
}  // namespace hyla::testing
