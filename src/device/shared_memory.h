// Leave for kernels to take more shared memory than all of them have. The runtime takes 0.4 us to
// give it, so that it is asked once a kernel and device.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>

namespace hyla::device {

class SharedMemoryLeave {
 public:
  // cudaSuccess when the kernel may have so many bytes on this device, which is the current one.
  cudaError_t ask(const void* kernel, int device, unsigned bytes) {
    Entry* entry = find(kernel, device);
    if (entry != nullptr && entry->bytes.load(std::memory_order_acquire) >= bytes) {
      return cudaSuccess;
    }
    return ask_again(kernel, device, bytes);
  }

  // Whatever was given before: a device that was reset has forgotten it.
  cudaError_t ask_again(const void* kernel, int device, unsigned bytes) {
    const std::lock_guard lock(mutex_);  // the last one to ask sets the kernel's limit
    Entry* entry = find(kernel, device);
    const unsigned before = entry == nullptr ? 0 : entry->bytes.load(std::memory_order_relaxed);
    const unsigned most = before > bytes ? before : bytes;
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most));
    if (entry != nullptr && error == cudaSuccess) {
      entry->bytes.store(most, std::memory_order_release);
    }
    return error;
  }

 private:
  struct Entry {
    std::atomic<std::uint64_t> key{0};  // 0: free. An entry that is taken stays so
    std::atomic<unsigned> bytes{0};
  };
  static constexpr int kBits = 10, kProbes = 8;

  // Null when the places of this key are taken: then it is asked every time.
  Entry* find(const void* kernel, int device) {
    if (device > std::numeric_limits<std::uint8_t>::max()) return nullptr;
    const std::uint64_t key =
        (reinterpret_cast<std::uintptr_t>(kernel) << 8) + static_cast<std::uint8_t>(device);
    const std::uint64_t place = key * 0x9e3779b97f4a7c15u >> (64 - kBits);
    for (std::size_t i = 0; i < kProbes; ++i) {
      Entry& entry = entries_[(place + i) % entries_.size()];
      std::uint64_t found = entry.key.load(std::memory_order_acquire);
      if (found == key) return &entry;
      if (found != 0) continue;
      if (entry.key.compare_exchange_strong(found, key, std::memory_order_acq_rel) ||
          found == key) {
        return &entry;
      }
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::array<Entry, std::size_t{1} << kBits> entries_;
};

// One for the program part that is launching, as its CUDA runtime is.
inline SharedMemoryLeave& shared_memory_leave() {
  static SharedMemoryLeave leave;
  return leave;
}

}  // namespace hyla::device
