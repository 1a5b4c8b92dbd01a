#include "core/check.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace hyla::core {
namespace {

std::string shape_text(const TensorView& view) {
  std::string result = "[";
  for (int d = 0; d < view.rank; ++d) result += (d ? ", " : "") + text(view.shape[d]);
  return result + "]";
}

[[noreturn]] void fail_negative(std::string_view argument, const TensorView& view) {
  int d = 0;
  while ((view.shape[d] | view.strides[d]) >= 0) ++d;
  if (view.shape[d] < 0) fail(argument, "sizes >= 0", shape_text(view));
  fail(argument, "strides >= 0", describe(view));
}

// Sizes and strides that are not negative and reach fewer than 2^63 bytes.
void check_extent(std::string_view argument, const TensorView& view) {
  bool negative = false, empty = false, overflow = false;
  std::int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) {
    const std::int64_t size = view.shape[d], stride = view.strides[d];
    negative |= (size | stride) < 0;
    empty |= size == 0;
    std::int64_t steps = 0, step = 0;
    overflow |= __builtin_sub_overflow(size, std::int64_t{1}, &steps);
    overflow |= __builtin_mul_overflow(steps, stride, &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  if (negative) fail_negative(argument, view);
  if (empty) return;
  std::int64_t bytes = 0;
  overflow |= __builtin_add_overflow(last, std::int64_t{1}, &last);
  overflow |= __builtin_mul_overflow(last, static_cast<std::int64_t>(size_of(view.dtype)), &bytes);
  if (overflow) fail(argument, "fewer than 2^63 bytes", describe(view));
}

// No two indices share an element: each stride steps over everything the smaller ones reach.
// (Sufficient; exotic interleavings that it refuses do not occur in tensors that anyone writes.)
bool overlaps_in_any_order(const TensorView& view) {
  int order[TensorView::kMaxRank];
  int count = 0;
  for (int d = view.rank - 1; d >= 0; --d) {
    if (view.shape[d] == 0) return false;
    if (view.shape[d] > 1) order[count++] = d;
  }
  for (int i = 1; i < count; ++i) {
    for (int j = i; j > 0 && view.strides[order[j]] < view.strides[order[j - 1]]; --j) {
      std::swap(order[j], order[j - 1]);
    }
  }
  std::int64_t reach = 0;
  for (int i = 0; i < count; ++i) {
    if (view.strides[order[i]] <= reach) return true;
    reach += (view.shape[order[i]] - 1) * view.strides[order[i]];
  }
  return false;
}

bool overlaps_itself(const TensorView& view) {
  std::int64_t reach = 0;
  int d = view.rank - 1;
  for (; d >= 0; --d) {  // nearly always: the dimensions are in order from the last one on
    if (view.shape[d] <= 1) {
      if (view.shape[d] == 0) return false;
      continue;
    }
    if (view.strides[d] <= reach) break;
    reach += (view.shape[d] - 1) * view.strides[d];
  }
  return d >= 0 && overlaps_in_any_order(view);
}

}  // namespace

std::string text(std::int64_t value) { return std::to_string(value); }

std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", value);
  return buffer;
}

void fail(std::string_view argument, std::string_view expected, std::string_view got) {
  throw InvalidArgument(std::string(argument), std::string(expected), std::string(got));
}

std::string DTypes::names() const {
  std::string result;
  for (std::uint64_t order = bits_ >> kSetBits; order != 0; order >>= kOrderBits) {
    const auto dtype = static_cast<DType>(order & ((1 << kOrderBits) - 1));
    result += (result.empty() ? "" : " or ") + std::string(name_of(dtype));
  }
  return result;
}

void Shapes::fail_unknown(Letter letter) {
  throw std::logic_error("letter without a size: " + std::string(letter.name()));
}

std::string Shapes::expectation(const Pattern& pattern) const {
  std::string shape, known;
  for (int d = 0; d < pattern.rank(); ++d) {
    const Pattern::Word& word = pattern[d];
    const std::string name =
        word.is_number ? text(std::int64_t{word.number}) : std::string(kLetters[word.letter]);
    shape += (d == 0 ? "" : ", ") + std::string(word.at_least ? ">=" : "") + name +
             (word.plus != 0 ? "+1" : "");
    if (!word.is_number && knows(word.letter)) {
      known += (known.empty() ? " with " : ", ") + name + " = " + text(sizes_[word.letter]);
    }
  }
  return "shape [" + shape + "]" + known;
}

