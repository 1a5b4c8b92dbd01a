// Division by a number that a launch knows.
#pragma once

#include <hyla/host_device.h>

#include <cstdint>

namespace hyla::device {

// n / divisor for n below 2^31, by a multiplication.
struct Divider {
  std::uint32_t factor = 0;
  int shift = 31;

  Divider() = default;
  explicit Divider(std::uint32_t divisor) {
    while ((1u << (shift - 31)) < divisor) ++shift;
    factor = static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  HYLA_HOST_DEVICE int operator()(int n) const {
    return static_cast<int>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * factor >>
                            shift);
  }
};

}  // namespace hyla::device
