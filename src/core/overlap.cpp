// Do two strided tensors share memory? Exact answers are expensive in general; these rules are
// sound (no shared element goes unseen) and precise for what engines pass: separate buffers, and
// slices of one packed buffer.
#include <algorithm>
#include <cstdint>

#include "core/check.h"

namespace hyla::core {
namespace {

struct Range {
  std::uintptr_t begin, end;  // bytes
};

Range bounds(const TensorView& view) {
  std::int64_t last = 0;
  for (int d = 0; d < view.rank; ++d) last += (view.shape[d] - 1) * view.strides[d];
  const auto begin = reinterpret_cast<std::uintptr_t>(view.data);
  return {begin, begin + static_cast<std::uintptr_t>(last + 1) * size_of(view.dtype)};
}

bool disjoint(Range a, Range b) { return a.end <= b.begin || b.end <= a.begin; }

int widest(const TensorView& view) {
  int dim = -1;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] > 1 && (dim < 0 || view.strides[d] > view.strides[dim])) dim = d;
  }
  return dim;
}

// Both tensors repeat with the same period (the row pitch of a packed buffer): compare what one
// period holds. Peels the widest dimension and goes on, since slices of slices share several
// pitches.
bool may_overlap(TensorView a, TensorView b) {
  for (;;) {
    Range ra = bounds(a), rb = bounds(b);
    if (disjoint(ra, rb)) return false;
    const int da = widest(a), db = widest(b);
    if (da < 0 || db < 0) return true;
    const auto period = static_cast<std::uintptr_t>(a.strides[da]) * size_of(a.dtype);
    if (period != static_cast<std::uintptr_t>(b.strides[db]) * size_of(b.dtype)) return true;
    a.shape[da] = 1;
    b.shape[db] = 1;
    ra = bounds(a);
    rb = bounds(b);
    const std::uintptr_t length_a = ra.end - ra.begin, length_b = rb.end - rb.begin;
    if (length_a > period || length_b > period) return true;
    // Where b's run begins inside a's period.
    const std::uintptr_t shift = rb.begin >= ra.begin
                                     ? (rb.begin - ra.begin) % period
                                     : (period - (ra.begin - rb.begin) % period) % period;
    if (shift >= length_a && shift + length_b <= period) return false;
    // The runs meet inside a period; look closer at one period with b moved next to a.
    const auto base = reinterpret_cast<std::uintptr_t>(a.data);
    if (shift + length_b > period) return true;
    b.data = reinterpret_cast<void*>(base + shift);
  }
}

}  // namespace

void Overlaps::add(std::string_view argument, const TensorView& view, bool written) {
  if (!view.present()) return;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] == 0) return;
  }
  if (count_ == static_cast<int>(entries_.size())) throw std::logic_error("too many tensors");
  entries_[static_cast<std::size_t>(count_++)] = {argument, view, written};
}

void Overlaps::reads(std::string_view argument, const TensorView& view) {
  add(argument, view, false);
}

void Overlaps::writes(std::string_view argument, const TensorView& view) {
  add(argument, view, true);
}

void Overlaps::check() const {
  for (int i = 0; i < count_; ++i) {
    const Entry& a = entries_[static_cast<std::size_t>(i)];
    if (!a.written) continue;
    for (int j = 0; j < count_; ++j) {
      const Entry& b = entries_[static_cast<std::size_t>(j)];
      if (j == i || (b.written && j < i)) continue;
      if (may_overlap(a.view, b.view)) {
        fail(a.argument, "memory that no other argument uses",
             "memory shared with " + std::string(b.argument));
      }
    }
  }
}

}  // namespace hyla::core
