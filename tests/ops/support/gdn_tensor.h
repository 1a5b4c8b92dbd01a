// Guarded tensors by multi-index, and what a call must leave in them: a test says which elements
// are written and within which bound; every other bit stays.
#pragma once

#include <hyla/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/support/under_test.h"
#include "testing/buffer.h"
#include "testing/random.h"

namespace hyla::gdn_test {

using Index = std::vector<std::int64_t>;

// One number after another.
class Random {
 public:
  explicit Random(std::uint64_t seed) : source_(seed, "gdn") {}
  double uniform(double low, double high) { return low + (high - low) * source_.uniform(next_++); }
  std::int64_t integer(std::int64_t low, std::int64_t high) {  // both ends included
    return low + source_.below(next_++, high - low + 1);
  }

 private:
  testing::Random source_;
  std::int64_t next_ = 0;
};

class Tensor {
 public:
  Tensor() = default;  // absent
  // Row-major; `gap` elements that nobody may touch lie behind every run of the last dimension.
  Tensor(DType dtype, const Index& shape, std::int64_t gap = 0);
  static Tensor strided(DType dtype, const Index& shape, const Index& strides);
  static Tensor of_indices(DType dtype, const Index& values);
  static Tensor of_table(DType dtype, const std::vector<Index>& rows);

  TensorView view() const { return buffer_.has_value() ? buffer_->view() : TensorView(); }
  double get(const Index& index) const { return testing::load_element(view(), offset(index)); }
  void set(const Index& index, double value) {  // rounds to the dtype
    testing::store_element(view(), offset(index), value);
  }
  void fill(Random& random, double low, double high);
  const Index& shape() const { return shape_; }
  const testing::Buffer& buffer() const { return *buffer_; }

 private:
  std::int64_t offset(const Index& index) const;
  std::optional<testing::Buffer> buffer_;
  Index shape_;
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

// What a call must leave in a tensor. Made before the call; everything not mentioned keeps its
// bits.
class Expectation {
 public:
  explicit Expectation(const Tensor& tensor, std::string name);
  // Element `index` becomes `value`, rounded once, up to `slack`.
  void element(const Index& index, double value, double slack);
  void check() const;      // reports through GoogleTest
  bool unchanged() const;  // every element as before

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
