#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "testing/device_check.h"
#include "testing/device_memory.h"
#include "testing/median.h"

namespace hyla::testing::cuda {
namespace {

cudaStream_t the_stream() {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "a stream");
    return made;
  }();
  return stream;
}

// Numbers that are neither zero nor alike: constant data can run faster than real data.
__global__ void fill_numbers(float* data, std::size_t n) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step) {
    const unsigned hash = (static_cast<unsigned>(i) + 1u) * 2654435761u;
    data[i] = static_cast<float>(hash >> 8) * 0x1p-24f - 0.5f;
  }
}

// data [n] float4, updated in place.
template <int Loads>
__global__ void update_in_place(float4* data, std::size_t n) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x * Loads + threadIdx.x;
  float4 x[Loads];
#pragma unroll
  for (int i = 0; i < Loads; ++i) {
    if (first + i * blockDim.x < n) x[i] = data[first + i * blockDim.x];
  }
#pragma unroll
  for (int i = 0; i < Loads; ++i) {
    if (first + i * blockDim.x < n) {
      x[i].x = x[i].x * 0.999f + 0.001f;
      x[i].y = x[i].y * 0.999f + 0.001f;
      x[i].z = x[i].z * 0.999f + 0.001f;
      x[i].w = x[i].w * 0.999f + 0.001f;
      data[first + i * blockDim.x] = x[i];
    }
  }
}

// data [n] float4; nothing is written unless a sum is what no sum of this data is.
template <int Loads>
__global__ void read_only(float4* data, std::size_t n) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x * Loads + threadIdx.x;
  float4 x[Loads];
#pragma unroll
  for (int i = 0; i < Loads; ++i) {
    x[i] = first + i * blockDim.x < n ? data[first + i * blockDim.x] : make_float4(0, 0, 0, 0);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Loads; ++i) sum += x[i].x + x[i].y + x[i].z + x[i].w;
  if (sum == 1e30f) data[first] = x[0];
}

// data [1 + copies, n] float4: the first row is read once and written to all others. Without math.
template <int Loads>
__global__ void spread(float4* data, std::size_t n, int copies) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x * Loads + threadIdx.x;
  float4 x[Loads];
#pragma unroll
  for (int i = 0; i < Loads; ++i) {
    if (first + i * blockDim.x < n) x[i] = data[first + i * blockDim.x];
  }
  for (int copy = 1; copy <= copies; ++copy) {
    float4* to = data + static_cast<std::size_t>(copy) * n;
#pragma unroll
    for (int i = 0; i < Loads; ++i) {
      x[i].x *= 0.999f;
      if (first + i * blockDim.x < n) to[first + i * blockDim.x] = x[i];
    }
  }
}

// The fastest of these is the limit: which one that is depends on the size.
struct Streamer {
  void (*kernel)(float4*, std::size_t);
  unsigned threads, loads;
};
const Streamer kStreamers[] = {
    {update_in_place<8>, 32, 8}, {update_in_place<4>, 32, 4}, {update_in_place<2>, 128, 2}};
const Streamer kReaders[] = {{read_only<8>, 32, 8}, {read_only<8>, 128, 8}, {read_only<4>, 256, 4}};

struct Events {
  cudaEvent_t begin = nullptr, end = nullptr;
  Events() {
    check(cudaEventCreate(&begin), "an event");
    check(cudaEventCreate(&end), "an event");
  }
  // Of the process: at its end the driver may be gone before they are.
  static const Events& shared() {
    static const Events events;
    return events;
  }
};

// Released blocks by their size, once reuse_memory() was called. It dies with the process.
struct Blocks {
  // Larger ones are few, and other processes may want the memory.
  static constexpr std::size_t kLargest = std::size_t{64} << 20, kMost = std::size_t{1} << 30;
  bool reuse = false;
  std::size_t kept = 0;
  std::multimap<std::size_t, void*> free;
  std::unordered_map<void*, std::size_t> size;

  static Blocks& shared() {
    static Blocks blocks;
    return blocks;
  }
};

void* allocate_new(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)), "memory for the tensors");
  return memory;
}

