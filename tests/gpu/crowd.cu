#include "gpu/crowd.h"

#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "testing/device_check.h"

namespace hyla::testing::cuda {

struct CrowdBoard {
  int there, gone;  // CTAs
  int released;     // 1: they may go
  int step_us;      // between one that goes and the next
};

namespace {

// More than half of what there is: no two CTAs of anything that needs much share a multiprocessor.
constexpr unsigned kAllShared = 227 << 10;
constexpr unsigned long long kMostNs = 30'000'000'000;

cudaStream_t of(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle()); }

__device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// A CTA of one warp a multiprocessor. Only its first thread does anything.
__global__ void occupy(volatile CrowdBoard* board) {
  if (threadIdx.x != 0) return;
  const unsigned long long begin = now_ns();
  atomicAdd_system(const_cast<int*>(&board->there), 1);
  const auto in_time = [&] { return now_ns() - begin < kMostNs; };
  while (board->released == 0 && in_time()) __nanosleep(1000);
  __threadfence_system();  // what was written before `released`
  const unsigned long long seen = now_ns();
  const unsigned long long own = 1000ull * board->step_us * blockIdx.x;
  while (now_ns() - seen < own && in_time()) __nanosleep(200);
  atomicAdd_system(const_cast<int*>(&board->gone), 1);
}

int multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "a device");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "a device");
  return count;
}

}  // namespace

OwnStream::OwnStream() {
  cudaStream_t made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "a stream");
  handle_ = made;
}
OwnStream::~OwnStream() { cudaStreamDestroy(static_cast<cudaStream_t>(handle_)); }

bool ends_within(const Stream& stream, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (;;) {
    const cudaError_t code = cudaStreamQuery(of(stream));
    if (code != cudaErrorNotReady) {
      check(code, "a kernel");
      return true;
    }
    if (std::chrono::duration<double>(Clock::now() - begin).count() > seconds) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void must_end(const Stream& stream, double seconds, const char* what) {
  if (ends_within(stream, seconds)) return;
  std::fprintf(stderr, "%s: does not end\n", what);
  std::_Exit(EXIT_FAILURE);  // every other call of the runtime might wait for it
}

void fill_beside(void* memory, int byte, std::size_t bytes) {
  const OwnStream own;
  check(cudaMemsetAsync(memory, byte, bytes, of(own.get())), "memory");
}

void follow(const Stream& first, const Stream& second) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event");
  check(cudaEventRecord(event, of(first)), "an event");
  check(cudaStreamWaitEvent(of(second), event, 0), "an event");
  check(cudaEventDestroy(event), "an event");
}

Crowd::Crowd() {
  void* made = nullptr;
  check(cudaMallocHost(&made, sizeof(CrowdBoard)), "memory of the host");
  board_ = static_cast<CrowdBoard*>(made);
  *board_ = {};
  check(cudaFuncSetAttribute(occupy, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kAllShared)),
        "shared memory");
  hold(multiprocessors() - 1);  // loads the kernel, which may wait for the device
  end();
}

Crowd::~Crowd() {
  let_go(0);
  cudaStreamSynchronize(of(stream_.get()));
  cudaFreeHost(board_);
}

void Crowd::hold(int left) {
  const int ctas = multiprocessors() - left;
  *board_ = {};
  occupy<<<static_cast<unsigned>(ctas), 32, kAllShared, of(stream_.get())>>>(board_);
  check(cudaGetLastError(), "a kernel");
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const volatile CrowdBoard& board = *board_;
  while (board.there < ctas) {
    if (Clock::now() - begin > std::chrono::seconds(20)) {
      throw DeviceError("crowd: multiprocessors that somebody else holds", 0);
    }
  }
}

void Crowd::let_go(int step_us) {
  volatile CrowdBoard& board = *board_;
  board.step_us = step_us;
  board.released = 1;
}

void Crowd::end() {
  let_go(0);
  check(cudaStreamSynchronize(of(stream_.get())), "a kernel");
}

bool Crowd::holds() const { return static_cast<const volatile CrowdBoard*>(board_)->gone == 0; }

}  // namespace hyla::testing::cuda
