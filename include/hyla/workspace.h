// Scratch memory that the caller owns. An operation that needs some has a `*_workspace_bytes`
// function which computes the exact number from upper bounds; hyla never allocates device memory.
#ifndef HYLA_WORKSPACE_H_
#define HYLA_WORKSPACE_H_

#include <hyla/tensor.h>

#include <cstddef>

namespace hyla {

struct Workspace {
  void* data = nullptr;  // aligned to 256 bytes
  std::size_t bytes = 0;
  Device device{};
};

}  // namespace hyla

#endif  // HYLA_WORKSPACE_H_
