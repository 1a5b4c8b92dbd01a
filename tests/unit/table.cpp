// Dispatch over a table of implementations that only write down that they ran.
#include "core/table.h"

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

using namespace hyla;
using core::Implementation;

struct Problem {
  int size = 0;
  std::vector<std::string>* ran = nullptr;
};

template <int kNumber>
void run(const Problem& problem, const Workspace&, const Context&) {
  problem.ran->push_back("run " + std::to_string(kNumber));
}

const char* refuses_odd(const Problem& problem, const Context&) {
  return problem.size % 2 != 0 ? "the size must be even" : nullptr;
}
const char* refuses_small(const Problem& problem, const Context&) {
  return problem.size < 100 ? "the size must be at least 100" : nullptr;
}
std::size_t needs_size(const Problem& problem) { return static_cast<std::size_t>(problem.size); }

constexpr std::array<Implementation<Problem>, 4> kTable = {{
    {"cuda_fast", Device::Kind::kCuda, nullptr, nullptr, run<1>},
    {"cpu_large", Device::Kind::kCpu, refuses_small, needs_size, run<2>},
    {"cpu_even", Device::Kind::kCpu, refuses_odd, nullptr, run<3>},
    {"cuda_even", Device::Kind::kCuda, refuses_odd, nullptr, run<4>},
}};

class Table : public testing::Test {
 protected:
  void dispatch(int size, const char* forced = nullptr, Workspace space = {},
                Device device = Device::cpu()) {
    Context context;
    context.device = device;
    core::dispatch<Problem>("op", std::span(kTable), Problem{size, &ran}, forced, space, context);
  }
  std::vector<std::string> ran;
  alignas(256) std::array<char, 1024> scratch{};
  Workspace workspace{scratch.data(), scratch.size(), Device::cpu()};
  using Ran = std::vector<std::string>;
};

TEST_F(Table, TheFirstThatTakesTheProblemRuns) {
  dispatch(200, nullptr, workspace);
  dispatch(201, nullptr, workspace);
  dispatch(4);
  dispatch(3, nullptr, {}, Device::cuda(0));
  EXPECT_EQ(ran, (Ran{"run 2", "run 2", "run 3", "run 1"}));
}

TEST_F(Table, ForcedByName) {
  dispatch(200, "cpu_even");
  dispatch(4, "cuda_even", {}, Device::cuda(1));
  EXPECT_EQ(ran, (Ran{"run 3", "run 4"}));
}

TEST_F(Table, UnknownName) {
  for (const char* name : {"cpu", "", "cpu_even "}) {
    try {
      dispatch(4, name);
      FAIL() << name;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), "impl");
      EXPECT_EQ(error.expected(), "one of cuda_fast, cpu_large, cpu_even, cuda_even");
      EXPECT_EQ(error.got(), '"' + std::string(name) + '"');  // an empty one shows
    }
  }
  EXPECT_TRUE(ran.empty());
}

