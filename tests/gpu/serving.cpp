// The serving loop of the examples with all its operations on the GPU, every token verified.
#include "../../examples/serving/loop.h"

#include <gtest/gtest.h>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuServing = Gpu;

class DeviceMemory : public serving::Memory {
 public:
  Context context() const override {
    Context context;
    context.device = Device::cuda(0);
    context.stream = cuda::stream();
    return context;
  }
  // What nobody has written is NaN.
  void* allocate(std::size_t bytes) override {
    void* memory = cuda::allocate(bytes);
    cuda::fill(memory, 0xff, bytes);
    return memory;
  }
  void release(void* memory) override { cuda::release(memory); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    cuda::synchronize();
    cuda::upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    cuda::synchronize();
    cuda::download(to, from, bytes);
  }
};

int serve(bool bfloat16, int drafts, std::uint32_t seed) {
  serving::Options options;
  options.requests = 5;
  options.drafts = drafts;
  options.seed = seed;
  options.quiet = true;
  options.bfloat16 = bfloat16;
  options.device = "GPU";
  DeviceMemory memory;
  return serving::run(options, memory);
}

TEST_F(GpuServing, Float32) { EXPECT_EQ(serve(false, 3, 1), 0); }
TEST_F(GpuServing, BFloat16) { EXPECT_EQ(serve(true, 3, 2), 0); }
TEST_F(GpuServing, BFloat16WithoutDrafts) { EXPECT_EQ(serve(true, 0, 3), 0); }

}  // namespace
}  // namespace hyla::testing
