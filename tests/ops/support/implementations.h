// Who takes a call on this machine.
#pragma once

#include <hyla/backend.h>

#include <string>
#include <vector>

namespace hyla::testing {

template <class Params>
std::vector<std::string> implementations_of(const Params& params) {
  std::vector<std::string> names;
  for (const Candidate& candidate : explain(params)) {
    if (candidate.supported) names.push_back(candidate.implementation);
  }
  return names;
}

}  // namespace hyla::testing