TEST_F(Table, UnsupportedCarriesEveryReason) {
  try {
    dispatch(7);
    FAIL();
  } catch (const Unsupported& error) {
    ASSERT_EQ(error.candidates().size(), kTable.size());
    const std::array<const char*, 4> reasons = {
        "runs on a CUDA device only", "the size must be at least 100", "the size must be even",
        "runs on a CUDA device only"};
    for (std::size_t i = 0; i < reasons.size(); ++i) {
      EXPECT_EQ(error.candidates()[i].implementation, kTable[i].name);
      EXPECT_EQ(error.candidates()[i].reason, reasons[i]);
      EXPECT_FALSE(error.candidates()[i].supported);
      EXPECT_NE(std::string(error.what()).find(reasons[i]), std::string::npos);
    }
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
  EXPECT_TRUE(ran.empty());
}

TEST_F(Table, AForcedOneThatRefusesDoesNotFallThrough) {
  try {
    dispatch(5, "cpu_large", workspace);
    FAIL();
  } catch (const Unsupported& error) {
    ASSERT_EQ(error.candidates().size(), 1u);
    EXPECT_EQ(error.candidates()[0].reason, "the size must be at least 100");
  }
  EXPECT_THROW(dispatch(4, "cuda_even"), Unsupported);
  EXPECT_TRUE(ran.empty());
}

TEST_F(Table, WorkspaceTooSmallSaysBothNumbers) {
  workspace.bytes = 199;
  try {
    dispatch(200, nullptr, workspace);
    FAIL();
  } catch (const WorkspaceTooSmall& error) {
    EXPECT_EQ(error.required(), 200u);
    EXPECT_EQ(error.given(), 199u);
  }
  EXPECT_TRUE(ran.empty());
  workspace.bytes = 200;
  dispatch(200, nullptr, workspace);
  EXPECT_EQ(ran, (Ran{"run 2"}));
}

TEST_F(Table, BadWorkspaces) {
  Workspace null = workspace, misaligned = workspace, elsewhere = workspace;
  null.data = nullptr;
  misaligned.data = scratch.data() + 128;
  elsewhere.device = Device::cuda(0);
  for (const Workspace& bad : {null, misaligned, elsewhere}) {
    try {
      dispatch(200, nullptr, bad);
      FAIL();
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), "workspace");
    }
    dispatch(4, "cpu_even", bad);  // who needs none does not look at it
  }
  EXPECT_EQ(ran, (Ran{"run 3", "run 3", "run 3"}));
}

TEST_F(Table, Explain) {
  Context context;
  const auto candidates = core::explain<Problem>(std::span(kTable), Problem{8, &ran}, context);
  ASSERT_EQ(candidates.size(), kTable.size());
  EXPECT_FALSE(candidates[0].supported);
  EXPECT_EQ(candidates[1].reason, "the size must be at least 100");
  EXPECT_TRUE(candidates[2].supported);
  EXPECT_EQ(candidates[2].reason, "");
  EXPECT_TRUE(ran.empty());
  EXPECT_EQ(core::names<Problem>(std::span(kTable)),
            (Ran{"cuda_fast", "cpu_large", "cpu_even", "cuda_even"}));
}

double expects_size(const Problem& problem, const Context&) { return problem.size; }
double expects_fifty(const Problem&, const Context&) { return 50; }

// Rows with a cost model go by what they expect, whatever their order; a row without one is only
// reached when none of them takes the problem.
TEST_F(Table, TheLeastExpectedTimeRuns) {
  static constexpr std::array<Implementation<Problem>, 4> kModels = {{
      {"cuda_fast", Device::Kind::kCuda, nullptr, nullptr, run<1>, expects_fifty},
      {"cpu_size", Device::Kind::kCpu, refuses_odd, nullptr, run<2>, expects_size},
      {"cpu_fifty", Device::Kind::kCpu, refuses_odd, nullptr, run<3>, expects_fifty},
      {"cpu_any", Device::Kind::kCpu, nullptr, nullptr, run<4>},
  }};
  const auto go = [&](int size, const char* forced) {
    core::dispatch<Problem>("op", std::span(kModels), Problem{size, &ran}, forced, {}, {});
  };
  go(20, nullptr);
  go(200, nullptr);
  go(21, nullptr);
  go(200, "cpu_size");
  EXPECT_EQ(ran, (Ran{"run 2", "run 3", "run 4", "run 2"}));

  const auto explained = core::explain<Problem>(std::span(kModels), Problem{200, &ran}, {});
  std::vector<std::string> names;
  for (const Candidate& c : explained) names.push_back(c.implementation);
  EXPECT_EQ(names, (Ran{"cuda_fast", "cpu_fifty", "cpu_size", "cpu_any"}));
  EXPECT_EQ(explained[1].expected_us, 50);
  EXPECT_EQ(explained[3].expected_us, 0);
}

}  // namespace
