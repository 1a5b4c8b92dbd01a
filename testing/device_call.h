// A call whose tensors live on a CUDA device: a copy of a host call, guard zones and poison
// included.
#pragma once

#include <string>
#include <vector>

#include "testing/call.h"
#include "testing/device_memory.h"

namespace hyla::testing {

class DeviceCall;

struct DeviceOptions {
  int device = 0;
  // Slots or pages in front of the call's pools, which grow by as many: slot s of the host's pool
  // is slot far_slots + s here. They hold poison, and indices are the caller's to move
  // (far_pool.h).
  std::int64_t far_slots = 0;
  // Made of the same call with the same slots: its memory is copied, on the device.
  const DeviceCall* like = nullptr;
};

class DeviceCall {
 public:
  // The host's call is needed again by result().
  explicit DeviceCall(const Call& host, const DeviceOptions& options = {});

  const Params& params() const { return params_; }
  const Context& context() const { return context_; }
  std::vector<Candidate> explain() const;
  // Launches it; nothing has happened before cuda::synchronize().
  void launch(const std::string& impl) const;
  // The same as fast as a caller can: the library chooses, or `impl`, which outlives this, is named
  // in the parameters from now on.
  void prefer(const char* impl);
  void launch() const;
  // What the device's memory holds now, as a host call.
  Call result() const;
  // Sends the contents of another call of the same shapes to the same memory.
  void upload(const Call& other) const;

 private:
  struct DeviceBuffer {
    cuda::Memory memory;
    std::size_t front;  // bytes before the copy of the host's memory

    std::byte* copy() const { return static_cast<std::byte*>(memory.get()) + front; }
  };
  std::size_t buffer_index(const TensorView& view) const;

  const Call& host_;
  Params params_;
  Context context_;
  std::vector<DeviceBuffer> buffers_;
  cuda::Memory workspace_;
  std::size_t workspace_bytes_ = 0;
};

// Microseconds of one call in a CUDA graph, over as many copies of it as it takes to find nothing
// in the cache.
double device_call_us(const Call& host, const std::string& impl, double seconds);

// What the host spends, without waiting for the device: medians of single calls.
struct HostTime {
  double call_us = 0;    // a call: validation, choice of the implementation and launch
  double launch_us = 0;  // the launch of an empty kernel, measured between the calls
};
HostTime device_call_host_time(const Call& host, const std::string& impl);

}  // namespace hyla::testing
