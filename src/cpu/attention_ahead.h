// Asking for keys and values ahead of the products that take them. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_ATTENTION_AHEAD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_AHEAD_H_
#undef HYLA_CPU_ATTENTION_AHEAD_H_
#else
#define HYLA_CPU_ATTENTION_AHEAD_H_
#endif

#include "cpu/attention_rows.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// A line of every page of memory first: a processor finds several addresses at once, but nothing
// passes by a request that waits for its own.
HYLA_INLINE void prefetch_pages(const char* const* rows, std::int64_t count, std::int64_t offset) {
  std::uintptr_t last = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(rows[i] + offset) / 4096;
    if (page != last) __builtin_prefetch(rows[i] + offset, 0, 2);
    last = page;
  }
}

// Lines of the rows of a round in the order of memory, asked for some at a time.
class LinesAhead {
 public:
  LinesAhead() = default;  // of nothing
  LinesAhead(const TensorView& view, const char* const* rows, std::int64_t count,
             std::int64_t first_head, std::int64_t heads)
      : rows_(rows), count_(count), offset_(first_head * head_bytes(view)) {
    const bool dense = head_bytes(view) == row_bytes(view);
    lines_ = (row_bytes(view) * (dense ? heads : 1) + kLine - 1) / kLine;
    head_stride_ = head_bytes(view);
    heads_ = dense ? 1 : heads;
    begin_row();
  }
  HYLA_INLINE void ask(std::int64_t lines) {
    while (lines > 0 && heads_ > 0) {
      const std::int64_t now = std::min(lines, left_);
      const char* at = at_;
      for (std::int64_t i = 0; i < now; ++i) __builtin_prefetch(at + i * kLine, 0, 2);
      at_ = at + now * kLine;
      left_ -= now;
      lines -= now;
      if (left_ == 0) next_row();
    }
  }

 private:
  HYLA_INLINE void begin_row() {
    at_ = rows_[row_] + offset_;
    left_ = lines_;
  }
  HYLA_INLINE void next_row() {
    if (++row_ == count_) {
      row_ = 0;
      offset_ += head_stride_;
      --heads_;
    }
    begin_row();
  }

  const char* const* rows_ = nullptr;
  std::int64_t count_ = 0, offset_ = 0, lines_ = 0, head_stride_ = 0, heads_ = 0;
  std::int64_t row_ = 0, left_ = 0;
  const char* at_ = nullptr;
};

// Lines of the rows of a round in the order of memory, four at a time and with little to do for each:
// rows that lie in one piece are a run. Lines behind a row that ends within four of them are asked for
// as well.
class RunsAhead {
 public:
  // The rest is needed once a run.
  struct Place {
    const char *at, *end;

    template <int kCache>  // 3: into the L1 cache, 2: into the L2 cache
    HYLA_INLINE void ask_four(RunsAhead& of) {
      __builtin_prefetch(at, 0, kCache);
      __builtin_prefetch(at + kLine, 0, kCache);
      __builtin_prefetch(at + 2 * kLine, 0, kCache);
      __builtin_prefetch(at + 3 * kLine, 0, kCache);
      at += 4 * kLine;
      if (__builtin_expect(at >= end, 0)) *this = of.next_run();
    }
  };
  Place place;

  // `count`: a multiple of kRun.
  RunsAhead(const TensorView& view, const char* const* rows, std::int64_t count,
            std::int64_t first_head, std::int64_t heads)
      : row_(rows), count_(count), offset_(first_head * head_bytes(view)) {
    const bool dense = head_bytes(view) == row_bytes(view);
    bytes_ = row_bytes(view) * (dense ? heads : 1);
    head_stride_ = head_bytes(view);
    heads_ = dense ? 1 : heads;
    left_ = count;
    place = next_run();
  }

 private:
  static constexpr std::int64_t kRun = 16;

  Place next_run() {
    if (left_ == 0) {
      row_ -= count_;
      left_ = count_;
      if (--heads_ > 0) offset_ += head_stride_;  // or once more: all lines were asked for
    }
    const bool run = left_ % kRun == 0 && row_[kRun - 1] - row_[0] == (kRun - 1) * bytes_;
    const std::int64_t rows = run ? kRun : 1;
    const char* at = *row_ + offset_;
    row_ += rows;
    left_ -= rows;
    return {at, at + rows * bytes_};
  }

  const char* const* row_;
  std::int64_t count_, offset_, bytes_, head_stride_, heads_, left_;
};

// What products ask for in the order of memory: lines that come later, and once more lines that come
// sooner, as what a processor has no room for it drops. kNear: into the L1 cache.
template <bool kNear>
struct AskedInOrder {
  RunsAhead later, sooner;

  // What loops keep in registers.
  struct Places {
    RunsAhead::Place later, sooner;

    HYLA_INLINE void ask_four(AskedInOrder& of) {
      later.template ask_four<kNear ? 3 : 2>(of.later);
      sooner.template ask_four<kNear ? 3 : 2>(of.sooner);
    }
  };
  HYLA_INLINE Places places() const { return {later.place, sooner.place}; }
  HYLA_INLINE void follow(const Places& places) {
    later.place = places.later;
    sooner.place = places.sooner;
  }
  void skip(std::int64_t) {}  // it knows by itself where it is
};

// What a tile of values asks for, line by line as it takes its own: lines of rows that come later, and
// once more those of rows that come sooner.
struct Later {
  RowsAt first, again;

  HYLA_INLINE void ask(std::int64_t key, std::int64_t byte) const {
    __builtin_prefetch(first[key] + byte, 0, 2);
    __builtin_prefetch(again[key] + byte, 0, 2);
  }
};

// Asks for rows that are needed soon, a cache line of each of kRows of them after another, then the
// next line of each: many pages of memory work side by side then. Into the L2 cache: the L1 cache
// has too few misses under way, and what it cannot take is dropped. That is why lines are asked for
// twice, by the products with keys and by those with values, where these are as fast as memory.
template <std::int64_t kRows, bool kTwice>
struct Asked {
  RowsAt first, again;     // kRows each
  std::uint64_t next = 0;  // line

  HYLA_INLINE void ask() {
    const auto row = static_cast<std::int64_t>(next % kRows);
    const auto byte = static_cast<std::int64_t>(next / kRows) * kLine;
    __builtin_prefetch(first[row] + byte, 0, 2);
    if constexpr (kTwice) __builtin_prefetch(again[row] + byte, 0, 2);
    ++next;
  }
  HYLA_INLINE void skip(std::int64_t lines) { next += static_cast<std::uint64_t>(lines); }
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_AHEAD_H_
