// The cost model of the kernels for short sequences: cuda_block, cuda_steps, cuda_vk and cuda_kv.
#pragma once

#include "ops/gdn_prefill/plan_batch.h"
#include "ops/gdn_prefill/walk_shares.h"

namespace hyla::gdn {

// Blocks of 8 tokens of 32 value rows, six CTAs a multiprocessor: if sequences are alike, all six end
// together, and the next ones begin.
inline double block_at_us(const PlanShape& s) {
  const auto tasks = static_cast<double>(s.tasks());
  const double ctas = tasks * s.blocks * 2, on_one = std::min(6.0, ctas / s.multiprocessors);
  const auto longest = static_cast<double>(PlanShape::divided(s.length(), 8));
  const auto cta = [&](double at_once, double blocks) {
    return s.narrow_states ? 0.517 + 0.0953 * at_once + blocks * (1.29 + 0.306 * at_once)
                           : 0.248 + 0.681 * at_once + blocks * (1.0 + 0.22 * at_once);
  };
  const double base = s.narrow_states ? 2.31 : 3.08;
  if (s.even(8)) {
    const double waves = ctas / (6.0 * s.multiprocessors), full = std::floor(waves);
    const double rest = std::ceil(6.0 * (waves - full));
    return base + full * cta(6.0, longest) + (rest > 0 ? cta(rest, longest) : 0.0);
  }
  if (s.narrow_states && s.lengths.in_order() && s.deals_out()) {
    const auto ends = PlanShape::in_order(
        static_cast<std::int64_t>(ctas), 6 * s.multiprocessors, [&](std::int64_t i, double) {
          const auto row = static_cast<int>(i / (s.heads * s.blocks * 2));
          return cta(on_one, s.lengths.all->blocks_in_order(row));
        });
    const double mean = s.pieces(8) / s.row_count();
    const double beside = 1.0 + 1.16 * (on_one - 1.0) * mean / longest;
    const double left = cta(std::max(1.0, beside), longest) / cta(on_one, longest);
    return base + ends.started + (ends.last - ends.started) * std::min(left, 1.0);
  }
  const double one =
      static_cast<double>(PlanShape::divided(s.length(), 8)) * (1.55 + 0.0819 * on_one);
  const double shared =
      0.429 * s.pieces(8) * static_cast<double>(s.heads) * s.blocks * 2 / s.multiprocessors;
  const double last = ctas > 6.0 * s.multiprocessors ? 0.205 * one : 0.0;
  return (s.narrow_states ? 2.42 : 3.29) + (s.narrow_states ? 0.0136 : 0.0185) * tasks +
         limit_us(one, shared + last);
}

// Steps of 16 tokens of many tasks, a CTA a multiprocessor: a task takes its bytes or its steps.
inline double stream_us(const PlanShape& s) {
  const double tasks = static_cast<double>(s.tasks()) * s.blocks / 2;
  const double mean = s.pieces(16) / s.row_count();
  const auto walk = [](double steps) { return 2.0 + 1.12 * steps; };
  const double shared = 1.0 + 0.143 * (s.keys_a_head() - 1.0);
  const double bytes = tasks / s.multiprocessors * (3.99 + 0.224 * mean * shared);
  if (s.even(16)) return 6.1 + limit_us(bytes, s.waves(tasks) * walk(mean));
  if (s.deals_out()) {
    std::vector<Alike> rows;
    for (int rank = 0; rank < s.rows; ++rank) {
      rows.push_back({s.lengths.all->steps(rank), s.heads * s.blocks / 2});
    }
    return 6.77 + limit_us(bytes, dealt_out_us(rows, 1.15, 2.28, s.multiprocessors));
  }
  const double longest = walk(static_cast<double>(PlanShape::divided(s.length(), 16)));
  return 4.32 +
         limit_us(bytes, std::max(longest, tasks / s.multiprocessors * walk(mean) + 0.3 * longest));
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
  const double norm = s.norm ? (narrow ? 0.0425 : 0.0317) : 0.0;
  const auto cta = [&](double at_once, double count) {
    return (narrow ? 1.28 : 0.348) * at_once + (narrow ? 0.0 : 0.532) * std::min(count, 4.0) +
           count * ((narrow ? 0.676 : 1.06) + ((narrow ? 0.226 : 0.256) + norm) * at_once);
  };
  const double whole = narrow ? 0.0 : 0.407;
  const auto counted = [&](double steps, double chunks) {
    return steps + whole * (4 * chunks - steps);
  };
  const double longest =
      counted(static_cast<double>(PlanShape::divided(s.length(), 16)), s.chunks());
  const double start = (narrow ? 1.9 : 0.427) + s.call_bytes() / 5.21e6;
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
  return start + limit_us(cta(1.0 + 1.02 * (on_one - 1.0) * mean / longest, longest),
                          0.444 * cta(ctas / s.multiprocessors, mean));
}

// Steps of 16 tokens. With a multiprocessor for every 64 value rows they are made ahead, and a step
// is a latency; otherwise some CTAs share one, loads, products and stores of all of them in turns.
inline double steps_at_us(const PlanShape& s) {
  const auto steps = static_cast<double>(PlanShape::divided(s.length(), 16));
  const double ctas = static_cast<double>(s.tasks()) * s.blocks;
  if (ctas <= s.multiprocessors) {
    const bool halves = 2 * ctas <= s.multiprocessors;
    return (halves ? 3.48 : 2.87) + (s.narrow_states ? 0.481 : 0.0) + 0.0169 * ctas +
           steps * ((halves ? 0.579 : 0.69) + (s.norm ? 0.0351 : 0.0) +
                    0.00762 * (s.keys_a_head() - 1.0));
  }
  if (streams_steps(s)) return stream_us(s);
  if (ctas <= (s.narrow_states ? 2 : 3) * s.multiprocessors) return steps_together_us(s, ctas);
  const double most = 2;  // CTAs a multiprocessor at once
  const double norm = s.norm ? 0.0367 : 0.0;
  const auto cta = [&](double at_once, double count) {
    return 1.47 + 0.968 * at_once + count * (0.72 + (0.305 + norm) * at_once);
  };
  const double on_one = ctas / s.multiprocessors, mean = s.pieces(16) / s.row_count();
  const double full = std::floor(on_one / most), rest = on_one - most * full;
  const double base = 2.29;
  if (s.even(16)) {
    const double counted = steps + 0.2 * (4 * s.chunks() - steps);  // a chunk is asked for whole
    return base + full * cta(most, counted) + (rest > 0 ? cta(std::ceil(rest), counted) : 0.0);
  }
  if (s.lengths.in_order() && s.deals_out()) {
    // When none waits to start any more, those that are left have fewer beside them.
    const auto ends = PlanShape::in_order(
        static_cast<std::int64_t>(ctas), s.multiprocessors * static_cast<int>(most),
        [&](std::int64_t i, double) {
          const auto row = static_cast<int>(i / (s.heads * s.blocks));
          return cta(most, s.lengths.all->steps_in_order(row));
        });
    const double others = 1.0 + 1.19 * (most - 1.0) * mean / steps;
    const double left = cta(others, steps) / cta(most, steps);
    return base + ends.started + (ends.last - ends.started) * left;
  }
  // The longest has its multiprocessor for itself when the others have ended.
  const double beside = (std::min(most, std::ceil(on_one)) - 1.0) * mean / steps;
  return base + limit_us(cta(1.0 + 3.37 * beside, steps), on_one / most * cta(most, mean) * 1.14);
}

// One token after another, each a latency or what all value rows take; and the states.
inline double vk_at_us(const PlanShape& s) {
  const double rows = static_cast<double>(s.heads * s.blocks * s.key_dim) / 128;
  const double one = static_cast<double>(s.length()) * (s.norm ? 0.649 : 0.571);
  return 3.03 + limit_us(one, s.pieces(1) * rows * 0.00376) +
         static_cast<double>(s.rows) * rows * (s.narrow_states ? 0.00443 : 0.0165);
}

}  // namespace hyla::gdn