// Memory of the host that the device copies from and to without the driver's help.
std::byte* staging(std::size_t bytes) {
  static std::byte* memory = nullptr;
  static std::size_t size = 0;
  if (bytes <= size) return memory;
  check(cudaStreamSynchronize(the_stream()), "a kernel");
  if (memory != nullptr) cudaFreeHost(memory);
  memory = nullptr;
  size = 0;
  void* made = nullptr;
  const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(bytes, 1 << 20));
  check(cudaMallocHost(&made, wanted), "memory of the host");
  memory = static_cast<std::byte*>(made);
  size = wanted;
  return memory;
}

}  // namespace

void reuse_memory() { Blocks::shared().reuse = std::getenv("HYLA_EXACT_MEMORY") == nullptr; }

void* allocate(std::size_t bytes) {
  Blocks& blocks = Blocks::shared();
  if (!blocks.reuse || bytes > Blocks::kLargest) return allocate_new(bytes);
  const std::size_t rounded = std::bit_ceil(std::max<std::size_t>(bytes, 512));
  if (const auto found = blocks.free.find(rounded); found != blocks.free.end()) {
    void* memory = found->second;
    blocks.free.erase(found);
    blocks.kept -= rounded;
    return memory;
  }
  void* memory = allocate_new(rounded);
  blocks.size[memory] = rounded;
  return memory;
}

void release(void* memory) {
  Blocks& blocks = Blocks::shared();
  const auto found = blocks.size.find(memory);
  if (found != blocks.size.end() && blocks.kept + found->second <= Blocks::kMost) {
    blocks.free.emplace(found->second, memory);
    blocks.kept += found->second;
    return;
  }
  if (found != blocks.size.end()) blocks.size.erase(found);
  cudaFree(memory);
}

void upload_all(std::span<const Upload> copies) {
  std::size_t bytes = 0;
  for (const Upload& copy : copies) bytes += copy.from.size();
  synchronize();  // the last copies have left the staging memory
  std::byte* memory = staging(bytes);
  for (const auto& [to, from] : copies) {
    std::memcpy(memory, from.data(), from.size());
    check(cudaMemcpyAsync(to, memory, from.size(), cudaMemcpyHostToDevice, the_stream()),
          "a copy to the device");
    memory += from.size();
  }
}

void download_all(std::span<const Download> copies) {
  std::size_t bytes = 0;
  for (const Download& copy : copies) bytes += copy.to.size();
  std::byte* const memory = staging(bytes);
  std::size_t at = 0;
  for (const auto& [to, from] : copies) {
    check(cudaMemcpyAsync(memory + at, from, to.size(), cudaMemcpyDeviceToHost, the_stream()),
          "a copy from the device");
    at += to.size();
  }
  check(cudaStreamSynchronize(the_stream()), "a kernel, or a copy of its results");
  at = 0;
  for (const Download& copy : copies) {
    std::memcpy(copy.to.data(), memory + at, copy.to.size());
    at += copy.to.size();
  }
}

void upload(void* to, const void* from, std::size_t bytes) {
  synchronize();  // the memory may be one that a kernel of its last owner still uses
  check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "a copy to the device");
  // It returns once pageable memory is staged, and our stream does not wait for the rest.
  check(cudaDeviceSynchronize(), "a copy to the device");
}

void download(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "a copy from the device");
}

void fill(void* memory, int byte, std::size_t bytes) {
  synchronize();
  check(cudaMemset(memory, byte, bytes), "a fill");
  check(cudaDeviceSynchronize(), "a fill");
}

void fill_async(void* memory, int byte, std::size_t bytes) {
  check(cudaMemsetAsync(memory, byte, bytes, the_stream()), "a fill");
}

void copy_async(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, the_stream()), "a copy");
}

Stream stream() { return Stream::cuda(the_stream()); }

void synchronize() { check(cudaStreamSynchronize(the_stream()), "a kernel"); }

std::size_t free_bytes() {
  std::size_t available = 0, total = 0;
  check(cudaMemGetInfo(&available, &total), "the memory of the device");
  return available;
}

Captured::Captured(const std::function<void()>& enqueue) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(the_stream(), cudaStreamCaptureModeThreadLocal), "a capture");
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(the_stream(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(the_stream(), &graph), "a capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(code, "a graph");
  executable_ = executable;
}

Captured::~Captured() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_)); }

