#include "ops/support/gdn_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "testing/compare.h"

namespace hyla::gdn_test {
namespace {

std::string text(const Index& index) {
  std::string result;
  for (std::int64_t i : index) result.append("[").append(std::to_string(i)).append("]");
  return result;
}

}  // namespace

Tensor::Tensor(DType dtype, const Index& shape, std::int64_t gap) {
  Index strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d] + gap;
  }
  *this = strided(dtype, shape, strides);
}

Tensor Tensor::strided(DType dtype, const Index& shape, const Index& strides) {
  Tensor tensor;
  tensor.buffer_.emplace("tensor", dtype, shape, strides);
  tensor.shape_ = shape;
  return tensor;
}

Tensor Tensor::of_indices(DType dtype, const Index& values) {
  Tensor tensor = strided(dtype, {static_cast<std::int64_t>(values.size())}, {2});
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensor.set({static_cast<std::int64_t>(i)}, static_cast<double>(values[i]));
  }
  return tensor;
}

Tensor Tensor::of_table(DType dtype, const std::vector<Index>& rows) {
  const auto columns = static_cast<std::int64_t>(rows.empty() ? 0 : rows[0].size());
  Tensor tensor(dtype, {static_cast<std::int64_t>(rows.size()), columns}, 1);
  for_each_index(tensor.shape(), [&](const Index& i) {
    tensor.set(i, static_cast<double>(
                      rows[static_cast<std::size_t>(i[0])][static_cast<std::size_t>(i[1])]));
  });
  return tensor;
}

std::int64_t Tensor::offset(const Index& index) const {
  std::int64_t result = 0;
  for (std::size_t d = 0; d < index.size(); ++d) {
    result += index[d] * buffer_->view().strides[d];
  }
  return result;
}

void Tensor::fill(Random& random, double low, double high) {
  for_each_index(shape_, [&](const Index& index) { set(index, random.uniform(low, high)); });
}

Expectation::Expectation(const Tensor& tensor, std::string name)
    : tensor_(&tensor), before_(tensor), name_(std::move(name)) {}

void Expectation::element(const Index& index, double value, double slack) {
  elements_.push_back({index, value, slack});
}

bool Expectation::unchanged() const {
  const testing::Buffer &now = tensor_->buffer(), &then = before_.buffer();
  return std::memcmp(now.data(), then.data(), now.data_bytes()) == 0;
}

void Expectation::check() const {
  Tensor expected = before_;
  const testing::Buffer& now = tensor_->buffer();
  std::int64_t wrong = 0;
  for (const Element& element : elements_) {
    const double got = tensor_->get(element.index);
    const double bound = testing::half_ulp(now.dtype(), element.value) + element.slack;
    if (!(std::fabs(got - element.value) <= bound) && wrong++ == 0) {
      ADD_FAILURE() << name_ << text(element.index) << " is " << got << ", expected "
                    << element.value << " within " << bound;
    }
    expected.set(element.index, got);  // exact: `got` has this dtype
  }
  EXPECT_EQ(wrong, 0) << name_ << ": wrong elements of " << elements_.size();
  EXPECT_EQ(std::memcmp(now.data(), expected.buffer().data(), now.data_bytes()), 0)
      << name_ << ": an element was written that the call must not touch";
  EXPECT_EQ(now.check_guards().value_or(""), "") << name_;
}

}  // namespace hyla::gdn_test
