// Guarded buffers addressed by index, everything in them poison until it is set, and the random
// draws that shape them.
#pragma once

#include <gtest/gtest.h>
#include <hyla/tensor.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <utility>
#include <vector>

#include "testing/buffer.h"

namespace hyla::tests {

using Sizes = std::vector<std::int64_t>;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  std::int64_t from(std::int64_t low, std::int64_t high) {  // both included
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double p) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < p; }
  double number() { return static_cast<double>(engine_() >> 11) * 0x1p-51 - 2.0; }  // [-2, 2)
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[from(0, static_cast<std::int64_t>(values.size()) - 1)];
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1],
                values[static_cast<std::size_t>(from(0, static_cast<std::int64_t>(i) - 1))]);
    }
  }
  DType float_type() { return pick({DType::kFloat32, DType::kBFloat16, DType::kFloat16}); }

  // Dimensions in any order in memory, with gaps; the last one contiguous if asked.
  Sizes strides(const Sizes& shape, bool contiguous = false) {
    std::vector<std::size_t> order(shape.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    shuffle(order);
    if (contiguous) {
      std::erase(order, shape.size() - 1);
      order.insert(order.begin(), shape.size() - 1);
    }
    Sizes result(shape.size());
    std::int64_t step = contiguous ? 1 : from(1, 2);
    for (std::size_t d : order) {
      result[d] = step;
      step = step * std::max<std::int64_t>(shape[d], 1) + from(0, 3);
    }
    return result;
  }

 private:
  std::mt19937_64 engine_;
};

class Tensor {
 public:
  Tensor(DType dtype, const Sizes& shape, const Sizes& strides = {})
      : buffer_("tensor", dtype, shape, strides) {}

  const TensorView& view() const { return buffer_.view(); }
  // Elements and gaps, to the bit, and unbroken guards.
  bool same_memory(const Tensor& other) const {
    return buffer_.data_bytes() == other.buffer_.data_bytes() &&
           std::memcmp(buffer_.data(), other.buffer_.data(), buffer_.data_bytes()) == 0 &&
           !buffer_.check_guards().has_value();
  }
  void restore(const Tensor& other) {
    std::memcpy(buffer_.data(), other.buffer_.data(), buffer_.data_bytes());
  }

  double get(std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) const {
    return testing::load_element(view(), offset(i, j, k));
  }
  void set(double value, std::int64_t i, std::int64_t j = 0, std::int64_t k = 0) {
    testing::store_element(view(), offset(i, j, k), value);
  }

 private:
  std::int64_t offset(std::int64_t i, std::int64_t j, std::int64_t k) const {
    return i * view().strides[0] + j * view().strides[1] + k * view().strides[2];
  }

  testing::Buffer buffer_;
};

inline Tensor indices(std::initializer_list<std::int64_t> values) {
  Tensor result(DType::kInt32, {static_cast<std::int64_t>(values.size())});
  std::int64_t i = 0;
  for (std::int64_t value : values) result.set(static_cast<double>(value), i++);
  return result;
}

// Half the distance between neighbours of `dtype` around `value`: what rounding to nearest may
// cost.
inline double half_ulp(DType dtype, double value) {
  const int digits = dtype == DType::kFloat32 ? 24 : dtype == DType::kBFloat16 ? 8 : 11;
  const int least = dtype == DType::kFloat16 ? -14 : -126;
  int exponent = 0;
  std::frexp(value, &exponent);  // value = f * 2^exponent, 1/2 <= f < 1
  return std::ldexp(1.0, std::max(exponent - 1, least) - digits);
}

// Unit roundoff of the arithmetic inside an implementation.
inline double unit_roundoff(const std::string& implementation) {
  return implementation == "reference" ? 0x1p-53 : 0x1p-24;
}

}  // namespace hyla::tests
