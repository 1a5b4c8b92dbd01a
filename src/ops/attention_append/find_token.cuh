// Where tokens go, found by the warp that moves them: a lane a token, no shared memory.
#pragma once

#include "core/views.h"
#include "ops/attention/cache_places.h"

namespace hyla::attention::appending {

struct RowToken {
  int row = -1, in_row = 0, added = 0;  // row < 0: nobody's; added: tokens of the row
  int source = 0;                       // token of the input
};

// Tokens of a row as far as the input reaches: offsets on the device are not checked before.
__device__ __forceinline__ int safe_length(const core::Sequences& sequences, int total, int row) {
  const std::int64_t begin = sequences.begin(row), count = sequences.length(row);
  if (begin < 0 || begin > total || count < 0) return 0;
  return static_cast<int>(count < total - begin ? count : total - begin);
}

// By offsets: rows lie one behind the other, so the token's number is its place in the input.
// `guess`: its row where all are alike.
__device__ __forceinline__ RowToken row_of(const core::Sequences& sequences, int total, int token,
                                           int guess) {
  RowToken at;
  at.source = token;
  int low = 0, high = static_cast<int>(sequences.rows);
  if (guess >= high) guess = high - 1;
  if (sequences.cu_seqlens.at(guess) <= token && token < sequences.cu_seqlens.at(guess + 1)) {
    low = guess, high = guess + 1;
  }
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (sequences.cu_seqlens.at(middle) <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const std::int64_t in_row = token - sequences.begin(low);
  at.added = safe_length(sequences, total, low);
  if (in_row >= 0 && in_row < at.added) at.row = low, at.in_row = static_cast<int>(in_row);
  return at;
}

// By starts and lengths: tokens are numbered over the rows in order. By a whole warp.
__device__ __forceinline__ RowToken scan_rows(const core::Sequences& sequences, int total,
                                              int number) {
  constexpr unsigned kWarp = 0xffffffffu;
  const int lane = static_cast<int>(threadIdx.x) & 31, rows = static_cast<int>(sequences.rows);
  RowToken at;
  int before = 0;
  for (int base = 0; base < rows; base += 32) {
    const int length = base + lane < rows ? safe_length(sequences, total, base + lane) : 0;
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
  return at;
}

struct Target {
  Place place{-1, 0};
  int position = -1;
};

// Positions fit 31 bits.
__device__ __forceinline__ Target target_of(const CachePlaces& places, const RowToken& at) {
  Target target;
  if (at.row < 0) return target;
  const std::int64_t position = places.raw_length(at.row) - at.added + at.in_row;
  if (position < 0 || position >= places.capacity(at.row)) return target;
  target.position = static_cast<int>(position);
  if (places.kind != KvCache::Kind::kPaged) {
    target.place = places.place(at.row, position);
    return target;
  }
  const auto column =
      static_cast<std::uint32_t>(position) / static_cast<std::uint32_t>(places.tokens);
  const std::int64_t page = places.page_table.at(at.row, column);
  if (page < 0 || page >= places.outers) return target;
  target.place = {page, position - column * places.tokens};
  return target;
}

}  // namespace hyla::attention::appending
