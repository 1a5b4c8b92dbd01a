// The vocabulary of argument checking. Every function throws InvalidArgument with the argument's
// name first.
#pragma once

#include <hyla/context.h>
#include <hyla/error.h>
#include <hyla/tensor.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/views.h"

namespace hyla::core {

[[noreturn]] void fail(std::string_view argument, std::string_view expected, std::string_view got);

inline void require(bool condition, std::string_view argument, std::string_view expected,
                    std::string_view got) {
  if (!condition) fail(argument, expected, got);
}

using DTypes = std::initializer_list<DType>;
inline constexpr DTypes kFloatTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
inline constexpr DTypes kIndexTypes = {DType::kInt32, DType::kInt64, DType::kUInt32};
inline constexpr DTypes kMaskTypes = {DType::kBool, DType::kUInt8};
inline constexpr DTypes kParameterTypes = {DType::kFloat32, DType::kBFloat16};

enum class Inner {
  kContiguous,  // the last dimension has stride 1
  kAny,
};

enum class Access { kRead, kWrite };

// Sizes by letter. The first tensor that mentions a letter gives it its size; the others must
// agree. A pattern is letters and numbers separated by blanks: "B 1 H K". ">=B" means at least that
// many, "B+1" one more.
class Shapes {
 public:
  void match(std::string_view argument, const TensorView& view, std::string_view pattern);
  void bind(std::string_view letter, std::int64_t size);
  std::int64_t operator[](std::string_view letter) const;

 private:
  std::string expectation(std::string_view pattern) const;
  struct Letter {
    std::string_view name;  // patterns are literals, so the text outlives this object
    std::int64_t size;
  };
  std::array<Letter, 16> letters_{};  // fixed, because a call allocates nothing
  int count_ = 0;
  const Letter* find(std::string_view letter) const;
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

// Checks one index tensor of `pattern` and gives its view.
IndexView check_indices(std::string_view argument, const TensorView& view, std::string_view pattern,
                        Shapes& shapes, const Context& context, DTypes dtypes = kIndexTypes);

// A written tensor shares no element with any other tensor of the call.
class Overlaps {
 public:
  void reads(std::string_view argument, const TensorView& view);
  void writes(std::string_view argument, const TensorView& view);
  void check() const;

 private:
  struct Entry {
    std::string_view argument;
    TensorView view;
    std::uintptr_t begin, end;
    bool written;
  };
  void add(std::string_view argument, const TensorView& view, bool written);
  std::array<Entry, 32> entries_{};
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
Slots check_slots(const SlotArguments& arguments, std::int64_t rows, const Context& context);

// Sequences by cu_seqlens, or by starts and lengths, over `total` tokens.
struct SequenceArguments {
  const TensorView& cu_seqlens;
  const TensorView& starts;
  const TensorView& lengths;
};
bool any_given(const SequenceArguments& arguments);
std::int64_t rows_of(const SequenceArguments& arguments);  // N, after a rank check
Sequences check_sequences(const SequenceArguments& arguments, std::int64_t total,
                          const Context& context);

std::string text(std::int64_t value);
std::string text(double value);

}  // namespace hyla::core
