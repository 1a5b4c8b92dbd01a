#include "ops/support/gdn_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace hyla::gdn_test {
namespace {

constexpr std::int64_t kGuard = 32;  // elements before and behind

template <class T>
std::uint64_t pattern(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

// A quiet NaN with a payload that arithmetic does not produce; for integers nothing in range.
std::uint64_t poison(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0x7fc0beef;
    case DType::kBFloat16:
      return 0x7fd5;
    case DType::kFloat16:
      return 0x7eb5;
    case DType::kInt64:
      return 0x5a5a5a5a5a5a5a5a;
    default:
      return 0x5a5a5a5a & ((std::uint64_t{1} << (8 * size_of(dtype))) - 1);
  }
}

std::uint64_t encode(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat32:
      return pattern(static_cast<float>(value));
    case DType::kBFloat16:
      return bfloat16(static_cast<float>(value)).bits;
    case DType::kFloat16:
      return float16(static_cast<float>(value)).bits;
    case DType::kInt32:
      return pattern(static_cast<std::int32_t>(value));
    case DType::kInt64:
      return pattern(static_cast<std::int64_t>(value));
    case DType::kUInt32:
      return pattern(static_cast<std::uint32_t>(value));
    default:
      return pattern(static_cast<std::uint8_t>(value));
  }
}

std::string text(const Index& index) {
  std::ostringstream out;
  for (std::int64_t i : index) out << "[" << i << "]";
  return out.str();
}

}  // namespace

std::uint64_t Random::next() {  // splitmix64
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double Random::uniform(double low, double high) {
  return low + (high - low) * (static_cast<double>(next() >> 11) * 0x1p-53);
}

std::int64_t Random::integer(std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
}

Tensor::Tensor(DType dtype, Index shape, std::int64_t gap) {
  Index strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d] + gap;
  }
  *this = strided(dtype, std::move(shape), std::move(strides));
}

Tensor Tensor::strided(DType dtype, Index shape, Index strides) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  std::int64_t count = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] > 0) count += (shape[d] - 1) * strides[d];
  }
  tensor.shape_ = std::move(shape);
  tensor.strides_ = std::move(strides);
  const std::size_t size = size_of(dtype);
  const std::size_t bytes = static_cast<std::size_t>(count + 2 * kGuard) * size;
  tensor.memory_.resize((bytes + 7) / 8);
  const std::uint64_t bits = poison(dtype);
  for (std::size_t i = 0; i < tensor.memory_.size() * 8 / size; ++i) {
    std::memcpy(tensor.base() + i * size, &bits, size);
  }
  return tensor;
}

Tensor Tensor::of_indices(DType dtype, const Index& values) {
  Tensor tensor = strided(dtype, {static_cast<std::int64_t>(values.size())}, {2});
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensor.set({static_cast<std::int64_t>(i)}, static_cast<double>(values[i]));
  }
  return tensor;
}

Tensor Tensor::of_indices(DType dtype, const std::vector<Index>& rows) {
  const auto columns = static_cast<std::int64_t>(rows.empty() ? 0 : rows[0].size());
  Tensor tensor(dtype, {static_cast<std::int64_t>(rows.size()), columns}, 1);
  for_each_index(tensor.shape(), [&](const Index& i) {
    tensor.set(i, static_cast<double>(
                      rows[static_cast<std::size_t>(i[0])][static_cast<std::size_t>(i[1])]));
  });
  return tensor;
}

std::int64_t Tensor::offset(const Index& index) const {
  std::int64_t result = kGuard;
  for (std::size_t d = 0; d < index.size(); ++d) result += index[d] * strides_[d];
  return result;
}

std::int64_t Tensor::elements() const {
  return static_cast<std::int64_t>(memory_.size() * 8 / size_of(dtype_));
}

TensorView Tensor::view() const {
  TensorView view;
  if (dtype_ == DType::kNone) return view;
  view.data = const_cast<char*>(base()) + static_cast<std::size_t>(kGuard) * size_of(dtype_);
  view.dtype = dtype_;
  view.rank = static_cast<int>(shape_.size());
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    view.shape[d] = shape_[d];
    view.strides[d] = strides_[d];
  }
  return view;
}

double Tensor::get(const Index& index) const {
  const char* at = base() + static_cast<std::size_t>(offset(index)) * size_of(dtype_);
  switch (dtype_) {
    case DType::kFloat32: {
      float value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case DType::kBFloat16: {
      bfloat16 value;
      std::memcpy(&value.bits, at, sizeof value.bits);
      return static_cast<float>(value);
    }
    case DType::kFloat16: {
      float16 value;
      std::memcpy(&value.bits, at, sizeof value.bits);
      return static_cast<float>(value);
    }
    default:
      ADD_FAILURE() << "only numbers are read back";
      return 0;
  }
}

void Tensor::set(const Index& index, double value) {
  const std::uint64_t bits = encode(dtype_, value);
  std::memcpy(base() + static_cast<std::size_t>(offset(index)) * size_of(dtype_), &bits,
              size_of(dtype_));
}

void Tensor::fill(Random& random, double low, double high) {
  for_each_index(shape_, [&](const Index& index) { set(index, random.uniform(low, high)); });
}

bool Tensor::same_bits(const Tensor& other, std::int64_t offset) const {
  const std::size_t at = static_cast<std::size_t>(offset) * size_of(dtype_);
  return std::memcmp(base() + at, other.base() + at, size_of(dtype_)) == 0;
}

void Tensor::copy_element(const Tensor& from, std::int64_t offset) {
  const std::size_t at = static_cast<std::size_t>(offset) * size_of(dtype_);
  std::memcpy(base() + at, from.base() + at, size_of(dtype_));
}

double half_ulp(DType dtype, double value) {
  const int precision = dtype == DType::kFloat32 ? 24 : dtype == DType::kBFloat16 ? 8 : 11;
  const int smallest = dtype == DType::kFloat16 ? -14 : -126;
  const int exponent = value == 0 ? smallest : std::max(std::ilogb(value), smallest);
  return std::ldexp(0.5, exponent - precision + 1);
}

Expectation::Expectation(const Tensor& tensor, std::string name)
    : tensor_(&tensor), before_(tensor), name_(std::move(name)) {}

void Expectation::element(const Index& index, double value, double slack) {
  elements_.push_back({index, value, slack});
}

void Expectation::check() const {
  Tensor expected = before_;
  std::int64_t wrong = 0;
  for (const Element& element : elements_) {
    const double got = tensor_->get(element.index);
    const double bound = half_ulp(tensor_->dtype(), element.value) + element.slack;
    if (!(std::fabs(got - element.value) <= bound) && wrong++ == 0) {
      ADD_FAILURE() << name_ << text(element.index) << " is " << got << ", expected "
                    << element.value << " within " << bound;
    }
    expected.copy_element(*tensor_, tensor_->offset(element.index));
  }
  EXPECT_EQ(wrong, 0) << name_ << ": wrong elements of " << elements_.size();
  std::int64_t touched = 0;
  for (std::int64_t i = 0; i < tensor_->elements(); ++i) {
    if (!tensor_->same_bits(expected, i)) ++touched;
  }
  EXPECT_EQ(touched, 0) << name_ << ": elements written that the call must not touch";
}

}  // namespace hyla::gdn_test