void Shapes::match(std::string_view argument, const TensorView& view, const Pattern& pattern) {
  std::uint64_t known = known_;  // kept once the whole shape is known to match
  bool fits = view.rank == pattern.rank();
  for (int d = 0; fits && d < pattern.rank(); ++d) {
    const Pattern::Word& word = pattern[d];
    const std::uint64_t bit = std::uint64_t{1} << word.letter;
    if (!word.is_number && (known & bit) == 0) {
      fits = view.shape[d] >= word.plus;
      sizes_[word.letter] = view.shape[d] - word.plus;
      known |= bit;
      continue;
    }
    const std::int64_t wanted = (word.is_number ? word.number : sizes_[word.letter]) + word.plus;
    fits = word.at_least ? view.shape[d] >= wanted : view.shape[d] == wanted;
  }
  if (!fits) fail(argument, expectation(pattern), shape_text(view));
  known_ = known;
}

void check_context(const Context& context) {
  const bool cuda = context.device.kind == Device::Kind::kCuda;
  if (context.device.index < 0) {
    fail("context.device", "an index >= 0", text(std::int64_t{context.device.index}));
  }
  if (cuda && !context.stream.present()) fail("context.stream", "a CUDA stream", "none");
  if (!cuda && context.stream.present()) fail("context.stream", "none on a CPU", "a CUDA stream");
  if (context.threads < 0) {
    fail("context.threads", "a number >= 0", text(std::int64_t{context.threads}));
  }
}

void check_tensor(std::string_view argument, const TensorView& view, DTypes dtypes,
                  const Context& context, Inner inner, Access access) {
  if (!view.present()) fail(argument, "a tensor", "none");
  if (view.device != context.device) {
    fail(argument, "a tensor on " + name_of(context.device), "one on " + name_of(view.device));
  }
  if (!dtypes.contains(view.dtype)) {
    fail(argument, "dtype " + dtypes.names(), name_of(view.dtype));
  }
  if (view.rank < 0 || view.rank > TensorView::kMaxRank) {
    fail(argument, "rank 0 to 6", text(std::int64_t{view.rank}));
  }
  std::int64_t bits = 0;
  bool empty = false;
  for (int d = 0; d < view.rank; ++d) {
    const std::int64_t size = view.shape[d], stride = view.strides[d];
    bits |= size | stride;
    empty |= size == 0;
  }
  // Nothing negative, and six products of numbers so small reach fewer than 2^63 bytes.
  constexpr std::uint64_t kSmall = std::uint64_t{1} << 28;
  if (static_cast<std::uint64_t>(bits) >= kSmall) check_extent(argument, view);
  if (empty) return;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  if (view.data == nullptr) fail(argument, "memory", "a null pointer for " + describe(view));
  if ((reinterpret_cast<std::uintptr_t>(view.data) & static_cast<std::uintptr_t>(size - 1)) != 0) {
    fail(argument, "a pointer aligned to its " + text(size) + "-byte elements", "a misaligned one");
  }
  if (inner == Inner::kContiguous && view.rank > 0 && view.shape[view.rank - 1] > 1 &&
      view.strides[view.rank - 1] != 1) {
    fail(argument, "a contiguous last dimension", describe(view));
  }
  if (access == Access::kWrite && overlaps_itself(view)) {
    fail(argument, "a written tensor without overlapping elements", describe(view));
  }
}

void check_absent(std::string_view argument, const TensorView& view, std::string_view reason) {
  if (view.present()) fail(argument, "none " + std::string(reason), describe(view));
}

void check_head_dim(std::string_view argument, std::int64_t dim, std::string_view letter) {
  if (dim < 8 || dim > 256 || dim % 8 != 0) {
    fail(argument, std::string(letter) + " a multiple of 8 from 8 to 256", text(dim));
  }
}

void check_scale(const std::optional<double>& scale) {
  if (scale.has_value() && !std::isfinite(*scale)) fail("scale", "a finite number", text(*scale));
}

void check_positive(std::string_view argument, double value) {
  if (!std::isfinite(value) || value <= 0) fail(argument, "a finite number > 0", text(value));
}

void check_indices(std::string_view argument, const TensorView& view, const Pattern& pattern,
                   Shapes& shapes, const Context& context, DTypes dtypes) {
  check_tensor(argument, view, dtypes, context, Inner::kAny, Access::kRead);
  shapes.match(argument, view, pattern);
}

void check_indices(IndexView& result, std::string_view argument, const TensorView& view,
                   const Pattern& pattern, Shapes& shapes, const Context& context, DTypes dtypes) {
  check_indices(argument, view, pattern, shapes, context, dtypes);
  result.data = view.data;
  result.dtype = view.dtype;
  result.stride = view.strides[0];
  if (view.rank == 2) {
    result.column_stride = view.strides[1];
    result.columns = view.shape[1];
  }
}

}  // namespace hyla::core
