// What the cost model (plan.h) looks at of a batch, and what its parts have in common.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include "ops/gdn_prefill/plan_lengths.h"

namespace hyla::gdn {

// What an expectation is made of, differently for every plan: looked at by what was learnt of its
// errors (plan_features.h).
using PlanTerms = std::array<double, 5>;

// Compared by what they say: plan_shape() keeps the lengths themselves in one place a thread.
struct ToldLengths {
  const PlanLengths* all = nullptr;  // null: nobody told
  std::uint64_t key = 0;
  bool assumed = false;  // from the longest, see AssumedLengths

  bool ranked() const { return all != nullptr && all->ranked(); }
  bool in_order() const { return ranked() && !assumed; }
  friend bool operator==(const ToldLengths& a, const ToldLengths& b) {
    return (a.all == nullptr) == (b.all == nullptr) && a.key == b.key && a.assumed == b.assumed;
  }
};

struct PlanShape {
  std::int64_t rows = 0, heads = 0, tokens = 0;
  int multiprocessors = 0;
  int blocks = 2;  // of 64 value rows
  // Of a chunk and head in memory: q, k and what is prepared; v and out.
  double key_bytes = 0, value_bytes = 0;
  // The first as one CTA loads it, from L2 where other heads share q and k.
  double key_loads = 0;
  // Tokens of the longest sequence; 0: not known.
  std::int64_t longest = 0;
  bool guessed = false;   // that is, by `over_lengths`
  ToldLengths lengths{};  // of all sequences; then the longest is known, too
  std::int64_t key_dim = 128;
  bool norm = false;           // of q and k
  bool narrow_states = false;  // of 16 bits
  bool reads_states = true;    // or starts from zero
  bool in_place = false;       // final states may take the place of initial ones
  // K above 128: may two blocks share a CTA? Their bits are not known to be the same.
  bool pairs = true;

  bool wide() const { return key_dim > 128; }
  std::int64_t tasks() const { return rows * heads; }
  double row_count() const { return static_cast<double>(std::max<std::int64_t>(1, rows)); }
  std::int64_t told() const { return guessed ? 0 : longest; }
  // Tokens of the longest sequence; what the caller said may be wrong.
  std::int64_t length() const {
    if (lengths.all != nullptr)
      return std::clamp<std::int64_t>(longest, 1, std::max<std::int64_t>(1, tokens));
    const std::int64_t mean = divided(tokens, std::max<std::int64_t>(1, rows));
    return std::clamp(longest, mean, std::max(mean, tokens));
  }
  double chunks() const { return static_cast<double>(divided(length(), 64)); }
  double all_chunks() const { return pieces(64); }
  double head_chunks() const { return all_chunks() * static_cast<double>(heads); }
  // Pieces of `size` tokens of all sequences: those that are not alike end anywhere in their last
  // one.
  double pieces(std::int64_t size) const {
    const double most = static_cast<double>(rows * divided(length(), size));
    if (lengths.all != nullptr) return std::min(most, lengths.all->pieces(size));
    if (rows * length() <= tokens + std::max(rows, tokens / 16)) return most;
    const auto least = static_cast<double>(std::max(rows, divided(length(), size)));
    const double all = static_cast<double>(tokens) / static_cast<double>(size);
    return std::min(most, std::max(least, all + 0.5 * static_cast<double>(rows)));
  }
  bool even(std::int64_t size = 64) const {
    return pieces(size) == static_cast<double>(rows * divided(length(), size));
  }
  // Sequences that differ, of which more than the longest is known, or assumed.
  bool ragged() const { return lengths.ranked() && !even(1); }
  // How much of their last chunk sequences have in the mean, and how many not all of it.
  double last_part() const {
    if (lengths.all != nullptr) return lengths.all->last_part();
    return even(1) ? static_cast<double>((length() - 1) % 64 + 1) / 64 : 0.5;
  }
  double torn() const {
    if (lengths.all != nullptr) return lengths.all->torn();
    return even(1) && length() % 64 == 0 ? 0.0 : 1.0;
  }
  // What is prepared of a chunk and head.
  double record_bytes() const { return key_loads - 256.0 * static_cast<double>(key_dim); }
  // What a call reads and writes, beside records.
  double call_bytes() const {
    const double token = (key_bytes - record_bytes() + value_bytes) / 64;
    const double state = static_cast<double>(key_dim * blocks * 64) * (narrow_states ? 4 : 8);
    return static_cast<double>(heads) *
           (static_cast<double>(tokens) * token + static_cast<double>(rows) * state);
  }
  // Heads of q and k that are read for a head of the output: fewer than two where heads share them.
  double keys_a_head() const {
    return (key_bytes - record_bytes()) / (128.0 * static_cast<double>(key_dim));
  }
  // 0: L2 has room for all of it, 1: for a part.
  double beyond_cache() const { return std::clamp((call_bytes() - 25e6) / 25e6, 0.0, 1.0); }
  double waves(double ctas, int at_once = 1) const {
    return std::ceil(ctas / (static_cast<double>(multiprocessors) * at_once));
  }
  // What the busiest multiprocessor walks over, if CTAs walk over `most` and over `mean` in the
  // mean.
  double busiest(double ctas, double most, double mean) const {
    if (even() || ctas <= multiprocessors) return waves(ctas) * most;
    return std::max(most, mean * ctas / multiprocessors + 0.5 * most);
  }

