#include "testing/buffer.h"

#include <hyla/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>

#include "reference/scalar.h"

namespace hyla::testing {
namespace {

constexpr std::size_t kAlignment = 64;
// More than the widest vector load of any backend, and a multiple of the alignment.
constexpr std::size_t kGuardBytes = 512;

// Quiet NaNs with a payload of their own; for integers, values that no index may have.
std::uint64_t poison_bits(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0x7fc0dead;
    case DType::kBFloat16:
      return 0x7fde;
    case DType::kFloat16:
      return 0x7eda;
    case DType::kFloat8E4M3:
      return 0x7f;
    case DType::kInt32:
    case DType::kUInt32:
      return 0x7bad7bad;
    case DType::kInt64:
      return 0x7bad7bad7bad7bad;
    default:
      return 0xa5;
  }
}

// work(begin, end) over [0, count), on all threads of the machine where there is much to do: the
// random numbers of a benchmark's gigabytes would otherwise take longer than the benchmark.
template <class Work>
void share(std::int64_t count, const Work& work) {
  constexpr std::int64_t kShare = 1 << 22;
  const auto most = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  const std::int64_t shares = std::clamp<std::int64_t>(count / kShare, 1, most);
  std::vector<std::jthread> threads;
  for (std::int64_t i = 1; i < shares; ++i) {
    threads.emplace_back([&, i] { work(count * i / shares, count * (i + 1) / shares); });
  }
  work(0, count / shares);
}

template <class Body>
void for_each_element_at_once(const TensorView& view, const Body& body) {
  share(view.numel(),
        [&](std::int64_t begin, std::int64_t end) { for_each_element_in(view, begin, end, body); });
}

// `bytes` is a multiple of the element.
void poison_bytes(std::byte* memory, std::size_t bytes, DType dtype) {
  const std::uint64_t bits = poison_bits(dtype);
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  share(static_cast<std::int64_t>(bytes) / size, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(memory + i * size, &bits, static_cast<std::size_t>(size));
    }
  });
}

std::size_t first_damage(const std::byte* begin, std::size_t count, DType dtype) {
  const std::uint64_t bits = poison_bits(dtype);
  const std::size_t size = size_of(dtype);
  std::size_t i = 0;
  while (i < count && std::memcmp(begin + i, &bits, size) == 0) i += size;
  return i;
}

std::int64_t extent(const TensorView& view) {
  if (view.numel() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) last += (view.shape[d] - 1) * view.strides[d];
  return last + 1;
}

template <class T>
T& at(const TensorView& view, std::int64_t offset) {
  return static_cast<T*>(view.data)[offset];
}

}  // namespace

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

double load_element(const TensorView& view, std::int64_t offset) {
  switch (view.dtype) {
    case DType::kInt32:
      return at<std::int32_t>(view, offset);
    case DType::kInt64:
      return static_cast<double>(at<std::int64_t>(view, offset));
    case DType::kUInt32:
      return at<std::uint32_t>(view, offset);
    case DType::kUInt8:
    case DType::kBool:
      return at<std::uint8_t>(view, offset);
    default:
      return reference::load(view.data, view.dtype, offset);
  }
}

void store_element(const TensorView& view, std::int64_t offset, double value) {
  switch (view.dtype) {
    case DType::kInt32:
      at<std::int32_t>(view, offset) = static_cast<std::int32_t>(value);
      return;
    case DType::kInt64:
      at<std::int64_t>(view, offset) = static_cast<std::int64_t>(value);
      return;
    case DType::kUInt32:
      at<std::uint32_t>(view, offset) = static_cast<std::uint32_t>(value);
      return;
    case DType::kUInt8:
    case DType::kBool:
      at<std::uint8_t>(view, offset) = static_cast<std::uint8_t>(value);
      return;
    default:
      reference::store(view.data, view.dtype, offset, value);
  }
}

void Buffer::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t(kAlignment));
}

