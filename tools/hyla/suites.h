// Named lists of problems, built in so that an installed tool needs no files.
#pragma once

#include <string>
#include <vector>

#include "testing/problem_string.h"

namespace hyla::tool {

struct Suite {
  const char* name;
  const char* meaning;
  std::vector<const char*> problems;
};

const std::vector<Suite>& suites();
std::string suite_names();  // "quick, cpu, gpu"

// Problems given by hand, else those of the suite. Throws InvalidArgument for an unknown suite, a
// bad problem, or a problem for a GPU where there is none.
std::vector<testing::ProblemSpec> choose_problems(const std::vector<std::string>& problems,
                                                  const std::string& suite);

void require_device(const testing::ProblemSpec& spec);

}  // namespace hyla::tool