  // Do more walks than multiprocessors start with the longest (walk_order.cuh)? Every CTA looks for
  // its own then, some 2 us by what batches of short ones lost: for few of them, and long ones.
  bool starts_by_rank(double ctas) const {
    constexpr double kMostWaves = 6, kLeastChunks = 17, kLeastWideChunks = 5;
    return rows > 1 && rows <= kMostRankedLengths && !(longest > 0 && even()) &&
           ctas > multiprocessors && ctas <= kMostWaves * multiprocessors &&
           chunks() >= (wide() ? kLeastWideChunks : kLeastChunks);
  }
  static constexpr double kMostStarted = 8;  // CTAs a multiprocessor: of more, all have as much
  // Is it known when each of them starts?
  bool starts_are_known(double ctas) const {
    const bool by_rank = ctas <= multiprocessors || starts_by_rank(ctas);
    return (by_rank ? lengths.ranked() : lengths.in_order()) &&
           ctas <= kMostStarted * multiprocessors;
  }
  // CTAs that start where others have ended first. They walk over chunks that take the longer the
  // more CTAs are at work: `chunk_us` of some. By rank: all of the longest sequence first; otherwise
  // all heads of all sequences, and again for the next value rows.
  template <class ChunkUs>
  double walked_us(double ctas, bool by_rank, const ChunkUs& chunk_us) const {
    std::vector<Started> started;  // in chunks: all are equally fast at a time
    const auto of_row = static_cast<std::int64_t>(ctas) / rows;
    const std::int64_t turns = by_rank ? 1 : std::max<std::int64_t>(1, of_row / heads);
    const auto length = [&](int row) {
      const int n = by_rank ? lengths.all->chunks(row) : lengths.all->chunks_in_order(row);
      return static_cast<double>(n);
    };
    in_order(
        of_row / turns, multiprocessors, length, [&](const Started& s) { started.push_back(s); },
        turns);
    std::vector<Started> ended = started;  // starts rise already
    std::sort(ended.begin(), ended.end(),
              [](const Started& a, const Started& b) { return a.end < b.end; });
    double us = 0, now = 0, busy = 0;
    auto next = started.begin();
    for (const Started& last : ended) {
      for (; next != started.end() && next->start <= now; ++next) busy += next->count;
      if (last.end > now) us += (last.end - now) * chunk_us(busy);
      now = std::max(now, last.end);
      busy -= last.count;
    }
    return us;
  }
  // CTAs of a row that start together.
  struct Started {
    double start = 0, end = 0, count = 0;
  };
  // When the last CTA starts and when all have ended, if every row has `of_row` of them that take
  // `length(row)` each and start one row after another where others have ended first, and all rows
  // again for every turn. Places that get free together are looked at together, so this costs a few
  // steps a row.
  struct Ends {
    double started = 0, last = 0;
  };
  template <class Length, class Each>
  Ends in_order(std::int64_t of_row, int places, const Length& length, const Each& each,
                std::int64_t turns = 1) const {
    struct Free {
      double at;
      std::int64_t count;
      bool operator<(const Free& other) const { return at > other.at; }
    };
    std::vector<Free> free{{0.0, places}};  // a heap, those that get free first on top
    Ends result;
    for (std::int64_t i = 0; i < rows * turns; ++i) {
      const double takes = length(static_cast<int>(i % rows));
      for (std::int64_t left = of_row; left > 0;) {
        std::pop_heap(free.begin(), free.end());
        const Free first = free.back();
        free.pop_back();
        const std::int64_t count = std::min(left, first.count);
        const auto again = [&](Free f) {
          free.push_back(f);
          std::push_heap(free.begin(), free.end());
        };
        if (count < first.count) again({first.at, first.count - count});
        again({first.at + takes, count});
        result = {first.at, std::max(result.last, first.at + takes)};
        each(Started{first.at, first.at + takes, static_cast<double>(count)});
        left -= count;
      }
    }
    return result;
  }
  template <class Length>
  Ends in_order(std::int64_t of_row, int places, const Length& length) const {
    return in_order(of_row, places, length, [](const Started&) {});
  }
  static constexpr std::int64_t kMostDealt = 32;  // a CTA: of more, all have about as much
  bool deals_out() const { return lengths.ranked() && tasks() <= kMostDealt * multiprocessors; }
  // What the busiest of the CTAs of the fused kernel takes, which deal out the tasks by length and
  // from alternating ends (fused_tasks.cuh): the largest sum of the chunks and tasks of one. Those
  // of the first `taken` sequences are others' work.
  double dealt_out(double chunk_us, double task_us, int on, int taken = 0) const {
    const std::int64_t all = tasks() - taken * heads, ctas = std::min<std::int64_t>(all, on);
    double most = 0;
    for (std::int64_t cta = 0; cta < ctas; ++cta) {
      double us = 0;
      for (std::int64_t round = 0; round * ctas < all; ++round) {
        const std::int64_t task = round * ctas + (round % 2 == 0 ? cta : ctas - 1 - cta);
        if (task >= all) continue;
        us += lengths.all->chunks(taken + static_cast<int>(task / heads)) * chunk_us + task_us;
      }
      most = std::max(most, us);
    }
    return most;
  }

