// Prefill calls that live on the device only: for sweeps over many problems, each of which would
// take longer to fill on the host and to send than to measure.
#pragma once

#include <string>
#include <vector>

#include "ops/gdn_prefill/launch_prefill.h"
#include "testing/call.h"
#include "testing/device_memory.h"
#include "testing/problem_string.h"

namespace hyla::testing {

// Device memory that problems take turns in. It grows, and is taken piece by piece.
class DeviceArena {
 public:
  // Everything taken before is free again, and there is room for so many bytes.
  void restart(std::size_t bytes);
  void* take(std::size_t bytes);  // aligned to kAlignment
  static constexpr std::size_t kAlignment = 256;

 private:
  cuda::Memory memory_;
  std::size_t bytes_ = 0, used_ = 0;
};

// Copies of one problem with numbers of their own, as many as it takes to find nothing in the
// cache. They share a workspace, as the layers of a model do.
class DevicePrefill {
 public:
  static constexpr std::size_t kMostCopies = 512;

  // Gates are raw and betas logits, as a model's projections leave them; throws InvalidArgument for
  // others. The arena is the problem's until it is restarted. `most_copies`: one is enough to ask
  // about plans.
  DevicePrefill(const ProblemSpec& spec, DeviceArena& arena, std::size_t most_copies = kMostCopies);
  DevicePrefill(const DevicePrefill&) = delete;  // calls point at its lengths
  DevicePrefill& operator=(const DevicePrefill&) = delete;

  std::vector<Candidate> explain() const;
  std::size_t copies() const { return copies_.size(); }
  void launch(const std::string& impl) const;  // every copy once
  std::vector<gdn::PlanForm> forms() const;
  void launch(const gdn::PlanForm& form) const;
  // Longest: as if the host knew that of several lengths and no more.
  gdn::PlanLook look(const std::string& impl, const gdn::Walks& walks, bool longest = false) const;

 private:
  std::vector<std::int64_t> lengths_;  // which the calls may be told
  std::vector<gdn::PrefillParams> copies_;
  Workspace workspace_;
  Context context_;
};

}  // namespace hyla::testing
