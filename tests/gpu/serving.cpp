// The serving loop of the examples with all its operations on the GPU, every token verified.
#include "../../examples/serving/loop.h"

#include <gtest/gtest.h>

#include "gpu/check.h"
#include "testing/serving_memory.h"

namespace hyla::testing {
namespace {

using GpuServing = Gpu;

// What nobody has written is NaN.
class PoisonedMemory : public ServingMemory {
 public:
  PoisonedMemory() : ServingMemory(Device::cuda(0)) {}
  void* allocate(std::size_t bytes) override {
    void* memory = ServingMemory::allocate(bytes);
    cuda::fill(memory, 0xff, bytes);
    return memory;
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
  PoisonedMemory memory;
  return serving::run(options, memory);
}

TEST_F(GpuServing, Float32) { EXPECT_EQ(serve(false, 3, 1), 0); }
TEST_F(GpuServing, BFloat16) { EXPECT_EQ(serve(true, 3, 2), 0); }
TEST_F(GpuServing, BFloat16WithoutDrafts) { EXPECT_EQ(serve(true, 0, 3), 0); }

}  // namespace
}  // namespace hyla::testing
