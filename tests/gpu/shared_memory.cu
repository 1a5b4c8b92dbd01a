// Kernels with more shared memory than all have, from several threads at once: whoever asks for
// less takes nothing from those that asked for more.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "device/launch.h"
#include "gpu/check.h"

namespace hyla::testing {

struct LastByte {
  unsigned bytes;
  unsigned* out;
};

// Writes to the last word there should be, and reads it again.
template <int Kernel>
__global__ void use_last(LastByte a) {
  extern __shared__ unsigned words[];
  const unsigned last = a.bytes / sizeof(unsigned) - 1;
  words[last] = a.bytes + Kernel;
  __syncthreads();
  if (threadIdx.x == 0) *a.out = words[last];
}

class GpuSharedMemory : public Gpu {};

template <int Kernel>
void launch_and_check(unsigned bytes, unsigned* out, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(1);
  shape.block = dim3(32);
  shape.shared_bytes = bytes;
  device::launch(use_last<Kernel>, shape, LastByte{bytes, out}, context);
  unsigned result = 0;
  const auto stream = static_cast<cudaStream_t>(context.stream.handle());
  ASSERT_EQ(cudaMemcpyAsync(&result, out, sizeof result, cudaMemcpyDeviceToHost, stream),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(result, bytes + Kernel);
}

TEST_F(GpuSharedMemory, AsMuchAsEachLaunchSays) {
  constexpr int kThreads = 4, kRounds = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      cudaStream_t stream = nullptr;
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      Context context;
      context.device = Device::cuda(0);
      context.stream = Stream::cuda(stream);
      const cuda::Memory out(cuda::allocate(sizeof(unsigned)));
      auto* word = static_cast<unsigned*>(out.get());
      for (int i = 0; i < kRounds; ++i) {
        const auto kib = static_cast<unsigned>(32 + (t * 67 + i * 41) % 190);
        launch_and_check<1>(kib << 10, word, context);
        launch_and_check<2>((225 - kib) << 10, word, context);
      }
      ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GpuSharedMemory, MoreThanThereIsIsAnError) {
  Context context;
  context.device = Device::cuda(0);
  context.stream = cuda::stream();
  device::LaunchShape shape;
  shape.grid = dim3(1);
  shape.block = dim3(32);
  for (int i = 0; i < 2; ++i) {
    shape.shared_bytes = 300 << 10;
    EXPECT_THROW(device::launch(use_last<3>, shape, LastByte{}, context), DeviceError);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    const cuda::Memory out(cuda::allocate(sizeof(unsigned)));
    launch_and_check<3>(200 << 10, static_cast<unsigned*>(out.get()), context);
  }
}

}  // namespace hyla::testing
