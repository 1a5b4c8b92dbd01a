// The vocabulary of argument checking. Every function throws InvalidArgument with the argument's
// name first.
#pragma once

#include <hyla/context.h>
#include <hyla/error.h>
#include <hyla/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/pattern.h"
#include "core/views.h"

namespace hyla::core {

[[noreturn]] void fail(std::string_view argument, std::string_view expected, std::string_view got);

// A set in one word that remembers its order, for messages.
class DTypes {
 public:
  constexpr DTypes(std::initializer_list<DType> dtypes) {
    int shift = kSetBits;
    for (const DType dtype : dtypes) {
      const auto number = static_cast<std::uint64_t>(dtype);
      bits_ |= std::uint64_t{1} << number | number << shift;
      shift += kOrderBits;
    }
  }
  constexpr bool contains(DType dtype) const {
    return dtype <= DType::kBool && (bits_ >> static_cast<int>(dtype) & 1) != 0;
  }
  std::string names() const;  // "float32 or bfloat16"

 private:
  static constexpr int kSetBits = 16, kOrderBits = 4;
  static_assert(static_cast<int>(DType::kBool) < kSetBits && DType::kNone == DType{});
  std::uint64_t bits_ = 0;
};
inline constexpr DTypes kFloatTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
inline constexpr DTypes kIndexTypes = {DType::kInt32, DType::kInt64, DType::kUInt32};
inline constexpr DTypes kMaskTypes = {DType::kBool, DType::kUInt8};

enum class Inner {
  kContiguous,  // the last dimension has stride 1
  kAny,
};

enum class Access { kRead, kWrite };

// Sizes by letter. The first tensor that mentions a letter gives it its size; the others must
// agree.
class Shapes {
 public:
  void match(std::string_view argument, const TensorView& view, const Pattern& pattern);
  void bind(Letter letter, std::int64_t size) {
    sizes_[letter.index()] = size;
    known_ |= std::uint64_t{1} << letter.index();
  }
  std::int64_t operator[](Letter letter) const {
    if (!knows(letter.index())) fail_unknown(letter);
    return sizes_[letter.index()];
  }

 private:
  bool knows(std::size_t letter) const { return (known_ >> letter & 1) != 0; }
  [[noreturn]] static void fail_unknown(Letter letter);
  std::string expectation(const Pattern& pattern) const;
  std::uint64_t known_ = 0;
  std::int64_t sizes_[kLetters.size()];  // of those that are known
};

// Streams where the device has them, a sane thread count.
void check_context(const Context& context);

// Presence, device, dtype, sane sizes and strides, pointer; not the shape.
void check_tensor(std::string_view argument, const TensorView& view, DTypes dtypes,
                  const Context& context, Inner inner, Access access);

void check_absent(std::string_view argument, const TensorView& view, std::string_view reason);

// Head dims: multiples of 8 up to 256.
void check_head_dim(std::string_view argument, std::int64_t dim, std::string_view letter);

void check_scale(const std::optional<double>& scale);
void check_positive(std::string_view argument, double value);

// Checks one index tensor of `pattern`.
void check_indices(std::string_view argument, const TensorView& view, const Pattern& pattern,
                   Shapes& shapes, const Context& context, DTypes dtypes = kIndexTypes);
// And gives its view, in place as all views of a problem (problem/tokens.h).
void check_indices(IndexView& result, std::string_view argument, const TensorView& view,
                   const Pattern& pattern, Shapes& shapes, const Context& context,
                   DTypes dtypes = kIndexTypes);

// The same elements at the same places, so that a result may take the place of an input.
bool same_elements(const TensorView& a, const TensorView& b);

// A written tensor shares no element with any other tensor of the call. Names and views outlive it.
class Overlaps {
 public:
  void reads(const char* argument, const TensorView& view) {
    if (view.present()) add(argument, view, false);
  }
  void writes(const char* argument, const TensorView& view) {
    if (view.present()) add(argument, view, true);
  }
  void reads(const char* argument, const TensorView&& view) = delete;
  void writes(const char* argument, const TensorView&& view) = delete;
  void check() const;

 private:
  struct Entry {
    const char* argument;
    const TensorView* view;
    std::uintptr_t begin, end;
    bool written;
  };
  void add(const char* argument, const TensorView& view, bool written);
  static constexpr int kMost = 32;
  Entry entries_[kMost];  // the first count_ of them
  int count_ = 0;
};

// Pool slots. The limit of an absent pool is kNoLimit.
struct SlotArguments {
  const TensorView& read_slots;
  const TensorView& read_columns;
  const TensorView& write_slots;
  std::int64_t first_slot;
  std::int64_t read_limit, write_limit;
  std::string_view pool;  // argument name of the pool, for messages
};
void check_slots(Slots& result, const SlotArguments& arguments, std::int64_t rows,
                 const Context& context);

// Sequences by cu_seqlens, or by starts and lengths, over `total` tokens.
struct SequenceArguments {
  const TensorView& cu_seqlens;
  const TensorView& starts;
  const TensorView& lengths;
};
bool any_given(const SequenceArguments& arguments);
std::int64_t rows_of(const SequenceArguments& arguments);  // N, after a rank check
void check_sequences(Sequences& result, const SequenceArguments& arguments, std::int64_t total,
                     const Context& context);

std::string text(std::int64_t value);
std::string text(double value);

}  // namespace hyla::core
