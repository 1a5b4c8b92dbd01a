// The workspace of a call whose rows two kernels share: the pieces of decode rows, then what the
// prefill kernel needs, and all that is left is its.
#pragma once

#include <cstddef>

namespace hyla::attention {

inline std::size_t mixed_workspace_bytes(std::size_t decode, std::size_t prefill) {
  constexpr std::size_t kAlignment = 256;
  return (decode + kAlignment - 1) / kAlignment * kAlignment + prefill;
}

}  // namespace hyla::attention
