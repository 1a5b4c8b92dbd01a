// A host tensor that owns its memory and watches it: guard zones before and after, and the gaps
// between strided elements, hold a poison pattern. For floating-point types the poison is a NaN, so
// that a read of padding shows in the result; a write there is found by check_guards().
#pragma once

#include <hyla/tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "testing/random.h"

namespace hyla::testing {

// Strides, in elements, of a dense row-major tensor.
std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape);

// Single elements of any dtype as double; `offset` in elements from view.data. Stores round to
// nearest, once.
double load_element(const TensorView& view, std::int64_t offset);
void store_element(const TensorView& view, std::int64_t offset, double value);

// body(index, offset) for the elements [begin, end) in row-major order.
template <class Body>
void for_each_element_in(const TensorView& view, std::int64_t begin, std::int64_t end,
                         Body&& body) {
  std::int64_t position[TensorView::kMaxRank] = {};
  std::int64_t offset = 0, rest = begin;
  for (int d = view.rank - 1; d >= 0 && rest > 0; --d) {
    position[d] = rest % view.shape[d];
    offset += position[d] * view.strides[d];
    rest /= view.shape[d];
  }
  for (std::int64_t index = begin; index < end; ++index) {
    body(index, offset);
    for (int d = view.rank - 1; d >= 0; --d) {
      offset += view.strides[d];
      if (++position[d] < view.shape[d]) break;
      offset -= view.strides[d] * view.shape[d];
      position[d] = 0;
    }
  }
}

// body(index, offset) for every element in row-major order.
template <class Body>
void for_each_element(const TensorView& view, Body&& body) {
  for_each_element_in(view, 0, view.numel(), body);
}

class Buffer {
 public:
  // Every element starts poisoned. `shift` moves the first element that many elements past a
  // 64-byte boundary. Strides that are left out are dense.
  Buffer(std::string name, DType dtype, std::vector<std::int64_t> shape,
         std::vector<std::int64_t> strides = {}, std::int64_t shift = 0);

  Buffer(const Buffer& other);
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  const std::string& name() const { return name_; }
  DType dtype() const { return view_.dtype; }
  const TensorView& view() const { return view_; }
  std::int64_t shift() const { return shift_; }
  std::int64_t numel() const { return view_.numel(); }

  // The elements and the gaps between them, without the guard zones.
  std::byte* data() { return static_cast<std::byte*>(view_.data); }
  const std::byte* data() const { return static_cast<const std::byte*>(view_.data); }
  std::size_t data_bytes() const { return data_bytes_; }

  // Everything, guard zones included.
  std::span<std::byte> memory() { return {memory_.get(), total_bytes_}; }
  std::span<const std::byte> memory() const { return {memory_.get(), total_bytes_}; }

  // Does the memory, guard zones included, hold this address?
  bool holds(const void* address) const;

  // By row-major index.
  double get(std::int64_t index) const { return load_element(view_, offset_of(index)); }
  void set(std::int64_t index, double value) { store_element(view_, offset_of(index), value); }

  void fill(double value);
  void fill_normal(std::uint64_t seed, double mean, double deviation);
  void fill_uniform(std::uint64_t seed, double low, double high);
  void fill_by(const std::function<double(std::int64_t index)>& value);
  void poison();

  // Nothing when every guard and gap is as it was made, otherwise where the first damage is.
  std::optional<std::string> check_guards() const;

 private:
  std::int64_t offset_of(std::int64_t index) const;

  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::string name_;
  TensorView view_;
  std::int64_t shift_ = 0;
  std::size_t data_bytes_ = 0, front_bytes_ = 0, total_bytes_ = 0;
  std::unique_ptr<std::byte[], Free> memory_;
};

// Poisons a view into a buffer, for example the slots of a pool that nobody may read.
void poison(const TensorView& view);
// Does an element still hold the poison, to the bit?
bool is_poison(const TensorView& view, std::int64_t offset);

}  // namespace hyla::testing
