// A call whose tensors live on a CUDA device: a copy of a host call, guard zones and poison
// included.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "testing/call.h"

namespace hyla::testing {

class DeviceCall {
 public:
  explicit DeviceCall(const Call& host, int device = 0);

  std::vector<Candidate> explain() const;
  // Launches it; nothing has happened before cuda::synchronize().
  void launch(const std::string& impl) const;
  // What the device's memory holds now, as a host call.
  Call result() const;
  // Sends the contents of another call of the same shapes to the same memory.
  void upload(const Call& other) const;

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  using Memory = std::unique_ptr<void, Free>;

  const Call& host_;
  Params params_;
  Context context_;
  std::vector<Memory> buffers_;
  Memory workspace_;
  std::size_t workspace_bytes_ = 0;
};

// Microseconds of one call in a CUDA graph, over as many copies of it as it takes to find nothing
// in the cache.
double device_call_us(const Call& host, const std::string& impl, double seconds);

}  // namespace hyla::testing
