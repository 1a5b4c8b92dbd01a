// Where tokens go, found by the warp that moves them: a lane a token, no shared memory.
#pragma once

#include "ops/attention_append/rows.h"

namespace hyla::attention::appending {

// An index that was asked for: what it is asked for first is looked at last, so that several are on
// their way at once.
class AskedIndex {
 public:
  template <class View>
  __device__ __forceinline__ AskedIndex(const View& view, std::int64_t offset)
      : wide_(view.dtype == DType::kInt64), positive_(view.dtype == DType::kUInt32) {
    const char* from = static_cast<const char*>(view.data) + offset * (wide_ ? 8 : 4);
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %3, 0;\n"
        " ld.global.u32 %0, [%2];\n @p ld.global.u32 %1, [%2 + 4];\n}"
        : "=r"(low_), "=r"(high_)
        : "l"(from), "r"(static_cast<int>(wide_)));
  }
  __device__ __forceinline__ std::int64_t value() const {
    const unsigned sign = positive_ ? 0u : static_cast<unsigned>(static_cast<int>(low_) >> 31);
    return static_cast<std::int64_t>(std::uint64_t{wide_ ? high_ : sign} << 32 | low_);
  }

 private:
  unsigned low_, high_;
  bool wide_, positive_;
};

// Of a row: where its tokens begin and end, and how long its cache is afterwards.
struct RowNumbers {
  std::int64_t begin, end, length;

  __device__ __forceinline__ RowNumbers(const RowsArguments& a, int row) {
    const core::IndexView& offsets = a.sequences.cu_seqlens;
    const IndexSpan& lengths = a.places.kv_lengths;
    const AskedIndex first(offsets, row * offsets.stride),
        last(offsets, (row + 1) * offsets.stride);
    if (lengths.present()) {
      const AskedIndex after(lengths, row * lengths.stride);
      begin = first.value(), end = last.value(), length = after.value();
    } else {
      begin = first.value(), end = last.value(), length = a.places.capacity(row);
    }
  }
};

struct RowToken {
  int row = -1, in_row = 0, added = 0;  // row < 0: nobody's; added: tokens of the row
  int source = 0;                       // token of the input
  std::int64_t length = 0;              // of the row's cache afterwards
};

// Tokens of a row as far as the input reaches: offsets on the device are not checked before.
__device__ __forceinline__ int safe_length(std::int64_t begin, std::int64_t count, int total) {
  if (begin < 0 || begin > total || count < 0) return 0;
  return static_cast<int>(count < total - begin ? count : total - begin);
}

// By offsets: rows lie one behind the other, so the token's number is its place in the input. By
// slots: there are no rows.
__device__ __forceinline__ RowToken row_of(const RowsArguments& a, int token) {
  if (a.by_slots) {
    RowToken at;
    at.row = 0, at.source = token;
    return at;
  }
  const int rows = static_cast<int>(a.sequences.rows), guess = a.by_row(token);
  int row = guess < rows ? guess : rows - 1;
  RowNumbers numbers(a, row);
  if (numbers.begin > token || numbers.end <= token) {  // the rows are not all alike
    row = 0;
    for (int high = rows; high - row > 1;) {
      const int middle = (row + high) / 2;
      if (a.sequences.cu_seqlens.at(middle) <= token) {
        row = middle;
      } else {
        high = middle;
      }
    }
    numbers = RowNumbers(a, row);
  }
  RowToken at;
  at.source = token;
  const std::int64_t in_row = token - numbers.begin;
  at.added = safe_length(numbers.begin, numbers.end - numbers.begin, a.tokens);
  at.length = numbers.length;
  if (in_row >= 0 && in_row < at.added) at.row = row, at.in_row = static_cast<int>(in_row);
  return at;
}

// By starts and lengths: tokens are numbered over the rows in order. By a whole warp.
__device__ __forceinline__ RowToken scan_rows(const RowsArguments& a, int number) {
  const core::Sequences& sequences = a.sequences;
  constexpr unsigned kWarp = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) & 31, rows = static_cast<int>(sequences.rows);
  const auto length_of = [&](int row) {
    return safe_length(sequences.begin(row), sequences.length(row), a.tokens);
  };
  RowToken at;
  int before = 0;
  for (int base = 0; base < rows; base += 32) {
    const int length = base + lane < rows ? length_of(base + lane) : 0;
    int sum = length;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kWarp, sum, step);
      if (lane >= step) sum += other;
    }
    const int here = __shfl_sync(kWarp, sum, 31), target = number - before;
    int found = 0;  // rows of these 32 that end at or before the token
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      if (__shfl_sync(kWarp, sum, found + step - 1) <= target) found += step;
    }
    const int added = __shfl_sync(kWarp, length, found & 31);
    const int in_row = target - __shfl_sync(kWarp, sum, found & 31) + added;
    if (at.row < 0 && target >= 0 && target < here && in_row >= 0 && in_row < added) {
      at.row = base + found, at.in_row = in_row, at.added = added;
      at.source = static_cast<int>(sequences.begin(at.row)) + in_row;
    }
    before += here;
    if (__all_sync(kWarp, number < before)) break;
  }
  if (at.row >= 0) at.length = a.places.raw_length(at.row);
  return at;
}

struct Target {
  Place place{-1, 0};
  int position = -1;
};

// Of a slot: nowhere outside the cache. Slots of it fit 31 bits.
__device__ __forceinline__ Place slot_place(const RowsArguments& a, std::int64_t slot) {
  if (slot < 0 || slot >= a.capacity) return {-1, 0};
  const int outer = a.by_page(static_cast<int>(slot));
  return {outer, slot - outer * a.places.tokens};
}

// What is none of the tables' rows is negative.
__device__ __forceinline__ int table_row(const RowsArguments& a, std::int64_t position) {
  return position >= 0 && position < a.positions ? static_cast<int>(position) : -1;
}

__device__ __forceinline__ Target slot_target(const RowsArguments& a, int token) {
  const AskedIndex slot(a.slots(), token * a.slots().stride);
  Target target;
  if (a.slot_positions().present()) {
    const AskedIndex position(a.slot_positions(), token * a.slot_positions().stride);
    target.position = table_row(a, position.value());
  }
  target.place = slot_place(a, slot.value());
  return target;
}

// Positions fit 31 bits.
__device__ __forceinline__ Target target_of(const RowsArguments& a, const RowToken& at) {
  const CachePlaces& places = a.places;
  Target target;
  if (at.row < 0) return target;
  if (a.by_slots) return slot_target(a, at.source);
  const std::int64_t position = at.length - at.added + at.in_row;
  if (position < 0 || position >= places.capacity(at.row)) return target;
  target.position = static_cast<int>(position);
  if (places.kind != KvCache::Kind::kPaged) {
    target.place = places.place(at.row, position);
    return target;
  }
  const int column = a.by_page(target.position);
  const std::int64_t page = places.page_table.at(at.row, column);
  if (page < 0 || page >= places.outers) return target;
  target.place = {page, position - column * places.tokens};
  return target;
}

}  // namespace hyla::attention::appending
