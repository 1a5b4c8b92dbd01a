// The cost model of the kernels for short sequences: cuda_block, cuda_steps, cuda_vk and cuda_kv.
#pragma once

#include "ops/gdn_prefill/plan_batch.h"
#include "ops/gdn_prefill/walk_shares.h"

namespace hyla::gdn {

// Blocks of 8 tokens of 32 value rows, six CTAs a multiprocessor: if sequences are alike, all six end
// together, and the next ones begin. An odd one takes as long as the pair that it would be in, and
// a third block waits for its loads.
inline double block_at_us(const PlanShape& s) {
  const auto tasks = static_cast<double>(s.tasks());
  const double ctas = tasks * s.blocks * 2, on_one = std::min(6.0, ctas / s.multiprocessors);
  const auto longest = static_cast<double>(PlanShape::divided(s.length(), 8));
  const auto cta = [&](double at_once, double blocks) {
    const double us = s.narrow_states
                          ? 0.704 + 0.108 * at_once + blocks * (1.37 + 0.224 * at_once)
                          : 0.392 + 0.269 * at_once + blocks * (0.892 + 0.238 * at_once);
    return us + (blocks > 2 ? 0.539 : 0.0);
  };
  const double base = s.narrow_states ? 2.01 : 3.27;
  if (s.even(8)) {
    const double waves = ctas / (6.0 * s.multiprocessors), full = std::floor(waves);
    const double pairs = std::ceil(3.0 * (waves - full));
    const double rest = ctas <= s.multiprocessors ? 1.0 : 2 * pairs;
    return base + (s.narrow_states ? 0.146 : 0.33) * ctas / s.multiprocessors +
           (full > 0 ? (0.0695 + 0.935 * full) * cta(6.0, longest) : 0.0) +
           (rest > 0 ? cta(rest, longest) : 0.0);
  }
  if (s.narrow_states && s.lengths.in_order() && s.deals_out()) {
    const auto ends = s.in_order(s.heads * s.blocks * 2, 6 * s.multiprocessors, [&](int row) {
      return cta(on_one, s.lengths.all->blocks_in_order(row));
    });
    const double mean = s.pieces(8) / s.row_count();
    const double beside = 1.0 + 1.14 * (on_one - 1.0) * mean / longest;
    const double left = cta(std::max(1.0, beside), longest) / cta(on_one, longest);
    return base + ends.started + (ends.last - ends.started) * std::min(left, 1.0);
  }
  const double one =
      static_cast<double>(PlanShape::divided(s.length(), 8)) * (1.66 + 0.09 * on_one);
  const double shared =
      0.418 * s.pieces(8) * static_cast<double>(s.heads) * s.blocks * 2 / s.multiprocessors;
  const double last = ctas > 6.0 * s.multiprocessors ? 0.206 * one : 0.0;
  return (s.narrow_states ? 2.43 : 3.41) + (s.narrow_states ? 0.013 : 0.0209) * tasks +
         limit_us(one, shared + last);
}

// Steps of 16 tokens of many tasks, a CTA a multiprocessor: a task takes its bytes or its steps.
inline double stream_us(const PlanShape& s) {
  const double tasks = static_cast<double>(s.tasks()) * s.blocks / 2;
  const double mean = s.pieces(16) / s.row_count();
  const auto walk = [](double steps) { return 2.23 + 1.12 * steps; };
  const double shared = 1.0 + 0.145 * (s.keys_a_head() - 1.0);
  const double bytes = tasks / s.multiprocessors * (3.81 + 0.238 * mean * shared);
  if (s.even(16)) return 6.19 + limit_us(bytes, s.waves(tasks) * walk(mean));
  if (s.deals_out()) {
    std::vector<Alike> rows;
    for (int rank = 0; rank < s.rows; ++rank) {
      rows.push_back({s.lengths.all->steps(rank), s.heads * s.blocks / 2});
    }
    return 6.8 + limit_us(bytes, dealt_out_us(rows, 1.16, 2.28, s.multiprocessors));
  }
  const double longest = walk(static_cast<double>(PlanShape::divided(s.length(), 16)));
  return 4.35 + limit_us(bytes, std::max(longest,
                                         tasks / s.multiprocessors * walk(mean) + 0.312 * longest));
}

// Are there so many that a CTA goes through several? States of 16 bits do not.
inline bool streams_steps(const PlanShape& s) {
  return !s.narrow_states && s.blocks % 2 == 0 && s.tasks() * s.blocks > 3 * s.multiprocessors;
}

// CTAs that all start at once, number i beside number i + multiprocessors: the busiest
// multiprocessor, if `cta(at_once, steps)` is what one takes beside others.
template <class Cta, class Steps>
double steps_at_once_us(const PlanShape& s, double ctas, const Cta& cta, const Steps& steps_of) {
  const auto count = static_cast<std::int64_t>(ctas);
  double most = 0;
  for (int first = 0; first < std::min<std::int64_t>(count, s.multiprocessors); ++first) {
    double steps[4] = {};
    int beside = 0;
    for (std::int64_t i = first; i < count && beside < 4; i += s.multiprocessors) {
      int place = beside++;  // the shortest first
      const double n = steps_of(static_cast<int>(i / (s.heads * s.blocks)));
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

// All start at once, two or three a multiprocessor; states and inputs come at the speed of the
// memory, and a chunk is asked for whole.
inline double steps_together_us(const PlanShape& s, double ctas) {
  const bool narrow = s.narrow_states;
  const double norm = s.norm ? (narrow ? 0.0394 : 0.0304) : 0.0;
  const auto cta = [&](double at_once, double count) {
    return (narrow ? 1.19 : 0.316) * at_once + (narrow ? 0.0 : 0.5) * std::min(count, 4.0) +
           count * ((narrow ? 0.746 : 1.17) + ((narrow ? 0.218 : 0.249) + norm) * at_once);
  };
  const double whole = narrow ? 0.0 : 0.457;
  const auto counted = [&](double steps, double chunks) {
    return steps + whole * (4 * chunks - steps);
  };
  const double longest =
      counted(static_cast<double>(PlanShape::divided(s.length(), 16)), s.chunks());
  const double start = (narrow ? 1.88 : 0.407) + s.call_bytes() / 5.65e6;
  const double on_one = std::ceil(ctas / s.multiprocessors);
  if (s.even(16)) return start + cta(on_one, longest);
  if (s.lengths.in_order() && s.deals_out()) {
    return start + steps_at_once_us(s, ctas, cta, [&](int row) {
             return counted(s.lengths.all->steps_in_order(row),
                            s.lengths.all->chunks_in_order(row));
           });
  }
  const double mean = counted(s.pieces(16), s.all_chunks()) / s.row_count();
  // The longest has its multiprocessor for itself when the others have ended.
  return start + limit_us(cta(1.0 + 1.06 * (on_one - 1.0) * mean / longest, longest),
                          0.434 * cta(ctas / s.multiprocessors, mean));
}

// Steps of 16 tokens. With a multiprocessor for every 64 value rows they are made ahead, and a step
// is a latency; otherwise some CTAs share one, loads, products and stores of all of them in turns.
inline double steps_at_us(const PlanShape& s) {
  const auto steps = static_cast<double>(PlanShape::divided(s.length(), 16));
  const double ctas = static_cast<double>(s.tasks()) * s.blocks;
  if (ctas <= s.multiprocessors) {
    const bool halves = 2 * ctas <= s.multiprocessors;
    return (halves ? 3.49 : 3.0) + (s.narrow_states ? 0.489 : 0.0) + 0.0158 * ctas +
           steps * ((halves ? 0.581 : 0.689) + (s.norm ? 0.0335 : 0.0) +
                    0.008 * (s.keys_a_head() - 1.0));
  }
  if (streams_steps(s)) return stream_us(s);
  if (ctas <= (s.narrow_states ? 2 : 3) * s.multiprocessors) return steps_together_us(s, ctas);
  const double most = 2;  // CTAs a multiprocessor at once
  const double norm = s.norm ? 0.0422 : 0.0;
  const auto cta = [&](double at_once, double count) {
    return 1.43 + 1.04 * at_once + count * (0.733 + (0.31 + norm) * at_once);
  };
  const double on_one = ctas / s.multiprocessors, mean = s.pieces(16) / s.row_count();
  const double full = std::floor(on_one / most), rest = on_one - most * full;
  const double base = 2.33;
  if (s.even(16)) {
    const double counted = steps + 0.165 * (4 * s.chunks() - steps);  // a chunk is asked for whole
    return base + full * cta(most, counted) + (rest > 0 ? cta(std::ceil(rest), counted) : 0.0);
  }
  if (s.lengths.in_order() && s.deals_out()) {
    // When none waits to start any more, those that are left have fewer beside them.
    const auto ends =
        s.in_order(s.heads * s.blocks, s.multiprocessors * static_cast<int>(most),
                   [&](int row) { return cta(most, s.lengths.all->steps_in_order(row)); });
    const double others = 1.0 + 1.32 * (most - 1.0) * mean / steps;
    const double left = cta(others, steps) / cta(most, steps);
    return base + ends.started + (ends.last - ends.started) * left;
  }
  // The longest has its multiprocessor for itself when the others have ended.
  const double beside = (std::min(most, std::ceil(on_one)) - 1.0) * mean / steps;
  return base + limit_us(cta(1.0 + 2.69 * beside, steps), on_one / most * cta(most, mean) * 1.1);
}

// How the CTAs of rows, one row after another, fill `places`, if each takes its row's pieces and one
// more: when the last one ends in lengths of the longest, and how busy the places are till then.
template <class Pieces>
PlanTerms filled_places(const PlanShape& s, std::int64_t of_row, int places,
                        const Pieces& pieces_of) {
  if (!s.ragged()) return {1, 1};
  double sum = 0, longest = 0;
  const auto ends = s.in_order(of_row, places, [&](int row) {
    const double pieces = 1.0 + pieces_of(row);
    sum += static_cast<double>(of_row) * pieces, longest = std::max(longest, pieces);
    return pieces;
  });
  const auto most = static_cast<double>(std::min<std::int64_t>(places, of_row * s.rows));
  return {ends.last / longest, sum / (most * ends.last)};
}

inline PlanTerms block_terms(const PlanShape& s) {
  const std::int64_t ctas = s.tasks() * s.blocks * 2;
  PlanTerms terms = filled_places(s, s.heads * s.blocks * 2, 6 * s.multiprocessors,
                                  [&](int row) { return s.lengths.all->blocks_in_order(row); });
  const double on_one = static_cast<double>(ctas) / s.multiprocessors;
  terms[2] = std::min(6.0, on_one), terms[3] = std::ceil(on_one / 6) - on_one / 6;
  terms[4] = std::log2(static_cast<double>(1 + (s.length() - 1) / 8));
  return terms;
}

inline PlanTerms steps_terms(const PlanShape& s) {
  const std::int64_t ctas = s.tasks() * s.blocks;
  const int at_once = s.narrow_states ? 2 : 3;
  PlanTerms terms = filled_places(s, s.heads * s.blocks, at_once * s.multiprocessors,
                                  [&](int row) { return s.lengths.all->steps_in_order(row); });
  terms[2] = streams_steps(s) ? 1.0 : 0.0;
  terms[3] = ctas <= s.multiprocessors ? (2 * ctas <= s.multiprocessors ? 2.0 : 1.0) : 0.0;
  terms[4] = ctas <= at_once * s.multiprocessors ? 1.0 : 0.0;
  return terms;
}

// One token after another, each a latency or what all value rows take; and the states.
inline double vk_at_us(const PlanShape& s, PlanTerms& terms) {
  const double rows = static_cast<double>(s.heads * s.blocks * s.key_dim) / 128;
  const double one = static_cast<double>(s.length()) * (s.norm ? 0.63 : 0.579);
  const double all = s.pieces(1) * rows * 0.00413;
  const double states = static_cast<double>(s.rows) * rows * (s.narrow_states ? 0.00453 : 0.0148);
  // Warps of 8 value rows, 20 on a multiprocessor.
  const PlanTerms filled =
      filled_places(s, s.heads * s.blocks * 8, 20 * s.multiprocessors,
                    [&](int row) { return s.lengths.all->tokens_in_order(row); });
  terms = {one, all, states, filled[0], filled[1]};
  return 2.95 + limit_us(one, all) + states;
}

}  // namespace hyla::gdn
