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

// A word of a pattern taken apart: [>=] letter-or-number [+1].
struct Word {
  std::string_view letter;
  bool at_least = false, is_number = true;
  std::int64_t plus = 0, number = 0;
};

// Takes the first word off a pattern. Character by character: a call of a dozen tensors reads three
// dozen words, and its whole time on the host is a few microseconds.
Word next_word(std::string_view& pattern) {
  Word word;
  const char *begin = pattern.data(), *const end = begin + pattern.size();
  if (end - begin > 2 && begin[0] == '>' && begin[1] == '=') {
    word.at_least = true;
    begin += 2;
  }
  const char* at = begin;
  for (; at != end && *at != ' '; ++at) {
    if (*at == '+' && end - at >= 2 && at[1] == '1' && (end - at == 2 || at[2] == ' ')) {
      word.plus = 1;
      break;
    }
    const bool digit = *at >= '0' && *at <= '9';
    word.is_number = word.is_number && digit;
    if (digit) word.number = word.number * 10 + (*at - '0');
  }
  word.letter = {begin, static_cast<std::size_t>(at - begin)};
  at += 2 * word.plus;
  pattern = at == end ? std::string_view()
                      : std::string_view(at + 1, static_cast<std::size_t>(end - at - 1));
  return word;
}

bool same(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
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
    const Letter& known = letters_[static_cast<std::size_t>(i)];
    if (same(known.name, letter)) return &known;
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
    const char* begin = pattern.data();
    const Word word = next_word(pattern);
    const char* end = word.letter.data() + word.letter.size() + 2 * word.plus;
    shape += (shape.empty() ? "" : ", ") + std::string(begin, end);
    const Letter* found = find(word.letter);
    if (found != nullptr) {
      known +=
          (known.empty() ? " with " : ", ") + std::string(found->name) + " = " + text(found->size);
    }
  }
  return "shape [" + shape + "]" + known;
}

void Shapes::match(std::string_view argument, const TensorView& view, std::string_view pattern) {
  const auto refuse = [&] { fail(argument, expectation(pattern), shape_text(view)); };
  struct Fresh {
    Word word;
    std::int64_t size;
  };
  Fresh fresh[TensorView::kMaxRank];  // bound below, once the whole shape is known to match
  int d = 0, fresh_count = 0;
  for (std::string_view rest = pattern; !rest.empty(); ++d) {
    const Word word = next_word(rest);
    if (d >= view.rank) refuse();
    const Letter* found = word.is_number ? nullptr : find(word.letter);
    if (!word.is_number && found == nullptr) {
      if (view.shape[d] < word.plus) refuse();
      fresh[fresh_count++] = {word, view.shape[d] - word.plus};
      continue;
    }
    const std::int64_t wanted = (found == nullptr ? word.number : found->size) + word.plus;
    if (word.at_least ? view.shape[d] < wanted : view.shape[d] != wanted) refuse();
  }
  if (d != view.rank) refuse();
  const int known = count_;
  for (int i = 0; i < fresh_count; ++i) {
    const Letter* twice = find(fresh[i].word.letter);
    if (twice == nullptr) {
      bind(fresh[i].word.letter, fresh[i].size);
    } else if (!fresh[i].word.at_least && twice->size != fresh[i].size) {
      count_ = known;
      refuse();  // a letter twice in one pattern
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
