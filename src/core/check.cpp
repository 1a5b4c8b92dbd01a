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

std::string names(DTypes dtypes) {
  std::string result;
  for (DType dtype : dtypes) result += (result.empty() ? "" : " or ") + std::string(name_of(dtype));
  return result;
}

std::string_view next_word(std::string_view& pattern) {
  const std::size_t end = pattern.find(' ');
  const std::string_view word = pattern.substr(0, end);
  pattern = end == std::string_view::npos ? std::string_view() : pattern.substr(end + 1);
  return word;
}

// A word of a pattern taken apart: [>=] letter-or-number [+1].
struct Word {
  std::string_view letter;
  bool at_least = false;
  std::int64_t plus = 0;
};

Word parse(std::string_view word) {
  Word result;
  if (word.starts_with(">=")) {
    result.at_least = true;
    word.remove_prefix(2);
  }
  if (word.ends_with("+1")) {
    result.plus = 1;
    word.remove_suffix(2);
  }
  result.letter = word;
  return result;
}

bool is_number(std::string_view letter) {
  return letter.find_first_not_of("0123456789") == std::string_view::npos;
}

std::int64_t number(std::string_view letter) {
  std::int64_t value = 0;
  for (char c : letter) value = value * 10 + (c - '0');
  return value;
}

// Offset in bytes of the last element plus one element; false on overflow.
bool extent_bytes(const TensorView& view, std::int64_t& bytes) {
  std::int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) {
    std::int64_t step = 0;
    if (__builtin_mul_overflow(view.shape[d] - 1, view.strides[d], &step)) return false;
    if (__builtin_add_overflow(last, step, &last)) return false;
  }
  if (__builtin_add_overflow(last, std::int64_t{1}, &last)) return false;
  return !__builtin_mul_overflow(last, static_cast<std::int64_t>(size_of(view.dtype)), &bytes);
}

// No two indices share an element: each stride steps over everything the smaller ones reach.
// (Sufficient; exotic interleavings that it refuses do not occur in tensors that anyone writes.)
bool overlaps_itself(const TensorView& view) {
  int order[TensorView::kMaxRank];
  int count = 0;
  for (int d = 0; d < view.rank; ++d) {
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

const Shapes::Letter* Shapes::find(std::string_view letter) const {
  for (int i = 0; i < count_; ++i) {
    if (letters_[static_cast<std::size_t>(i)].name == letter)
      return &letters_[static_cast<std::size_t>(i)];
  }
  return nullptr;
}

void Shapes::bind(std::string_view letter, std::int64_t size) {
  if (count_ == static_cast<int>(letters_.size())) throw std::logic_error("too many letters");
  letters_[static_cast<std::size_t>(count_++)] = {letter, size};
}

std::int64_t Shapes::operator[](std::string_view letter) const {
  const Letter* found = find(letter);
  if (found == nullptr) throw std::logic_error("letter without a size: " + std::string(letter));
  return found->size;
}

std::string Shapes::expectation(std::string_view pattern) const {
  std::string shape, known;
  while (!pattern.empty()) {
    const std::string_view word = next_word(pattern);
    shape += (shape.empty() ? "" : ", ") + std::string(word);
    const Letter* found = find(parse(word).letter);
    if (found != nullptr) {
      known +=
          (known.empty() ? " with " : ", ") + std::string(found->name) + " = " + text(found->size);
    }
  }
  return "shape [" + shape + "]" + known;
}

void Shapes::match(std::string_view argument, const TensorView& view, std::string_view pattern) {
  bool good = true;
  int d = 0;
  std::string_view rest = pattern;
  while (!rest.empty()) {
    const Word word = parse(next_word(rest));
    if (d >= view.rank) {
      good = false;
      break;
    }
    const std::int64_t size = view.shape[d++];
    const Letter* found = is_number(word.letter) ? nullptr : find(word.letter);
    if (!is_number(word.letter) && found == nullptr) {
      if (size < word.plus) good = false;
      continue;  // bound below, once the whole shape is known to match
    }
    const std::int64_t wanted = (found == nullptr ? number(word.letter) : found->size) + word.plus;
    if (word.at_least ? size < wanted : size != wanted) good = false;
  }
  if (!good || d != view.rank) {
    fail(argument, expectation(pattern), shape_text(view));
  }
  for (d = 0, rest = pattern; !rest.empty(); ++d) {
    const Word word = parse(next_word(rest));
    if (is_number(word.letter)) continue;
    const Letter* found = find(word.letter);
    if (found == nullptr) {
      bind(word.letter, view.shape[d] - word.plus);
    } else if (!word.at_least && view.shape[d] != found->size + word.plus) {
      fail(argument, expectation(pattern), shape_text(view));  // a letter twice in one pattern
    }
  }
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
  bool known = false;
  for (DType dtype : dtypes) known = known || dtype == view.dtype;
  if (!known) fail(argument, "dtype " + names(dtypes), name_of(view.dtype));
  if (view.rank < 0 || view.rank > TensorView::kMaxRank) {
    fail(argument, "rank 0 to 6", text(std::int64_t{view.rank}));
  }
  bool empty = false;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] < 0) fail(argument, "sizes >= 0", shape_text(view));
    if (view.strides[d] < 0) fail(argument, "strides >= 0", describe(view));
    empty = empty || view.shape[d] == 0;
  }
  if (empty) return;
  std::int64_t bytes = 0;
  if (!extent_bytes(view, bytes)) fail(argument, "fewer than 2^63 bytes", describe(view));
  if (view.data == nullptr) fail(argument, "memory", "a null pointer for " + describe(view));
  if (reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) != 0) {
    fail(argument,
         "a pointer aligned to its " + text(static_cast<std::int64_t>(size_of(view.dtype))) +
             "-byte elements",
         "a misaligned one");
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

IndexView check_indices(std::string_view argument, const TensorView& view, std::string_view pattern,
                        Shapes& shapes, const Context& context, DTypes dtypes) {
  check_tensor(argument, view, dtypes, context, Inner::kAny, Access::kRead);
  shapes.match(argument, view, pattern);
  IndexView result{view.data, view.dtype, view.strides[0], 0, 1};
  if (view.rank == 2) {
    result.column_stride = view.strides[1];
    result.columns = view.shape[1];
  }
  return result;
}

}  // namespace hyla::core
