// Upper bounds of what a caller may announce. Every product of the largest ones stays inside 64
// bits.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/check.h"

namespace hyla::core {

inline constexpr std::int64_t kMostRows = std::int64_t{1} << 24;
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;
inline constexpr std::int64_t kMostHeads = std::int64_t{1} << 14;
inline constexpr std::int64_t kMostHeadsOfCall = std::int64_t{1} << 20;

inline void check_range(std::string_view argument, std::int64_t value, std::int64_t least,
                        std::int64_t most) {
  if (value >= least && value <= most) return;
  fail(argument, "a number from " + text(least) + " to " + text(most), text(value));
}

// Rows of no tokens and heads of no rows need no memory: a tensor can claim any number of them, and
// whoever goes through them would not come back.
inline void check_row_count(std::string_view argument, std::int64_t rows) {
  if (rows > kMostRows) fail(argument, "at most " + text(kMostRows) + " rows", text(rows));
}
inline void check_head_count(std::string_view argument, std::int64_t heads) {
  if (heads > kMostHeadsOfCall) {
    fail(argument, "at most " + text(kMostHeadsOfCall) + " heads", text(heads));
  }
}

}  // namespace hyla::core
