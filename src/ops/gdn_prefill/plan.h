// Which kernels are expected to be fastest: a cost model in microseconds, fitted to what random
// shapes took on an H200 (`hyla bench --plans`), with what the host knows of a batch: sequences,
// heads, tokens in all and, if the caller said so, of the longest sequence or of all. Gates are on
// the device, so a quarter of the heads is taken not to forget.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "ops/gdn_prefill/long_plan.h"
#include "ops/gdn_prefill/plan_lengths.h"

namespace hyla::gdn {

// Compared by what they say: plan_shape() keeps the lengths themselves in one place a thread.
struct ToldLengths {
  const PlanLengths* all = nullptr;  // null: nobody told
  std::uint64_t key = 0;

  bool ranked() const { return all != nullptr && all->ranked(); }
  friend bool operator==(const ToldLengths& a, const ToldLengths& b) {
    return (a.all == nullptr) == (b.all == nullptr) && a.key == b.key;
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
  double waves(double ctas, int at_once = 1) const {
    return std::ceil(ctas / (static_cast<double>(multiprocessors) * at_once));
  }
  // What the busiest multiprocessor walks over, if CTAs walk over `most` and over `mean` in the
  // mean.
  double busiest(double ctas, double most, double mean) const {
    if (even() || ctas <= multiprocessors) return waves(ctas) * most;
    return std::max(most, mean * ctas / multiprocessors + 0.5 * most);
  }

  static constexpr double kMostStarted = 8;  // CTAs a multiprocessor: of more, all have as much
  bool starts_in_order(double ctas) const {
    return lengths.ranked() && ctas <= kMostStarted * multiprocessors;
  }
  // CTAs that start in the order of their numbers, each where one ends first: all heads of all
  // sequences, and again for the next value rows. They walk over chunks that take the longer the
  // more CTAs are at work: `chunk_us` of some.
  template <class ChunkUs>
  double walked_in_order_us(double ctas, const ChunkUs& chunk_us) const {
    std::vector<double> starts, ends;  // in chunks: all are equally fast at a time
    in_order(static_cast<std::int64_t>(ctas), multiprocessors, [&](std::int64_t i, double start) {
      const int length = lengths.all->chunks_in_order(static_cast<int>(i % tasks() / heads));
      starts.push_back(start);
      ends.push_back(start + length);
      return static_cast<double>(length);
    });
    std::sort(ends.begin(), ends.end());  // starts rise already
    double us = 0, now = 0;
    for (std::size_t begun = 0, ended = 0; ended < ends.size(); ++ended) {
      while (begun < starts.size() && starts[begun] <= now) ++begun;
      if (ends[ended] <= now) continue;
      us += (ends[ended] - now) * chunk_us(static_cast<double>(begun - ended));
      now = ends[ended];
    }
    return us;
  }
  // When the last of such CTAs starts, and when all have ended, if CTA i takes `length(i, start)`.
  struct Ends {
    double started = 0, last = 0;
  };
  template <class Length>
  static Ends in_order(std::int64_t count, int places, const Length& length) {
    std::vector<double> ends;  // of each place, a heap with the first on top
    ends.reserve(static_cast<std::size_t>(places));
    Ends result;
    for (std::int64_t i = 0; i < count; ++i) {
      if (static_cast<int>(ends.size()) == places) {
        std::pop_heap(ends.begin(), ends.end(), std::greater<>());
        result.started = ends.back();
        ends.pop_back();
      }
      const double end = result.started + length(i, result.started);
      ends.push_back(end);
      std::push_heap(ends.begin(), ends.end(), std::greater<>());
      result.last = std::max(result.last, end);
    }
    return result;
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

// Of sequences whose lengths only the device knows: as likely alike as not, and otherwise drawn
// from a tenth of the longest up to it, or from all orders of magnitude up to 64 times the
// shortest; what the longest then has of the mean grows with their number. The mean of the
// logarithms, so that what is lost counts by its ratio.
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
  return std::sqrt(times(1.0) *
                   std::sqrt(times(1.83 / (1 + 0.87 * rest)) * times(4.2 / (1 + 3.6 * rest))));
}

// The larger of two limits, and a little more where they are alike.
inline double limit_us(double a, double b) {
  return std::sqrt(std::sqrt(a * a * a * a + b * b * b * b));
}

// What the device will find (long_rows.cuh) if the sequence of a rank has `length(rank)` chunks: how
// many of up to `most` sequences are taken out, none if that does not pay.
struct LongChoice {
  int count = 0, parts = 1, prepared = 0;
  std::int64_t cost = LongPlan::kImpossible;
};
template <class Length>
LongChoice long_choice(const LongPlan& plan, int most, const Length& length) {
  LongChoice best;
  for (int parts = 1; parts <= plan.most_parts; ++parts) {
    for (int count = 1, prepared = 0; count <= most; ++count) {
      prepared += length(count - 1);
      if (count < plan.rows && length(count) == length(count - 1)) continue;
      const std::int64_t cost = plan.cost(count, prepared, length(0), length(count), parts);
      if (cost < best.cost) best = {count, parts, prepared, cost};
    }
  }
  return LongPlan::pays(best.cost, plan.cost(0, 0, length(0), 0, 1)) ? best : LongChoice{};
}
inline LongChoice long_choice(LongPlan plan, int most, const PlanLengths& lengths) {
  plan.rows = lengths.rows();
  plan.chunks = static_cast<int>(std::min(lengths.pieces(64), 1e9));
  return long_choice(plan, most, [&](int rank) { return lengths.chunks(rank); });
}

// Everything in one CTA; a task costs its states, and more of them beside each other memory's time.
inline double fused_chunk_us(const PlanShape& s, double busy) {
  return (s.norm ? 2.43 : 2.28) * (1 + 0.0628 * busy);
}
inline double fused_task_us(const PlanShape& s, double busy) {
  return (!s.reads_states   ? 3.3
          : s.narrow_states ? 6.74
                            : 6.54) *
             busy +
         (s.narrow_states ? 1.03 : 0.0);
}

inline double split_at_us(const PlanShape& s, int parts, int blocks_a_cta, bool may_hand = true);

// The chosen sequences are prepared and walked over, the others share what is left. If none is
// left, that is what cuda_split does, and the look.
inline double long_us(const PlanShape& s, const LongPlan& plan, const LongChoice& longs) {
  if (longs.count >= s.rows) return 19.8 + split_at_us(s, longs.parts, plan.blocks_a_cta);
  const double chunks = static_cast<double>(longs.prepared * s.heads);
  const double prepare =
      (s.norm ? 2.09 : 2.31) * std::pow(std::max(1.0, chunks / s.multiprocessors), 0.961);
  const int ctas = longs.count * plan.ctas_a_row(longs.parts);
  const double walk = plan.blocks_a_cta == 2 ? 1.5 : longs.parts == 2 ? 0.768 : 1.05;
  const double loads = (s.key_loads * 2 / plan.blocks_a_cta + s.value_bytes) * chunks / 6.8e6;
  const double busy = static_cast<double>(ctas) / s.multiprocessors;
  const double walks =
      limit_us(walk * static_cast<double>(s.lengths.all->chunks(0)), loads * std::pow(busy, 1.5));
  const double others = s.dealt_out(fused_chunk_us(s, 1.0), fused_task_us(s, 1.0),
                                    s.multiprocessors - ctas, longs.count);
  return 29.4 + 0.0511 * s.row_count() + prepare + std::max(walks, others);
}

inline double fused_at_us(const PlanShape& s) {
  const auto tasks = static_cast<double>(s.tasks());
  const double rows = s.row_count();
  const double busy = std::min(1.0, tasks / s.multiprocessors);
  const double chunk = fused_chunk_us(s, busy), task = fused_task_us(s, busy);
  // Sequences that end one after another do not wait for each other's states.
  const double alike = tasks > s.multiprocessors ? 0.888 : 0.654;
  const double one = s.chunks() * chunk + task;
  const double shared =
      (s.all_chunks() * chunk + rows * task) * static_cast<double>(s.heads) / s.multiprocessors;
  const double tail = tasks > s.multiprocessors ? 0.433 * s.all_chunks() / rows * chunk : 0;
  const double us = 8.69 + 0.0477 * rows +
                    (s.even()        ? s.waves(tasks) * one
                     : s.deals_out() ? s.dealt_out(chunk, alike * task, s.multiprocessors)
                                     : std::max(one, shared + tail));
  LongPlan plan;
  const int most = long_rows(plan, s.rows, s.heads, s.tokens, s.told(), s.multiprocessors);
  if (most == 0) return us;
  if (s.deals_out()) {
    const LongChoice longs = long_choice(plan, most, *s.lengths.all);
    return longs.count == 0 ? us : long_us(s, plan, longs);
  }
  constexpr double kLook = 6.63;
  if (s.even()) {
    const auto chunks = static_cast<int>(s.chunks());
    const LongChoice longs =
        long_choice(plan, most, [&](int rank) { return rank < s.rows ? chunks : 0; });
    return longs.count > 0 ? long_us(s, plan, longs) : kLook + us;
  }
  // The longest is known, and the others fall from it as a power does that leaves them their
  // tokens.
  const double others = std::max(1.0, rows - 1.0);
  const double mean = std::max(0.5, (s.all_chunks() - s.chunks()) / others);
  const double power = std::max(0.0, s.chunks() / mean - 1.0);
  const LongChoice longs = long_choice(plan, most, [&](int rank) {
    if (rank >= s.rows) return 0;
    const double at = rank == 0     ? s.chunks()
                      : s.rows == 2 ? mean
                                    : s.chunks() * std::pow(1.0 - (rank - 0.5) / others, power);
    return static_cast<int>(std::lround(at));
  });
  return kLook + (longs.count > 0 ? 11.1 + 0.0104 * static_cast<double>(longs.cost) : us);
}

// Blocks of 8 tokens of 32 value rows, six CTAs a multiprocessor: if sequences are alike, all six end
// together, and the next ones begin.
inline double block_at_us(const PlanShape& s) {
  const auto tasks = static_cast<double>(s.tasks());
  const double ctas = tasks * s.blocks * 2, on_one = std::min(6.0, ctas / s.multiprocessors);
  const auto longest = static_cast<double>(PlanShape::divided(s.length(), 8));
  const auto cta = [&](double at_once, double blocks) {
    return s.narrow_states ? 1.33 + 0.106 * at_once + blocks * (0.692 + 0.351 * at_once)
                           : 1.27 + 0.563 * at_once + blocks * (0.947 + 0.221 * at_once);
  };
  const double base = s.narrow_states ? 2.38 : 2.32;
  if (s.even(8)) {
    const double waves = ctas / (6.0 * s.multiprocessors), full = std::floor(waves);
    const double rest = std::ceil(6.0 * (waves - full));
    return base + full * cta(6.0, longest) + (rest > 0 ? cta(rest, longest) : 0.0);
  }
  if (s.narrow_states && s.deals_out()) {
    const auto ends = PlanShape::in_order(
        static_cast<std::int64_t>(ctas), 6 * s.multiprocessors, [&](std::int64_t i, double) {
          const auto row = static_cast<int>(i / (s.heads * s.blocks * 2));
          return cta(on_one, s.lengths.all->blocks_in_order(row));
        });
    const double mean = s.pieces(8) / s.row_count();
    const double beside = 1.0 + 1.11 * (on_one - 1.0) * mean / longest;
    const double left = cta(std::max(1.0, beside), longest) / cta(on_one, longest);
    return base + ends.started + (ends.last - ends.started) * std::min(left, 1.0);
  }
  const double one =
      static_cast<double>(PlanShape::divided(s.length(), 8)) * (1.5 + 0.0998 * on_one);
  const double shared =
      0.378 * s.pieces(8) * static_cast<double>(s.heads) * s.blocks * 2 / s.multiprocessors;
  const double last = ctas > 6.0 * s.multiprocessors ? 0.365 * one : 0.0;
  return (s.narrow_states ? 2.74 : 3.29) + (s.narrow_states ? 0.0123 : 0.0189) * tasks +
         limit_us(one, shared + last);
}

// Steps of 16 tokens of many tasks, a CTA a multiprocessor: a task takes its bytes or its steps.
inline double stream_us(const PlanShape& s) {
  const double tasks = static_cast<double>(s.tasks()) * s.blocks / 2;
  const double mean = s.pieces(16) / s.row_count();
  const auto walk = [](double steps) { return 2.04 + 1.12 * steps; };
  const double bytes = tasks / s.multiprocessors * (3.89 + 0.207 * mean);
  if (s.even(16)) return 6.46 + limit_us(bytes, s.waves(tasks) * walk(mean));
  if (s.deals_out()) {  // CTA i has tasks i, i + ctas, ...
    const auto count = static_cast<std::int64_t>(tasks);
    double most = 0;
    for (int cta = 0; cta < s.multiprocessors; ++cta) {
      double us = 0;
      for (std::int64_t i = cta; i < count; i += s.multiprocessors) {
        us += walk(s.lengths.all->steps_in_order(static_cast<int>(i * 2 / s.blocks / s.heads)));
      }
      most = std::max(most, us);
    }
    return 6.42 + limit_us(bytes, most);
  }
  const double longest = walk(static_cast<double>(PlanShape::divided(s.length(), 16)));
  return 5.89 + limit_us(bytes, tasks / s.multiprocessors * walk(mean) + 0.694 * longest);
}

// Are there so many that a CTA goes through several? States of 16 bits do not.
inline bool streams_steps(const PlanShape& s) {
  return !s.narrow_states && s.blocks % 2 == 0 && s.tasks() * s.blocks > 3 * s.multiprocessors;
}

// CTAs that all start at once, number i beside number i + multiprocessors: the busiest
// multiprocessor, if `cta(at_once, steps)` is what one takes beside others.
template <class Cta>
double steps_at_once_us(const PlanShape& s, double ctas, const Cta& cta) {
  const auto count = static_cast<std::int64_t>(ctas);
  double most = 0;
  for (int first = 0; first < std::min<std::int64_t>(count, s.multiprocessors); ++first) {
    double steps[4] = {};
    int beside = 0;
    for (std::int64_t i = first; i < count && beside < 4; i += s.multiprocessors) {
      int place = beside++;  // the shortest first
      const double n = s.lengths.all->steps_in_order(static_cast<int>(i / (s.heads * s.blocks)));
      for (; place > 0 && steps[place - 1] > n; --place) steps[place] = steps[place - 1];
      steps[place] = n;
    }
    double us = cta(beside, steps[0]);
    for (int i = 1; i < beside; ++i) {
      us += cta(beside - i, steps[i]) - cta(beside - i, steps[i - 1]);
    }
    most = std::max(most, us);
  }
  return most;
}

// Steps of 16 tokens. With a multiprocessor for every 64 value rows they are made ahead, and a step
// is a latency; otherwise some CTAs share one, loads, products and stores of all of them in turns.
inline double steps_at_us(const PlanShape& s) {
  const auto steps = static_cast<double>(PlanShape::divided(s.length(), 16));
  const double ctas = static_cast<double>(s.tasks()) * s.blocks;
  if (ctas <= s.multiprocessors) {
    const bool halves = 2 * ctas <= s.multiprocessors;
    return (halves ? 3.5 : 3.22) + (s.narrow_states ? 0.442 : 0.0) + 0.0141 * ctas +
           steps * ((halves ? 0.589 : 0.686) + (s.norm ? 0.041 : 0.0));
  }
  if (streams_steps(s)) return stream_us(s);
  const double most = s.narrow_states ? 2 : 3;  // CTAs a multiprocessor at once
  const double step = s.narrow_states ? 0.569 : 0.811, shares = s.narrow_states ? 0.396 : 0.5;
  const double norm = s.norm ? 0.0418 : 0.0;
  const auto cta = [&](double at_once, double count) {
    return (s.narrow_states ? 2.89 : 0.0) + (s.narrow_states ? 0.414 : 2.14) * at_once +
           count * (step + (shares + norm) * at_once);
  };
  const double on_one = ctas / s.multiprocessors, mean = s.pieces(16) / s.row_count();
  const double full = std::floor(on_one / most), rest = on_one - most * full;
  const double base = 2.17;
  if (s.even(16)) {
    const double last = rest > 0 ? cta(std::ceil(rest), steps) : 0.0;
    return base + full * cta(most, steps) + (full > 0 ? 1.07 : 1.0) * last;
  }
  if (s.deals_out()) {
    if (on_one <= most) return base + steps_at_once_us(s, ctas, cta);
    // When none waits to start any more, those that are left have fewer beside them.
    const auto ends = PlanShape::in_order(
        static_cast<std::int64_t>(ctas), s.multiprocessors * static_cast<int>(most),
        [&](std::int64_t i, double) {
          const auto row = static_cast<int>(i / (s.heads * s.blocks));
          return cta(most, s.lengths.all->steps_in_order(row));
        });
    const double others = 1.0 + 0.902 * (most - 1.0) * mean / steps;
    const double left = cta(others, steps) / cta(most, steps);
    return base + ends.started + (ends.last - ends.started) * left;
  }
  // The longest has its multiprocessor for itself when the others have ended.
  const double beside = (std::min(most, std::ceil(on_one)) - 1.0) * mean / steps;
  return base + limit_us(cta(1.0 + 1.02 * beside, steps), on_one / most * cta(most, mean) * 1.12);
}

// One token after another, each a latency or what all value rows take; and the states.
inline double vk_at_us(const PlanShape& s) {
  const double rows = static_cast<double>(s.heads * s.blocks * s.key_dim) / 128;
  const double one = static_cast<double>(s.length()) * (s.norm ? 0.617 : 0.519);
  return 3.63 + limit_us(one, s.pieces(1) * rows * 0.00348) +
         static_cast<double>(s.rows) * rows * (s.narrow_states ? 0.00807 : 0.0182);
}

// With what is known of the lengths.
template <double (*AtUs)(const PlanShape&)>
double us_over_lengths(const PlanShape& s) {
  return over_lengths(s, AtUs);
}
inline double fused_us(const PlanShape& s) { return remembered<us_over_lengths<fused_at_us>>(s); }
inline double block_us(const PlanShape& s) { return remembered<us_over_lengths<block_at_us>>(s); }
inline double steps_us(const PlanShape& s) { return remembered<us_over_lengths<steps_at_us>>(s); }
inline double vk_us(const PlanShape& s) { return remembered<us_over_lengths<vk_at_us>>(s); }

// T', P and factors of all chunks `on` some multiprocessors, four warpgroups each: the first chunk
// is a latency, and the more there are the better they fill each other's gaps.
inline double prepare_us(const PlanShape& s, double on) {
  const double each = (s.wide() ? 3.15 : 2.26) * (s.norm ? 1.24 : 1.0);
  const double chunks = s.all_chunks() * static_cast<double>(s.heads);
  const double bytes_per_us = s.wide() ? 3.02e6 : s.key_dim == 128 ? 2.68e6 : 2.62e6;
  return limit_us(each * std::pow(std::max(1.0, chunks / on), 0.884),
                  chunks * s.key_bytes / bytes_per_us);
}

// Whether so few chunks are prepared that the CTAs of the next kernel start beside, on
// multiprocessors of their own.
inline constexpr double kBesideUs = 2.5;
inline bool prepares_beside(const PlanShape& s, double ctas) {
  const double left = s.multiprocessors - ctas;
  return left >= 1 && s.all_chunks() * static_cast<double>(s.heads) <= 4 * left &&
         prepare_us(s, left) - kBesideUs < prepare_us(s, s.multiprocessors);
}

// How the chunks are walked over: parts of a sequence, blocks of value rows on a multiprocessor.
struct Walks {
  int parts = 0, blocks_a_cta = 1;
  double us = 0;
  int cuts = 1;         // pieces of a part, see segments.cuh
  bool beside = false;  // chunks are prepared beside the walk, see prepared_beside()
};

// `ctas` of one or two blocks walk over chunks with outputs, the busiest multiprocessor over
// `chunks`; no faster than the memory, of which they ask for `again` times the bytes.
inline double serial_us(const PlanShape& s, double ctas, double chunks, int blocks_a_cta,
                        double again = 1.0) {
  const bool crowded = 4 * ctas > 3 * s.multiprocessors;
  const double narrow = blocks_a_cta == 2 ? (crowded ? 1.45 : 1.42) : crowded ? 0.951 : 0.942;
  const double wide = blocks_a_cta == 2 ? 2.85 : crowded ? 1.53 : 1.55;
  // All of it once, and what blocks of value rows read again through L2. Few CTAs do not ask for
  // more than the memory has.
  const double all = s.all_chunks() * static_cast<double>(s.heads);
  constexpr double kBytesPerUs = 4.34e6, kCachedBytesPerUs = 6.69e6;
  const double memory = all * (s.key_bytes + s.value_bytes) / kBytesPerUs;
  const double cached =
      all * (s.key_bytes * s.blocks / blocks_a_cta + s.value_bytes) / kCachedBytesPerUs;
  const double busy = std::min(1.0, ctas / s.multiprocessors);
  return limit_us(chunks * (s.wide() ? wide : narrow),
                  again * std::max(memory, cached) * std::pow(busy, 1.99));
}

// The same of sequences that differ, of which the host knows the lengths: CTAs that have ended leave
// the memory to the others.
inline double serial_in_order_us(const PlanShape& s, double ctas, int blocks_a_cta) {
  const double chunk = s.wide()            ? (blocks_a_cta == 2 ? 2.69 : 1.46)
                       : blocks_a_cta == 2 ? 1.06
                                           : 0.891;
  const double blocks = static_cast<double>(s.blocks) / blocks_a_cta;
  const double memory = (s.key_bytes + s.value_bytes) / blocks / 4.3e6;
  const double cached = (s.key_loads + s.value_bytes / blocks) / 7.64e6;
  return s.walked_in_order_us(
      ctas, [&](double busy) { return limit_us(chunk, busy * std::max(memory, cached)); });
}

// What is walked over in one part, or in two of which the second catches up without outputs, in 3/4
// of the time.
inline double split_walk_us(const PlanShape& s, int parts, int blocks_a_cta) {
  const double ctas = static_cast<double>(s.tasks()) * s.blocks * parts / blocks_a_cta;
  if (parts == 1 && !s.even() && s.starts_in_order(ctas)) {
    return serial_in_order_us(s, ctas, blocks_a_cta);
  }
  const double walk = s.busiest(ctas, s.chunks(), s.all_chunks() / s.row_count());
  return serial_us(s, ctas, parts == 2 ? 0.759 * walk : walk, blocks_a_cta,
                   parts == 2 ? 1.24 : 1.0);
}

// Chunks prepared beside the walk over them, by the multiprocessors that it leaves free
// (handover.cuh).
struct Beside {
  bool pays = false;
  double us = 0;  // until all is walked over
};
inline Beside prepared_beside(const PlanShape& s, int parts, int blocks_a_cta) {
  const double ctas = static_cast<double>(s.tasks()) * s.blocks * parts / blocks_a_cta;
  const double left = s.multiprocessors - ctas;
  if (left < 1 || s.wide() || s.rows > 128 || s.chunks() < 48) return {};
  const double alone = split_walk_us(s, parts, blocks_a_cta);
  const double walk = alone * (blocks_a_cta == 2 ? 1.1 : 1.2);
  const double all = prepare_us(s, s.multiprocessors);
  const double rest = 1.05 * all * s.multiprocessors / left;
  // Rounds of all multiprocessors first: many were slower than one after the other (16/48 heads,
  // 1x32768), and a few no faster than none (16/32 heads, 16384x2).
  if (walk < 0.85 * rest) return {};
  Beside beside;
  beside.us = 2.0 + std::max(walk, rest);
  beside.pays = beside.us < all + alone;
  return beside;
}

// May chunks be handed over?
inline double split_at_us(const PlanShape& s, int parts, int blocks_a_cta, bool may_hand) {
  const auto tasks = static_cast<double>(s.tasks());
  const double rows = s.row_count();
  const double ctas = tasks * s.blocks * parts / blocks_a_cta;
  const double us = 10.8 + 0.0279 * rows + (s.narrow_states ? (s.wide() ? 3.08 : 0.873) : 0.0) +
                    (s.wide() ? 5.79 + (s.waves(ctas) > 1 ? 0.136 : 0.104) * tasks
                              : 0.000178 * tasks * s.blocks * static_cast<double>(s.key_dim)) +
                    (s.wide() ? 5.55 : 2.0) * (s.waves(ctas) - 1);
  const Beside beside = may_hand ? prepared_beside(s, parts, blocks_a_cta) : Beside{};
  if (beside.pays) return us + beside.us;
  const bool first = prepares_beside(s, ctas);
  return us + prepare_us(s, first ? s.multiprocessors - ctas : s.multiprocessors) +
         split_walk_us(s, parts, blocks_a_cta) - (first ? kBesideUs : 0.0);
}

inline double split_us(const PlanShape& s, int parts, int blocks_a_cta, bool may_hand = true) {
  return over_lengths(
      s, [&](const PlanShape& x) { return split_at_us(x, parts, blocks_a_cta, may_hand); });
}

inline Walks find_split_walks(const PlanShape& s) {
  const auto ctas = static_cast<double>(s.tasks() * s.blocks);
  Walks walks{1, 1, split_us(s, 1, 1)};
  const auto consider = [&](int parts, int blocks_a_cta) {
    const double us = split_us(s, parts, blocks_a_cta);
    if (us < walks.us) walks = {parts, blocks_a_cta, us};
  };
  if (2 * ctas <= s.multiprocessors && s.chunks() > 4) consider(2, 1);
  if (s.blocks % 2 == 0 && (!s.wide() || (s.pairs && s.waves(ctas) > 1))) consider(1, 2);
  walks.beside = prepared_beside(s, walks.parts, walks.blocks_a_cta).pays;
  return walks;
}

inline Walks split_walks(const PlanShape& s) { return remembered<find_split_walks>(s); }

// States between segments that there is memory for, N and M each.
inline constexpr std::int64_t kMostSegmentStates = 288;

// Of one head, that the kernel between segments takes.
inline constexpr int kMostPieces = 63;

// With alpha = 0.95, a head has forgotten after so many chunks.
inline constexpr double kRemembered = 61;

// Tasks whose segments remember.
inline double heavy_tasks(const PlanShape& s, int parts) {
  const bool all = s.chunks() <= kRemembered * parts;
  return static_cast<double>(all ? s.tasks() : s.rows * (s.heads / 4));
}

// Value rows of a CTA that goes through the states between segments: few, while there is room.
inline int state_rows(const PlanShape& s, int parts) {
  return 32 * heavy_tasks(s, parts) <= s.multiprocessors ? 4 : 8;
}

inline double segments_at_us(const PlanShape& s, int parts, int blocks_a_cta) {
  const auto tasks = static_cast<double>(s.tasks());
  const double rows = s.row_count();
  const double longest = std::ceil(s.chunks() / parts), each = s.all_chunks() / rows / parts;
  const double heavy = heavy_tasks(s, parts);
  // All that is walked over for N, and for M; two CTAs of 64 rows for each, two a multiprocessor.
  const double states = (tasks - heavy) * std::min(each, kRemembered) + heavy * each;
  const double walked = 2 * (states * (parts - 1) + heavy * each * (parts - 2));
  // Those that do not fit at once begin when segments that forget have ended.
  const bool second = tasks * (parts - 1) + heavy * (parts - 2) > s.multiprocessors;
  const double chain = heavy > 0 ? longest : std::min(longest, kRemembered);
  const double transfer = 0.797 * limit_us(chain, 0.386 * walked / s.multiprocessors) +
                          (second ? 0.686 * std::min(longest, kRemembered) : 0.0);
  const int state = state_rows(s, parts);
  const double between = s.waves(heavy * 128 / state) * (state == 4 ? 1.35 : 2.12) * (parts - 2);
  const double ctas = tasks * 2 / blocks_a_cta * parts;
  return 14.2 + 0.137 * tasks + 0.163 * tasks * parts + prepare_us(s, s.multiprocessors) +
         transfer + between + serial_us(s, ctas, s.busiest(ctas, longest, each), blocks_a_cta);
}

inline double segments_us(const PlanShape& s, int parts, int blocks_a_cta) {
  return over_lengths(s,
                      [&](const PlanShape& x) { return segments_at_us(x, parts, blocks_a_cta); });
}

// parts 0: too few chunks or too many tasks for any.
inline Walks find_segment_walks(const PlanShape& s) {
  Walks best;
  for (int parts : {3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64}) {
    if (parts > s.chunks() || s.tasks() * (parts - 1) > kMostSegmentStates) break;
    // Parts are of equal size, up to the last: some numbers of parts cannot be had.
    if (std::ceil(s.chunks() / std::ceil(s.chunks() / parts)) < parts) continue;
    for (int blocks : {1, 2}) {
      const double us = segments_us(s, parts, blocks);
      if (best.parts == 0 || us < best.us) best = {parts, blocks, us};
    }
  }
  return best;
}

inline Walks segment_walks(const PlanShape& s) { return remembered<find_segment_walks>(s); }

// The same with outputs by the fused kernel, of every part as a sequence of its own (cuda_relay):
// only T' is prepared, and only of chunks that a walk to the end of a part needs.
inline double relay_at_us(const PlanShape& s, int parts, int cuts) {
  const auto tasks = static_cast<double>(s.tasks());
  const double piece = std::ceil(s.chunks() / (parts * cuts)), longest = piece * cuts;
  const double each = s.all_chunks() / s.row_count() / parts;
  const double heavy = heavy_tasks(s, parts), light = tasks - heavy;
  const double followed = (parts - 1) * cuts;
  const double prepared = (heavy * each + light * std::min(each, kRemembered)) * (parts - 1);
  const double prepare =
      3.41 * (s.norm ? 1.01 : 1.0) * std::pow(std::max(1.0, prepared / s.multiprocessors), 0.885);
  const double chain =
      std::max(heavy > 0 ? piece : 0.0, light > 0 ? std::min(longest, kRemembered) : 0.0);
  const double walked = 2 * (prepared + heavy * each / cuts * (followed - 1));
  const bool second = heavy * (2 * followed - 1) + light * (parts - 1) > s.multiprocessors;
  const double transfer = 0.732 * limit_us(chain, 0.18 * walked / s.multiprocessors) +
                          (second ? 0.375 * std::min(chain, kRemembered) : 0.0);
  const int state = state_rows(s, parts);
  const double step = s.waves(heavy * 128 / state) * (state == 4 ? 1.32 : 2.12);
  const double between = followed > 1 ? 9.39 + step * (followed - 1) : 0.0;
  const double outputs = s.busiest(tasks * parts, longest, each) * (s.norm ? 2.29 : 2.1) +
                         6.0 * s.waves(tasks * parts);
  // Gates of all chunks are looked through first, and keys and queries read once more.
  const double all = s.all_chunks() * static_cast<double>(s.heads);
  const double found = 0.00102 * all, bytes = 8.1e-8 * all * s.key_bytes;
  return 19.5 + found + bytes + prepare + transfer + between + outputs;
}

// Shorter sequences are faster otherwise, and their calls too short to look at all of this.
inline constexpr double kLeastRelayChunks = 128;

inline Walks find_relay_walks(const PlanShape& s) {
  Walks best;
  if (s.chunks() < kLeastRelayChunks) return best;
  for (int parts : {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64}) {
    for (int cuts : {1, 2, 3, 4}) {
      const std::int64_t pieces = std::int64_t{parts} * cuts;
      const std::int64_t followed = pieces - cuts;
      if (static_cast<double>(pieces) > s.chunks() || followed > kMostPieces ||
          s.tasks() * followed > kMostSegmentStates) {
        break;
      }
      const double piece = std::ceil(s.chunks() / static_cast<double>(pieces));
      if (std::ceil(s.chunks() / (piece * cuts)) < parts) continue;
      const double us =
          over_lengths(s, [&](const PlanShape& x) { return relay_at_us(x, parts, cuts); });
      if (best.parts == 0 || us < best.us) best = {parts, 1, us, cuts};
    }
  }
  return best;
}

inline Walks relay_walks(const PlanShape& s) { return remembered<find_relay_walks>(s); }

}  // namespace hyla::gdn
