// The cost model of the kernels for short sequences: cuda_block, cuda_steps, cuda_vk and cuda_kv.
#pragma once

#include "ops/gdn_prefill/plan_batch.h"

namespace hyla::gdn {

// Blocks of 8 tokens of 32 value rows, six CTAs a multiprocessor: if sequences are alike, all six end
// together, and the next ones begin.
inline double block_at_us(const PlanShape& s) {
  const auto tasks = static_cast<double>(s.tasks());
  const double ctas = tasks * s.blocks * 2, on_one = std::min(6.0, ctas / s.multiprocessors);
  const auto longest = static_cast<double>(PlanShape::divided(s.length(), 8));
  const auto cta = [&](double at_once, double blocks) {
    return s.narrow_states ? 0.651 + 0.115 * at_once + blocks * (1.31 + 0.291 * at_once)
                           : 0.315 + 0.644 * at_once + blocks * (1.25 + 0.213 * at_once);
  };
  const double base = s.narrow_states ? 2.13 : 2.62;
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
    const double beside = 1.0 + 1.28 * (on_one - 1.0) * mean / longest;
    const double left = cta(std::max(1.0, beside), longest) / cta(on_one, longest);
    return base + ends.started + (ends.last - ends.started) * std::min(left, 1.0);
  }
  const double one =
      static_cast<double>(PlanShape::divided(s.length(), 8)) * (1.73 + 0.0948 * on_one);
  const double shared =
      0.436 * s.pieces(8) * static_cast<double>(s.heads) * s.blocks * 2 / s.multiprocessors;
  const double last = ctas > 6.0 * s.multiprocessors ? 0.256 * one : 0.0;
  return (s.narrow_states ? 2.26 : 2.84) + (s.narrow_states ? 0.0116 : 0.019) * tasks +
         limit_us(one, shared + last);
}

// Steps of 16 tokens of many tasks, a CTA a multiprocessor: a task takes its bytes or its steps.
inline double stream_us(const PlanShape& s) {
  const double tasks = static_cast<double>(s.tasks()) * s.blocks / 2;
  const double mean = s.pieces(16) / s.row_count();
  const auto walk = [](double steps) { return 2.17 + 1.1 * steps; };
  const double bytes = tasks / s.multiprocessors * (3.87 + 0.222 * mean);
  if (s.even(16)) return 6.16 + limit_us(bytes, s.waves(tasks) * walk(mean));
  if (s.lengths.in_order() && s.deals_out()) {  // CTA i has tasks i, i + ctas, ...
    const auto count = static_cast<std::int64_t>(tasks);
    double most = 0;
    for (int cta = 0; cta < s.multiprocessors; ++cta) {
      double us = 0;
      for (std::int64_t i = cta; i < count; i += s.multiprocessors) {
        us += walk(s.lengths.all->steps_in_order(static_cast<int>(i * 2 / s.blocks / s.heads)));
      }
      most = std::max(most, us);
    }
    return 6.1 + limit_us(bytes, most);
  }
  const double longest = walk(static_cast<double>(PlanShape::divided(s.length(), 16)));
  return 4.32 + limit_us(bytes, tasks / s.multiprocessors * walk(mean) + 0.828 * longest);
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
  const double norm = s.norm ? (narrow ? 0.031 : 0.0394) : 0.0;
  const auto cta = [&](double at_once, double count) {
    return (narrow ? 1.42 : 0.298) * at_once + (narrow ? 0.0 : 0.421) * std::min(count, 4.0) +
           count * ((narrow ? 0.684 : 1.12) + ((narrow ? 0.183 : 0.254) + norm) * at_once);
  };
  const double whole = narrow ? 0.0 : 0.412;
  const auto counted = [&](double steps, double chunks) {
    return steps + whole * (4 * chunks - steps);
  };
  const double longest =
      counted(static_cast<double>(PlanShape::divided(s.length(), 16)), s.chunks());
  const double start = (narrow ? 1.6 : 0.513) + s.call_bytes() / 4.96e6;
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
  return start + limit_us(cta(1.0 + 0.821 * (on_one - 1.0) * mean / longest, longest),
                          0.487 * cta(ctas / s.multiprocessors, mean));
}

// Steps of 16 tokens. With a multiprocessor for every 64 value rows they are made ahead, and a step
// is a latency; otherwise some CTAs share one, loads, products and stores of all of them in turns.
inline double steps_at_us(const PlanShape& s) {
  const auto steps = static_cast<double>(PlanShape::divided(s.length(), 16));
  const double ctas = static_cast<double>(s.tasks()) * s.blocks;
  if (ctas <= s.multiprocessors) {
    const bool halves = 2 * ctas <= s.multiprocessors;
    return (halves ? 3.51 : 3.17) + (s.narrow_states ? 0.484 : 0.0) + 0.0151 * ctas +
           steps * ((halves ? 0.581 : 0.678) + (s.norm ? 0.0374 : 0.0));
  }
  if (streams_steps(s)) return stream_us(s);
  if (ctas <= (s.narrow_states ? 2 : 3) * s.multiprocessors) return steps_together_us(s, ctas);
  const double most = 2;  // CTAs a multiprocessor at once
  const double norm = s.norm ? 0.0324 : 0.0;
  const auto cta = [&](double at_once, double count) {
    return 2.22 + 0.8 * at_once + count * (0.599 + (0.377 + norm) * at_once);
  };
  const double on_one = ctas / s.multiprocessors, mean = s.pieces(16) / s.row_count();
  const double full = std::floor(on_one / most), rest = on_one - most * full;
  const double base = 2.55;
  if (s.even(16)) {
    const double last = rest > 0 ? cta(std::ceil(rest), steps) : 0.0;
    return base + full * cta(most, steps) + (full > 0 ? 1.0 : 1.0) * last;
  }
  if (s.lengths.in_order() && s.deals_out()) {
    // When none waits to start any more, those that are left have fewer beside them.
    const auto ends = PlanShape::in_order(
        static_cast<std::int64_t>(ctas), s.multiprocessors * static_cast<int>(most),
        [&](std::int64_t i, double) {
          const auto row = static_cast<int>(i / (s.heads * s.blocks));
          return cta(most, s.lengths.all->steps_in_order(row));
        });
    const double others = 1.0 + 0.79 * (most - 1.0) * mean / steps;
    const double left = cta(others, steps) / cta(most, steps);
    return base + ends.started + (ends.last - ends.started) * left;
  }
  // The longest has its multiprocessor for itself when the others have ended.
  const double beside = (std::min(most, std::ceil(on_one)) - 1.0) * mean / steps;
  return base + limit_us(cta(1.0 + 2.66 * beside, steps), on_one / most * cta(most, mean) * 1.09);
}

// One token after another, each a latency or what all value rows take; and the states.
inline double vk_at_us(const PlanShape& s) {
  const double rows = static_cast<double>(s.heads * s.blocks * s.key_dim) / 128;
  const double one = static_cast<double>(s.length()) * (s.norm ? 0.636 : 0.52);
  return 3.23 + limit_us(one, s.pieces(1) * rows * 0.00368) +
         static_cast<double>(s.rows) * rows * (s.narrow_states ? 0.00981 : 0.018);
}

}  // namespace hyla::gdn
