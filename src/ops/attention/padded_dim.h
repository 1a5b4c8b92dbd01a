// The head dims that the tensor core kernels are made for.
#pragma once

#include <cstdint>

namespace hyla::attention {

// The kernel's dim that a head of `dim` values, 256 at most, is padded to.
constexpr int padded_dim(std::int64_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

}  // namespace hyla::attention
