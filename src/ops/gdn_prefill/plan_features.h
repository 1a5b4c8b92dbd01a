// What the learnt part of the cost model (plan_learnt.h) looks at of an expectation: the shape, the
// form of the plan, and what the model made of them.
#pragma once

#include "ops/gdn_prefill/plan_split.h"

namespace hyla::gdn {

inline constexpr const char* kPlanFeatureNames[] = {
    // Of the shape. "fill": of as many sequences as long as the longest, in pieces of 64, 16, 8.
    "tasks", "rows", "tokens", "chunks", "steps", "work", "bytes", "fill_64", "fill_16", "fill_8",
    "spread", "second", "half", "last_part", "torn", "last_step", "keys", "values", "key_dim",
    "norm", "narrow", "ranked", "assumed",
    // Of the form.
    "parts", "cuts", "blocks", "beside", "segment", "last_segment", "load", "load_gap",
    "block_load", "block_gap",
    // Of what is expected, the last ones different for every plan.
    "us", "prepare", "memory", "chain", "dealt", "term_0", "term_1", "term_2", "term_3", "term_4"};
inline constexpr std::size_t kPlanFeatures = std::size(kPlanFeatureNames);
using PlanFeatures = std::array<float, kPlanFeatures>;

// A number for these names: weights are of these features in this order (plan_weights.h).
constexpr std::uint32_t plan_features_key() {
  std::uint32_t key = 2166136261u;
  for (const char* name : kPlanFeatureNames) {
    for (; *name != 0; ++name) key = (key ^ static_cast<unsigned char>(*name)) * 16777619u;
    key = key * 16777619u;
  }
  return key;
}

// What of the last of several waves is empty.
inline double wave_gap(double load) { return std::ceil(load) - load; }

// How unequal lengths are: the mean of the squares over the square of the mean, and what the second
// and the one in the middle have of the longest.
struct LengthSpread {
  double squares = 1, second = 1, half = 1;
};
inline LengthSpread length_spread(const PlanShape& s) {
  if (!s.ragged()) return {};
  const PlanLengths& all = *s.lengths.all;
  double sum = 0, squares = 0;
  for (int rank = 0; rank < all.rows(); ++rank) {
    const double n = all.chunks(rank);
    sum += n, squares += n * n;
  }
  return {squares * all.rows() / std::max(1.0, sum * sum), all.chunks(1) / s.chunks(),
          all.chunks(all.rows() / 2) / s.chunks()};
}

inline PlanFeatures plan_features(const PlanShape& s, const Walks& w, double us,
                                  const PlanTerms& terms) {
  const auto lg = [](double x) { return std::log2(std::max(x, 1e-3)); };
  const auto flag = [](bool x) { return x ? 1.0 : 0.0; };
  const std::int64_t length = std::max<std::int64_t>(1, s.length());
  const auto fill = [&](std::int64_t size) {
    return s.pieces(size) / (s.row_count() * static_cast<double>(PlanShape::divided(length, size)));
  };
  const auto chunks = static_cast<double>(PlanShape::divided(length, 64));
  const auto tasks = static_cast<double>(s.tasks());
  const double work = s.head_chunks();
  const int pieces = w.parts * w.cuts;
  const double segment = std::ceil(chunks / pieces);
  const double load = tasks * pieces / s.multiprocessors;
  const double block_load = tasks * w.parts * s.blocks / w.blocks_a_cta / s.multiprocessors;
  const LengthSpread spread = length_spread(s);
  const double dealt =
      s.ragged() && s.deals_out() ? s.dealt_out(1, 3, s.multiprocessors) / (chunks + 3) : 1.0;
  const double values[] = {
      lg(tasks), lg(s.row_count()), lg(static_cast<double>(length)), lg(chunks),
      lg(s.pieces(16) * static_cast<double>(s.heads * s.blocks) / s.multiprocessors),
      lg(work / s.multiprocessors), lg(s.call_bytes()), fill(64), fill(16), fill(8),
      lg(spread.squares), spread.second, spread.half, s.last_part(), s.torn(),
      static_cast<double>((length - 1) % 16), s.keys_a_head(), s.value_bytes / (8192.0 * s.blocks),
      lg(static_cast<double>(s.key_dim)), flag(s.norm), flag(s.narrow_states),
      flag(s.ragged() && !s.lengths.assumed), flag(s.ragged() && s.lengths.assumed),
      //
      lg(w.parts), lg(w.cuts), static_cast<double>(w.blocks_a_cta), flag(w.beside), lg(segment),
      (chunks - (pieces - 1) * segment) / segment, lg(load), wave_gap(load), lg(block_load),
      wave_gap(block_load),
      //
      lg(us), prepare_us(s, s.multiprocessors) / us,
      work * (s.key_bytes + s.value_bytes) / 4.27e6 / us, chunks / us, lg(dealt), terms[0],
      terms[1], terms[2], terms[3], terms[4]};
  static_assert(std::size(values) == kPlanFeatures);
  PlanFeatures features;
  std::copy(std::begin(values), std::end(values), features.begin());
  return features;
}

}  // namespace hyla::gdn
