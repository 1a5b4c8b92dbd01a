#include <cuda_runtime.h>
#include <hyla/error.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "testing/device_memory.h"

namespace hyla::testing::cuda {
namespace {

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceError(std::string("device: ") + what + ": " + cudaGetErrorString(code), code);
}

cudaStream_t the_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "a stream");
    return made;
  }();
  return stream;
}

constexpr int kWarp = 32, kLoads = 8;  // 8 x 16 bytes in flight a thread
constexpr std::size_t kBlockBytes = kWarp * kLoads * sizeof(float4);
constexpr std::size_t kColdBytes = std::size_t{512} << 20;  // several times any L2

// data [n] float4, updated in place. One-warp blocks: low occupancy keeps a row's read and write
// close together in DRAM, 4-5 % faster than fuller ones on an H200.
__global__ void update_in_place(float4* data, std::size_t n) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kWarp * kLoads + threadIdx.x;
  float4 x[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (first + i * kWarp < n) x[i] = data[first + i * kWarp];
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (first + i * kWarp < n) {
      x[i].x = x[i].x * 0.999f + 0.001f;
      x[i].y = x[i].y * 0.999f + 0.001f;
      x[i].z = x[i].z * 0.999f + 0.001f;
      x[i].w = x[i].w * 0.999f + 0.001f;
      data[first + i * kWarp] = x[i];
    }
  }
}

struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  ~Graph() {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
  }
};

}  // namespace

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)), "memory for the tensors");
  return memory;
}

void release(void* memory) { cudaFree(memory); }

void upload(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "a copy to the device");
}

void download(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "a copy from the device");
}

Stream stream() { return Stream::cuda(the_stream()); }

void synchronize() { check(cudaStreamSynchronize(the_stream()), "a kernel"); }

std::size_t free_bytes() {
  std::size_t available = 0, total = 0;
  check(cudaMemGetInfo(&available, &total), "the memory of the device");
  return available;
}

double graph_us(const std::function<void()>& enqueue, double seconds) {
  Graph g;
  check(cudaStreamBeginCapture(the_stream(), cudaStreamCaptureModeThreadLocal), "a capture");
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(the_stream(), &g.graph);
    throw;
  }
  check(cudaStreamEndCapture(the_stream(), &g.graph), "a capture");
  check(cudaGraphInstantiate(&g.executable, g.graph, 0), "a graph");
  check(cudaEventCreate(&g.begin), "an event");
  check(cudaEventCreate(&g.end), "an event");
  constexpr int kWarmUps = 3, kLeast = 10, kMost = 2000;
  for (int i = 0; i < kWarmUps; ++i) check(cudaGraphLaunch(g.executable, the_stream()), "a graph");
  synchronize();
  std::vector<float> times;
  const auto started = std::chrono::steady_clock::now();
  while (static_cast<int>(times.size()) < kMost) {
    check(cudaEventRecord(g.begin, the_stream()), "an event");
    check(cudaGraphLaunch(g.executable, the_stream()), "a graph");
    check(cudaEventRecord(g.end, the_stream()), "an event");
    synchronize();
    float ms = 0;
    check(cudaEventElapsedTime(&ms, g.begin, g.end), "an event");
    times.push_back(ms * 1000);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
    if (spent.count() >= seconds && static_cast<int>(times.size()) >= kLeast) break;
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

double streaming_us(double bytes, double seconds) {
  const std::size_t one = std::max<std::size_t>(static_cast<std::size_t>(bytes / 2), 16);
  const std::size_t n = one / sizeof(float4);
  const std::size_t copies = std::max<std::size_t>(1, (kColdBytes + one - 1) / one);
  const std::size_t repeats = std::min<std::size_t>(copies, 64);
  const std::size_t step = copies / repeats;
  void* memory = allocate(one * copies);
  double us = 0;
  try {
    check(cudaMemset(memory, 0, one * copies), "memory for the limit");
    us = graph_us(
        [&] {
          for (std::size_t i = 0; i < repeats; ++i) {
            auto* data = reinterpret_cast<float4*>(static_cast<char*>(memory) +
                                                   i * step * (n * sizeof(float4)));
            const auto blocks =
                static_cast<unsigned>((n * sizeof(float4) + kBlockBytes - 1) / kBlockBytes);
            update_in_place<<<blocks, kWarp, 0, the_stream()>>>(data, n);
          }
          check(cudaGetLastError(), "the limit's kernel");
        },
        seconds);
  } catch (...) {
    release(memory);
    throw;
  }
  release(memory);
  return us / static_cast<double>(repeats);
}

}  // namespace hyla::testing::cuda
