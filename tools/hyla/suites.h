// Named lists of problems, built in so that an installed tool needs no files.
#pragma once

#include <string>
#include <vector>

#include "testing/call.h"
#include "testing/problem_string.h"

namespace hyla::tool {

struct Suite {
  const char* name;
  const char* meaning;
  std::vector<const char*> problems;
  std::vector<const char*> long_problems = {};  // to measure, too long to check
  std::vector<const char*> tiny_problems = {};  // to measure with numbers that are not normal
};

const std::vector<Suite>& suites();

// A problem to check rather than to measure.
struct CheckedProblem {
  testing::ProblemSpec spec;
  bool far = false;       // on a GPU also with pools of more than 2^31 elements
  int most_cases = 1000;  // hostile variants
};

// As choose_problems, but `gpu` stands for problems that are made for checking (gpu_checks.h).
std::vector<CheckedProblem> choose_checks(const std::vector<std::string>& problems,
                                          const std::string& suite, bool far);
std::string suite_names();  // "quick, cpu, gpu"

// Problems given by hand, else those of the suite, or of several suites with commas between them.
// Throws InvalidArgument for an unknown suite, a bad problem, or one for a GPU where there is none.
std::vector<testing::ProblemSpec> choose_problems(const std::vector<std::string>& problems,
                                                  const std::string& suite);

struct BenchProblem {
  testing::ProblemSpec spec;
  bool tiny = false;  // states and values below the smallest normal number
};
// The same for the benchmark, with the suites' tiny problems; `tiny`: all of them are.
std::vector<BenchProblem> choose_benchmarks(const std::vector<std::string>& problems,
                                            const std::string& suite, bool tiny);

bool has_gpu();
// Throws InvalidArgument for a problem on a GPU where there is none.
void require_device(const testing::ProblemSpec& spec);

// A name that no implementation has is a mistake of the caller, not a passed check.
void require_implementation(const testing::ProblemSpec& spec);

// What every implementation says about a call, on the device of the problem.
std::vector<Candidate> explain(const testing::ProblemSpec& spec, const testing::Call& call);

}  // namespace hyla::tool
