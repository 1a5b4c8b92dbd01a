// Lengths of all sequences that the host was told, as the cost model looks at them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace hyla::gdn {

// More sequences are only counted: to sort them would take longer than a better plan saves.
inline constexpr std::int64_t kMostRankedLengths = 512;

class PlanLengths {
 public:
  // `length(row)`, which may be wrong, of `rows` sequences with `tokens` in all.
  template <class Length>
  PlanLengths(std::uint64_t key, std::int64_t rows, std::int64_t tokens, const Length& length)
      : key_(key), tokens_(tokens) {
    ordered_.reserve(static_cast<std::size_t>(std::min(rows, kMostRankedLengths)));
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t n = std::clamp<std::int64_t>(length(row), 0, tokens);
      if (rows <= kMostRankedLengths) ordered_.push_back(n);
      by_1_ += static_cast<double>(n);
      by_8_ += static_cast<double>((n + 7) / 8);
      by_16_ += static_cast<double>((n + 15) / 16);
      by_64_ += static_cast<double>((n + 63) / 64);
    }
    ranked_ = ordered_;
    std::sort(ranked_.begin(), ranked_.end(), std::greater<>());
  }

  // Of which problem: what the host was told, and of how many sequences and tokens.
  bool is_of(std::uint64_t key, std::int64_t rows, std::int64_t tokens) const {
    return key_ == key && tokens_ == tokens && (rows > kMostRankedLengths) == ordered_.empty() &&
           (ordered_.empty() || static_cast<std::int64_t>(ordered_.size()) == rows);
  }
  // Pieces of `size` tokens, 1, 8, 16 or 64, of all sequences.
  double pieces(std::int64_t size) const {
    return size == 64 ? by_64_ : size == 16 ? by_16_ : size == 8 ? by_8_ : by_1_;
  }
  // False: too many to know more than the pieces.
  bool ranked() const { return !ranked_.empty(); }
  int rows() const { return static_cast<int>(ranked_.size()); }
  // Chunks of the sequence of this rank, the longest first; past the last: none.
  int chunks(int rank) const { return rank < rows() ? in_chunks(ranked_[index(rank)]) : 0; }
  int chunks_in_order(int row) const { return in_chunks(ordered_[index(row)]); }
  double blocks_in_order(int row) const {
    return static_cast<double>((ordered_[index(row)] + 7) / 8);
  }
  double steps_in_order(int row) const {
    return static_cast<double>((ordered_[index(row)] + 15) / 16);
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  static int in_chunks(std::int64_t n) { return static_cast<int>((n + 63) / 64); }

  std::uint64_t key_ = 0;
  std::int64_t tokens_ = 0;
  std::vector<std::int64_t> ordered_, ranked_;  // empty if there are too many
  double by_1_ = 0, by_8_ = 0, by_16_ = 0, by_64_ = 0;
};

}  // namespace hyla::gdn