  static std::int64_t divided(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }
  friend bool operator==(const PlanShape&, const PlanShape&) = default;
};

// What a function says of a shape, kept by the thread that asked: a call asks up to three times,
// the layers of a model ask the same, and looking at all numbers of segments takes the host 10 us
// and more.
template <auto Function>
auto remembered(const PlanShape& s) {
  using Result = decltype(Function(s));
  struct Answer {
    PlanShape shape;
    Result result;
  };
  thread_local std::optional<Answer> last;
  if (!last.has_value() || last->shape != s) last = Answer{s, Function(s)};
  return last->result;
}

// Of sequences whose lengths only the device knows: rather alike than not, and otherwise drawn from
// a tenth of the longest up to it, or from all orders of magnitude up to 64 times the shortest; what
// the longest then has of the mean grows with their number. The mean time, not that of the
// logarithms: a plan that is lost where a sequence is long counts for what it loses.
template <class Us>
double over_lengths(const PlanShape& s, const Us& us) {
  if (s.rows <= 1 || s.longest > 0) return us(s);
  const auto times = [&](double mean) {
    PlanShape x = s;
    x.guessed = true;
    x.longest =
        std::min(s.tokens, static_cast<std::int64_t>(mean * static_cast<double>(s.length())));
    return us(x);
  };
  const double rest = 1.0 / static_cast<double>(s.rows);
  return 0.6 * times(1.0) + 0.2 * (times(1.83 / (1 + 0.87 * rest)) + times(4.2 / (1 + 3.6 * rest)));
}

// The larger of two limits, and a little more where they are alike.
inline double limit_us(double a, double b) {
  return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b));
}

}  // namespace hyla::gdn
