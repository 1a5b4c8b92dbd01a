// A GPU's memory for the serving loop of the examples.
#pragma once

#include "../examples/serving/memory.h"
#include "testing/device_memory.h"

namespace hyla::testing {

class ServingMemory : public serving::Memory {
 public:
  explicit ServingMemory(Device device) : device_(device) {}
  Context context() const override {
    Context context;
    context.device = device_;
    context.stream = cuda::stream();
    return context;
  }
  void* allocate(std::size_t bytes) override { return cuda::allocate(bytes); }
  void release(void* memory) override { cuda::release(memory); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    cuda::synchronize();
    cuda::upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    cuda::synchronize();
    cuda::download(to, from, bytes);
  }

 private:
  Device device_;
};

}  // namespace hyla::testing