void Captured::replay() const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), the_stream()), "a graph");
}

double Captured::replay_us() const {
  const Events& events = Events::shared();
  check(cudaEventRecord(events.begin, the_stream()), "an event");
  replay();
  check(cudaEventRecord(events.end, the_stream()), "an event");
  synchronize();
  float ms = 0;
  check(cudaEventElapsedTime(&ms, events.begin, events.end), "an event");
  return ms * 1000;
}

namespace {
__global__ void nothing() {}
}  // namespace

void launch_nothing() {
  nothing<<<1, 32, 0, the_stream()>>>();
  check(cudaGetLastError(), "an empty kernel");
}

double graph_us(const std::function<void()>& enqueue, double seconds) {
  const Captured graph(enqueue);
  constexpr int kWarmUps = 3, kLeast = 10, kMost = 2000;
  for (int i = 0; i < kWarmUps; ++i) graph.replay();
  synchronize();
  std::vector<double> times;
  const auto started = std::chrono::steady_clock::now();
  while (static_cast<int>(times.size()) < kMost) {
    times.push_back(graph.replay_us());
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
    if (spent.count() >= seconds && static_cast<int>(times.size()) >= kLeast) break;
  }
  return median(std::move(times));
}

namespace {

// The fastest of some kernels over a buffer of so many bytes.
double fastest_us(std::span<const Streamer> streamers, double bytes, double seconds) {
  const std::size_t n = std::max<std::size_t>(static_cast<std::size_t>(bytes) / sizeof(float4), 1);
  const std::size_t copies = std::max<std::size_t>(1, kColdBytes / (n * sizeof(float4)) + 1);
  const std::size_t repeats = std::min<std::size_t>(copies, 64), step = copies / repeats;
  const std::unique_ptr<void, decltype(&release)> memory(allocate(copies * n * sizeof(float4)),
                                                         release);
  auto* data = static_cast<float4*>(memory.get());
  fill_numbers<<<1024, 256, 0, the_stream()>>>(reinterpret_cast<float*>(data), copies * n * 4);
  check(cudaGetLastError(), "the limit's data");
  double best = 0;
  for (const Streamer& streamer : streamers) {
    const std::size_t block = streamer.threads * streamer.loads;
    const double us = graph_us(
        [&] {
          for (std::size_t i = 0; i < repeats; ++i) {
            streamer.kernel<<<static_cast<unsigned>((n + block - 1) / block), streamer.threads, 0,
                              the_stream()>>>(data + i * step * n, n);
          }
          check(cudaGetLastError(), "the limit's kernel");
        },
        seconds);
    if (best == 0 || us < best) best = us;
  }
  return best / static_cast<double>(repeats);
}

}  // namespace

double streaming_us(double bytes, double seconds) {
  return fastest_us(kStreamers, bytes / 2, seconds);
}

double reading_us(double bytes, double seconds) { return fastest_us(kReaders, bytes, seconds); }

double spreading_us(double bytes, int copies, double seconds) {
  const std::size_t n =
      std::max<std::size_t>(static_cast<std::size_t>(bytes / (1 + copies)) / sizeof(float4), 1);
  const std::size_t step = n * static_cast<std::size_t>(1 + copies);
  const std::size_t repeats = std::min<std::size_t>(kColdBytes / (step * sizeof(float4)) + 1, 64);
  const std::unique_ptr<void, decltype(&release)> memory(allocate(repeats * step * sizeof(float4)),
                                                         release);
  auto* data = static_cast<float4*>(memory.get());
  fill_numbers<<<1024, 256, 0, the_stream()>>>(reinterpret_cast<float*>(data), repeats * step * 4);
  check(cudaGetLastError(), "the limit's data");
  constexpr int kLoads = 8, kThreads = 32;
  const double us = graph_us(
      [&] {
        for (std::size_t i = 0; i < repeats; ++i) {
          spread<kLoads><<<static_cast<unsigned>((n + kLoads * kThreads - 1) / (kLoads * kThreads)),
                           kThreads, 0, the_stream()>>>(data + i * step, n, copies);
        }
        check(cudaGetLastError(), "the limit's kernel");
      },
      seconds);
  return us / static_cast<double>(repeats);
}

}  // namespace hyla::testing::cuda
