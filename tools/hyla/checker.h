// One problem, on one variant of its tensors after the other, by every implementation that takes
// it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "suites.h"
#include "testing/compare.h"
#include "testing/device_call.h"
#include "testing/random_problem.h"

namespace hyla::tool {

struct Checked {
  std::string problem, implementation;
  testing::Comparison worst;
};

class Checker {
 public:
  // `says` hears what begins.
  Checker(const CheckedProblem& problem, std::function<void(const std::string&)> says);

  // Friendly tensors, hostile ones and `cases` - 1 drawn; on a GPU also a replayed graph.
  std::vector<Checked> run(int cases) &&;
  // One drawn variant; on a GPU twice, some with slots and pages out of range, some replayed.
  std::vector<Checked> run_drawn(std::uint64_t number) &&;

 private:
  using Candidates = std::vector<Candidate>;
  using Launch = std::function<testing::Comparison(const std::string& implementation)>;
  void try_all(const Candidates& candidates, const Launch& launch);
  void keep(const std::string& implementation, testing::Comparison comparison);

  void on_host(const testing::Call& call);
  void on_device(const testing::Call& call);
  void repeated(const testing::Call& call, bool lost);
  void replayed(const testing::CaseOptions& options);
  void far_pools(const char* variant, const testing::CaseOptions& options);
  bool on_gpu() const { return problem_.spec.device == Device::Kind::kCuda; }

  CheckedProblem problem_;
  std::function<void(const std::string&)> says_;
  std::string variant_;
  std::vector<Checked> results_;
};

}  // namespace hyla::tool
