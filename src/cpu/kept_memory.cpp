#include "cpu/kept_memory.h"

#include <new>
#include <utility>

namespace hyla::cpu {
namespace {
constexpr std::align_val_t kCacheLine{64};
// What a call needs beyond this is given back: a thread that once made a huge call stays small.
constexpr std::size_t kMost = std::size_t{64} << 20;
}  // namespace

void KeptMemory::Free::operator()(void* memory) const { ::operator delete(memory, kCacheLine); }

KeptMemory::Block& KeptMemory::kept() {
  thread_local Block block;
  return block;
}

// Taken away, not shared: while this call waits for its threads, a pool may run another call here.
KeptMemory::KeptMemory(std::size_t bytes) : block_(std::exchange(kept(), Block{})) {
  if (block_.bytes >= bytes) return;
  block_ = Block{};
  block_.data.reset(::operator new(bytes, kCacheLine));
  block_.bytes = bytes;
}

KeptMemory::~KeptMemory() {
  if (block_.bytes <= kMost && block_.bytes > kept().bytes) kept() = std::move(block_);
}

}  // namespace hyla::cpu
