// Contents of device memory that are made there: to draw them on the host and send them takes
// longer than most of what is measured.
#include <cuda_runtime.h>

#include <algorithm>

#include "testing/device_check.h"
#include "testing/device_memory.h"
#include "testing/random.h"

namespace hyla::testing::cuda {
namespace {

template <class T>
__global__ void draw_normal(T* data, std::size_t n, Random random, double mean, double deviation) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step) {
    const double value = mean + deviation * random.normal(static_cast<std::int64_t>(i));
    data[i] = T(static_cast<float>(value));
  }
}

__global__ void hash_indices(unsigned* words, std::size_t n) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step) {
    words[i] = (static_cast<unsigned>(i) + 1u) * 2654435761u;
  }
}

template <class T>
void draw(void* memory, std::size_t n, const Random& random, double mean, double deviation) {
  constexpr std::size_t kMostCtas = 2048, kThreads = 256;
  const auto ctas = static_cast<unsigned>(std::clamp<std::size_t>(n / kThreads, 1, kMostCtas));
  draw_normal<<<ctas, kThreads, 0, static_cast<cudaStream_t>(stream().handle())>>>(
      static_cast<T*>(memory), n, random, mean, deviation);
}

}  // namespace

void fill_normal(void* memory, DType dtype, std::size_t n, double mean, double deviation,
                 std::uint64_t seed) {
  const Random random(seed, "device");
  switch (dtype) {
    case DType::kFloat32:
      draw<float>(memory, n, random, mean, deviation);
      break;
    case DType::kBFloat16:
      draw<bfloat16>(memory, n, random, mean, deviation);
      break;
    case DType::kFloat16:
      draw<float16>(memory, n, random, mean, deviation);
      break;
    default:
      throw InvalidArgument("dtype", "float32, bfloat16 or float16", name_of(dtype));
  }
  check(cudaGetLastError(), "random numbers");
}

void fill_words(void* memory, std::size_t bytes) {
  hash_indices<<<1024, 256, 0, static_cast<cudaStream_t>(stream().handle())>>>(
      static_cast<unsigned*>(memory), bytes / sizeof(unsigned));
  check(cudaGetLastError(), "words");
}

}  // namespace hyla::testing::cuda
