// How fast the matrix units are: products of random bfloat16 numbers by every warpgroup of every
// multiprocessor, with nothing else in the way.
#include <cuda_runtime.h>

#include "arch/wgmma_any.cuh"
#include "testing/device_check.h"
#include "testing/device_memory.h"

namespace hyla::testing::cuda {
namespace {

constexpr int kGroups = 3, kThreads = kGroups * 128;
constexpr int kProducts = 16, kRounds = 512;  // of each warpgroup
constexpr int kTileWords = 64 * 128 / 2;      // 64 x 128 numbers, two a word

// Numbers of about 1/8 with either sign, so that sums stay finite.
__device__ std::uint32_t pair_of(std::uint32_t i) {
  i ^= i >> 16, i *= 0x7feb352du, i ^= i >> 15, i *= 0x846ca68bu, i ^= i >> 16;
  return (i & 0x807f807fu) | 0x3e003e00u;
}

__global__ void __launch_bounds__(kThreads, 1) multiply(float* sink) {
  __shared__ __align__(1024) std::uint32_t tile[kTileWords];
  for (int i = static_cast<int>(threadIdx.x); i < kTileWords; i += kThreads) {
    tile[i] = pair_of(static_cast<std::uint32_t>(i));
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  std::uint32_t left[4];
  float sum[64];
#pragma unroll
  for (int i = 0; i < 4; ++i) left[i] = pair_of(threadIdx.x * 4 + static_cast<std::uint32_t>(i));
#pragma unroll
  for (int i = 0; i < 64; ++i) sum[i] = 0;
  const arch::WgmmaDescriptor right =
      arch::descriptor(arch::uniform(arch::shared_address(tile)), 8192);
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    arch::pin(left);
    arch::pin(sum);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      arch::wgmma_rs<__nv_bfloat16, 128, true>(sum, left, right + (i & 3) * 128, true);
    }
    arch::wgmma_commit();
    arch::wgmma_wait<0>();
    arch::pin(sum);
  }
  float total = 0;
#pragma unroll
  for (int i = 0; i < 64; ++i) total += sum[i];
  sink[blockIdx.x * kThreads + threadIdx.x] = total;
}

}  // namespace

double matrix_flops(double seconds) {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "the current one");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
        "its multiprocessors");
  auto* sink = static_cast<float*>(allocate(static_cast<std::size_t>(count) * kThreads * 4));
  const auto launch = [&] {
    multiply<<<static_cast<unsigned>(count), kThreads, 0,
               static_cast<cudaStream_t>(stream().handle())>>>(sink);
  };
  const double us = graph_us(launch, seconds);
  release(sink);
  return 2.0 * 64 * 128 * 16 * kProducts * kRounds * kGroups * count / us * 1e6;
}

}  // namespace hyla::testing::cuda
