// Memory that a thread keeps from one call to the next, so that a step of decoding allocates
// nothing after the first.
#pragma once

#include <cstddef>
#include <memory>

namespace hyla::cpu {

class KeptMemory {
 public:
  // Aligned to a cache line, contents undefined.
  explicit KeptMemory(std::size_t bytes);
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  void* data() const { return block_.data.get(); }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  struct Block {
    std::unique_ptr<void, Free> data;
    std::size_t bytes = 0;
  };
  static Block& kept();  // empty while a call of this thread uses it

  Block block_;
};

}  // namespace hyla::cpu
