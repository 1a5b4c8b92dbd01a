// Lengths of all sequences that the host was told, as the cost model looks at them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace hyla::gdn {

// More sequences are only counted: to sort them would take longer than a better plan saves.
inline constexpr std::int64_t kMostRankedLengths = 512;

class PlanLengths {
 public:
  // `length(row)`, which may be wrong, of `rows` sequences with `tokens` in all.
  template <class Length>
  PlanLengths(std::uint64_t key, std::int64_t rows, std::int64_t tokens, const Length& length)
      : key_(key), tokens_(tokens), rows_(static_cast<double>(std::max<std::int64_t>(1, rows))) {
    ordered_.reserve(static_cast<std::size_t>(std::min(rows, kMostRankedLengths)));
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t n = std::clamp<std::int64_t>(length(row), 0, tokens);
      if (rows <= kMostRankedLengths) ordered_.push_back(n);
      by_1_ += static_cast<double>(n);
      by_8_ += static_cast<double>((n + 7) / 8);
      by_16_ += static_cast<double>((n + 15) / 16);
      by_64_ += static_cast<double>((n + 63) / 64);
      last_ += n > 0 ? static_cast<double>((n - 1) % 64 + 1) / 64 : 0.0;
      torn_ += n % 64 != 0 ? 1.0 : 0.0;
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
  // How much of their last chunk they have in the mean, and how many of them not all of it.
  double last_part() const { return last_ / rows_; }
  double torn() const { return torn_ / rows_; }
  // False: too many to know more than the pieces.
  bool ranked() const { return !ranked_.empty(); }
  int rows() const { return static_cast<int>(ranked_.size()); }
  // Chunks of the sequence of this rank, the longest first; past the last: none.
  int chunks(int rank) const { return rank < rows() ? in_chunks(ranked_[index(rank)]) : 0; }
  double steps(int rank) const {
    return rank < rows() ? static_cast<double>((ranked_[index(rank)] + 15) / 16) : 0.0;
  }
  double tokens_in_order(int row) const { return static_cast<double>(ordered_[index(row)]); }
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
  double rows_, by_1_ = 0, by_8_ = 0, by_16_ = 0, by_64_ = 0, last_ = 0, torn_ = 0;
};

// Where only the longest is known and not all are alike: the others fall from it as a power does
// that leaves them their tokens.
class AssumedLengths {
 public:
  AssumedLengths(std::int64_t rows, double all, double longest)
      : rows_(rows),
        step_(std::max<std::int64_t>(1, rows * 618 / 1000)),
        others_(std::max(1.0, static_cast<double>(rows) - 1.0)),
        longest_(longest) {
    mean_ = std::max(0.5, (all - longest) / others_);
    power_ = std::max(0.0, longest / mean_ - 1.0);
    while (std::gcd(step_, rows) != 1) ++step_;
  }
  double of(std::int64_t rank) const {
    if (rank == 0) return longest_;
    if (rows_ == 2) return mean_;
    return longest_ * std::pow(1.0 - (static_cast<double>(rank) - 0.5) / others_, power_);
  }
  // In an order that has long and short ones everywhere.
  std::int64_t rank_in_order(std::int64_t row) const { return row * step_ % rows_; }

 private:
  std::int64_t rows_, step_;
  double others_, longest_, mean_ = 0, power_ = 0;
};

}  // namespace hyla::gdn
