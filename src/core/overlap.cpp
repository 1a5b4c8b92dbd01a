// Do two strided tensors share memory? Answered exactly, by walking both from their widest pitch
// down and looking only at pairs of runs whose spans meet. Separate buffers take one comparison,
// slices of one packed buffer a few. Where the walk would be long (pitches without a common
// measure), the answer is "yes": no shared byte goes unseen.
#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "core/check.h"

namespace hyla::core {
namespace {

constexpr int kMaxSteps = 1000;  // some microseconds

struct Dim {
  std::int64_t count, pitch;  // in bytes
};

// A tensor as runs of adjacent bytes: one at every combination of the dims, widest pitch first.
struct Runs {
  std::uintptr_t begin = 0;
  int rank = 0;
  Dim dims[TensorView::kMaxRank];
  // Bytes from the first to the last under dims[i..]; [rank]: one run.
  std::int64_t span[TensorView::kMaxRank + 1];
};

Runs runs_of(const TensorView& view) {
  Runs runs;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  for (int d = 0; d < view.rank; ++d) {
    // A dimension of stride 0 is the same memory again.
    if (view.shape[d] > 1 && view.strides[d] > 0) {
      runs.dims[runs.rank++] = {view.shape[d], view.strides[d] * size};
    }
  }
  std::sort(runs.dims, runs.dims + runs.rank,
            [](const Dim& a, const Dim& b) { return a.pitch > b.pitch; });
  runs.begin = reinterpret_cast<std::uintptr_t>(view.data);
  std::int64_t length = size;
  while (runs.rank > 0 && runs.dims[runs.rank - 1].pitch <= length) {
    const Dim& inner = runs.dims[--runs.rank];
    length += (inner.count - 1) * inner.pitch;
  }
  runs.span[runs.rank] = length;
  for (int i = runs.rank - 1; i >= 0; --i) {
    runs.span[i] = runs.span[i + 1] + (runs.dims[i].count - 1) * runs.dims[i].pitch;
  }
  return runs;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {  // b > 0
  return a / b - (a % b < 0 ? 1 : 0);
}

// Do a's runs under dims[i..] and b's under dims[j..] meet, when b's first lies `shift` bytes after
// a's first? Their spans do.
bool meet(const Runs& a, int i, const Runs& b, int j, std::int64_t shift, int& steps) {
  if (i == a.rank && j == b.rank) return true;
  if (++steps > kMaxSteps) return true;
  const std::int64_t pitch_a = i < a.rank ? a.dims[i].pitch : 0;
  const std::int64_t pitch_b = j < b.rank ? b.dims[j].pitch : 0;
  const std::int64_t pitch = std::max(pitch_a, pitch_b);
  // Of one common pitch only the difference of the two indices matters.
  std::int64_t first = 0, last = 0;
  if (pitch_a == pitch) first = -(a.dims[i++].count - 1);
  if (pitch_b == pitch) last = b.dims[j++].count - 1;
  first = std::max(first, floor_divide(-b.span[j] - shift, pitch) + 1);
  last = std::min(last, -floor_divide(shift - a.span[i], pitch) - 1);
  for (std::int64_t m = first; m <= last; ++m) {
    if (meet(a, i, b, j, shift + m * pitch, steps)) return true;
  }
  return false;
}

bool may_overlap(const TensorView& view_a, const TensorView& view_b) {
  const Runs a = runs_of(view_a), b = runs_of(view_b);
  int steps = 0;
  return meet(a, 0, b, 0, static_cast<std::int64_t>(b.begin - a.begin), steps);
}

}  // namespace

bool same_elements(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d) {
    if (a.shape[d] != b.shape[d]) return false;
    if (a.shape[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

void Overlaps::add(const char* argument, const TensorView& view, bool written) {
  std::int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] == 0) return;
    last += (view.shape[d] - 1) * view.strides[d];
  }
  if (count_ == kMost) throw std::logic_error("too many tensors");
  const auto begin = reinterpret_cast<std::uintptr_t>(view.data);
  const std::uintptr_t end = begin + static_cast<std::uintptr_t>(last + 1) * size_of(view.dtype);
  entries_[count_++] = {argument, &view, begin, end, written};
}

void Overlaps::check() const {
  for (int i = 0; i < count_; ++i) {
    const Entry& a = entries_[i];
    if (!a.written) continue;
    for (int j = 0; j < count_; ++j) {
      const Entry& b = entries_[j];
      if (a.end <= b.begin || b.end <= a.begin) continue;  // nearly always: separate buffers
      if (j == i || (b.written && j < i)) continue;
      if (may_overlap(*a.view, *b.view)) {
        fail(a.argument, "memory that no other argument uses",
             "memory shared with " + std::string(b.argument));
      }
    }
  }
}

}  // namespace hyla::core