Buffer::Buffer(std::string name, DType dtype, std::vector<std::int64_t> shape,
               std::vector<std::int64_t> strides, std::int64_t shift)
    : name_(std::move(name)), shift_(shift) {
  if (strides.empty()) strides = dense_strides(shape);
  if (shape.size() > static_cast<std::size_t>(TensorView::kMaxRank) ||
      shape.size() != strides.size() || shift < 0) {
    throw std::logic_error("buffer " + name_ + ": bad layout");
  }
  view_.dtype = dtype;
  view_.rank = static_cast<int>(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0 || strides[d] < 0) throw std::logic_error("buffer " + name_ + ": bad layout");
    view_.shape[d] = shape[d];
    view_.strides[d] = strides[d];
  }
  const std::size_t size = size_of(dtype);
  data_bytes_ = static_cast<std::size_t>(extent(view_)) * size;
  front_bytes_ = kGuardBytes + static_cast<std::size_t>(shift) * size;
  total_bytes_ = front_bytes_ + data_bytes_ + kGuardBytes;
  memory_.reset(
      static_cast<std::byte*>(::operator new[](total_bytes_, std::align_val_t(kAlignment))));
  view_.data = memory_.get() + front_bytes_;
  poison_bytes(memory_.get(), total_bytes_, dtype);
}

Buffer::Buffer(const Buffer& other)
    : name_(other.name_),
      view_(other.view_),
      shift_(other.shift_),
      data_bytes_(other.data_bytes_),
      front_bytes_(other.front_bytes_),
      total_bytes_(other.total_bytes_),
      memory_(static_cast<std::byte*>(
          ::operator new[](other.total_bytes_, std::align_val_t(kAlignment)))) {
  std::memcpy(memory_.get(), other.memory_.get(), total_bytes_);
  view_.data = memory_.get() + front_bytes_;
}

bool Buffer::holds(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory_.get());
  return at >= begin && at - begin < total_bytes_;
}

std::int64_t Buffer::offset_of(std::int64_t index) const {
  std::int64_t offset = 0;
  for (int d = view_.rank - 1; d >= 0; --d) {
    offset += index % view_.shape[d] * view_.strides[d];
    index /= view_.shape[d];
  }
  return offset;
}

void Buffer::fill(double value) {
  for_each_element(view_,
                   [&](std::int64_t, std::int64_t offset) { store_element(view_, offset, value); });
}

void Buffer::fill_normal(std::uint64_t seed, double mean, double deviation) {
  const Random random(seed, name_);
  for_each_element_at_once(view_, [&](std::int64_t index, std::int64_t offset) {
    store_element(view_, offset, mean + deviation * random.normal(index));
  });
}

void Buffer::fill_uniform(std::uint64_t seed, double low, double high) {
  const Random random(seed, name_);
  for_each_element_at_once(view_, [&](std::int64_t index, std::int64_t offset) {
    store_element(view_, offset, low + (high - low) * random.uniform(index));
  });
}

void Buffer::fill_by(const std::function<double(std::int64_t)>& value) {
  for_each_element(view_, [&](std::int64_t index, std::int64_t offset) {
    store_element(view_, offset, value(index));
  });
}

void Buffer::poison() { testing::poison(view_); }

std::optional<std::string> Buffer::check_guards() const {
  const std::size_t size = size_of(view_.dtype);
  const std::byte* begin = memory_.get();
  std::size_t where = first_damage(begin, front_bytes_, view_.dtype);
  if (where < front_bytes_) {
    return name_ + ": written " + std::to_string(front_bytes_ - where) +
           " bytes before its first element";
  }
  const std::byte* behind = begin + front_bytes_ + data_bytes_;
  where = first_damage(behind, kGuardBytes, view_.dtype);
  if (where < kGuardBytes) {
    return name_ + ": written " + std::to_string(where) + " bytes past its last element";
  }
  const std::size_t elements = data_bytes_ / size;
  if (static_cast<std::size_t>(numel()) == elements) return std::nullopt;
  std::vector<bool> used(elements, false);
  for_each_element(view_, [&](std::int64_t, std::int64_t offset) {
    used[static_cast<std::size_t>(offset)] = true;
  });
  for (std::size_t i = 0; i < elements; ++i) {
    if (!used[i] && !is_poison(view_, static_cast<std::int64_t>(i))) {
      return name_ + ": written in a stride gap, " + std::to_string(i) + " elements past its first";
    }
  }
  return std::nullopt;
}

void poison(const TensorView& view) {
  const std::uint64_t bits = poison_bits(view.dtype);
  const std::size_t size = size_of(view.dtype);
  auto* data = static_cast<std::byte*>(view.data);
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    std::memcpy(data + offset * static_cast<std::int64_t>(size), &bits, size);
  });
}

bool is_poison(const TensorView& view, std::int64_t offset) {
  const std::uint64_t bits = poison_bits(view.dtype);
  const std::size_t size = size_of(view.dtype);
  const auto* data = static_cast<const std::byte*>(view.data);
  return std::memcmp(data + offset * static_cast<std::int64_t>(size), &bits, size) == 0;
}

}  // namespace hyla::testing
