// Tensors whose every byte is accounted for: memory starts as NaN (indices: as a number far out of
// any range), the gaps between strides and both ends stay so, and a test says which elements a call
// was to write and within which bound.
#pragma once

#include <hyla/tensor.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace hyla::gdn_test {

using Index = std::vector<std::int64_t>;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  double uniform(double low, double high);
  std::int64_t integer(std::int64_t low, std::int64_t high);  // both ends included

 private:
  std::uint64_t next();
  std::uint64_t state_;
};

class Tensor {
 public:
  Tensor() = default;  // absent
  // Row-major; `gap` elements that nobody may touch lie behind every run of the last dimension.
  Tensor(DType dtype, Index shape, std::int64_t gap = 0);
  static Tensor strided(DType dtype, Index shape, Index strides);
  static Tensor of_indices(DType dtype, const Index& values);
  static Tensor of_indices(DType dtype, const std::vector<Index>& rows);

  TensorView view() const;  // a test that writes through it says so
  double get(const Index& index) const;
  void set(const Index& index, double value);  // rounds to the dtype
  void fill(Random& random, double low, double high);

  DType dtype() const { return dtype_; }
  const Index& shape() const { return shape_; }
  std::int64_t offset(const Index& index) const;  // in elements, from the first byte owned
  const std::vector<std::uint64_t>& bits() const { return memory_; }
  bool same_bits(const Tensor& other, std::int64_t offset) const;
  std::int64_t elements() const;  // owned, guards included
  void copy_element(const Tensor& from, std::int64_t offset);

 private:
  const char* base() const { return reinterpret_cast<const char*>(memory_.data()); }
  char* base() { return reinterpret_cast<char*>(memory_.data()); }
  DType dtype_ = DType::kNone;
  Index shape_, strides_;
  std::vector<std::uint64_t> memory_;
};

// Calls body(index) for every index of the shape, the last dimension fastest.
template <class Body>
void for_each_index(const Index& shape, Body&& body) {
  for (std::int64_t extent : shape) {
    if (extent == 0) return;
  }
  Index index(shape.size(), 0);
  for (;;) {
    body(static_cast<const Index&>(index));
    std::size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

double half_ulp(DType dtype, double value);  // how far rounding to the dtype may move `value`

// Reassociated float64 sums of up to a few hundred terms differ by less than this times the largest
// magnitude involved (256 terms, two roundings each: 512 * 2^-53 = 6e-14).
inline constexpr double kReassociation = 1e-12;

// What a call must leave in a tensor. Made before the call; everything not mentioned keeps its bits.
class Expectation {
 public:
  explicit Expectation(const Tensor& tensor, std::string name);
  // Element `index` becomes `value`, rounded once, up to `slack`.
  void element(const Index& index, double value, double slack);
  void check() const;  // reports through GoogleTest

 private:
  const Tensor* tensor_;
  Tensor before_;
  std::string name_;
  struct Element {
    Index index;
    double value, slack;
  };
  std::vector<Element> elements_;
};

}  // namespace hyla::gdn_test
