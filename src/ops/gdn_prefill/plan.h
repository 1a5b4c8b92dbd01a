// Which kernels are expected to be fastest: a cost model in microseconds, fitted to what random
// shapes took on an H200 (`hyla bench --plans`), with what the host knows of a batch: sequences,
// heads, tokens in all and, if the caller said so, of the longest sequence or of all. Gates are on
// the device, so a quarter of the heads is taken not to forget. What the model misses was learnt
// from the same times (plan_learnt.h).
#pragma once

#include "ops/gdn_prefill/plan_fused.h"
#include "ops/gdn_prefill/plan_learnt.h"
#include "ops/gdn_prefill/plan_relay.h"
#include "ops/gdn_prefill/plan_short.h"

namespace hyla::gdn {

// By the model alone. Terms that are times become parts of the whole.
inline double model_at_us(Plan plan, const PlanShape& s, const Walks& w, PlanTerms& terms) {
  double us = 0;
  int times = 0;  // of the terms, in front of the others
  switch (plan) {
    case Plan::kFused:
      us = fused_at_us(s, terms), times = 3;
      break;
    case Plan::kSplit:
      us = split_at_us(s, w, terms), times = 3;
      break;
    case Plan::kSegments:
      us = segments_at_us(s, w.parts, w.blocks_a_cta, terms), times = 3;
      break;
    case Plan::kRelay:
      us = relay_at_us(s, w.parts, w.cuts, terms), times = 3;
      break;
    case Plan::kSteps:
      us = steps_at_us(s), terms = steps_terms(s);
      break;
    case Plan::kBlock:
      us = block_at_us(s), terms = block_terms(s);
      break;
    case Plan::kVk:
      us = vk_at_us(s, terms), times = 3;
      break;
  }
  for (int i = 0; i < times; ++i) terms[static_cast<std::size_t>(i)] /= us;
  return us;
}

// With what is known of the lengths.
inline double model_us(Plan plan, const PlanShape& s, const Walks& w = {.parts = 1}) {
  return over_lengths(s, [&](const PlanShape& x) {
    PlanTerms terms{};
    return model_at_us(plan, x, w, terms);
  });
}

// The same with what was learnt, which is of lengths that the host knows.
inline double expected_us(Plan plan, const PlanShape& s, const Walks& w = {.parts = 1}) {
  if (s.rows > 1 && s.longest == 0) return model_us(plan, s, w);
  PlanTerms terms{};
  const double us = model_at_us(plan, s, w, terms);
  return us * learnt_factor(plan, plan_features(s, w, us, terms));
}

template <Plan P>
double find_expected_us(const PlanShape& s) {
  return expected_us(P, s);
}
inline double fused_us(const PlanShape& s) { return remembered<find_expected_us<Plan::kFused>>(s); }
inline double block_us(const PlanShape& s) { return remembered<find_expected_us<Plan::kBlock>>(s); }
inline double steps_us(const PlanShape& s) { return remembered<find_expected_us<Plan::kSteps>>(s); }
inline double vk_us(const PlanShape& s) { return remembered<find_expected_us<Plan::kVk>>(s); }

template <class Take>
void each_form(Plan plan, const PlanShape& s, const Take& take) {
  if (plan == Plan::kSplit) each_split_form(s, take);
  if (plan == Plan::kSegments) each_segment_form(s, take);
  if (plan == Plan::kRelay) each_relay_form(s, take);
}

// The form that is expected to be fastest; parts 0: there is none. Those that the model has far
// behind are not looked at twice.
inline Walks find_walks(Plan plan, const PlanShape& s) {
  constexpr double kBehind = 1.25;
  std::vector<Walks> forms;
  double least = 0;
  each_form(plan, s, [&](Walks w) {
    w.us = model_us(plan, s, w);
    least = forms.empty() ? w.us : std::min(least, w.us);
    forms.push_back(w);
  });
  Walks best;
  for (Walks& w : forms) {
    if (w.us > kBehind * least) continue;
    w.us = expected_us(plan, s, w);
    if (best.parts == 0 || w.us < best.us) best = w;
  }
  return best;
}

template <Plan P>
Walks find_walks_of(const PlanShape& s) {
  return find_walks(P, s);
}
inline Walks split_walks(const PlanShape& s) { return remembered<find_walks_of<Plan::kSplit>>(s); }
inline Walks segment_walks(const PlanShape& s) {
  return remembered<find_walks_of<Plan::kSegments>>(s);
}
inline Walks relay_walks(const PlanShape& s) { return remembered<find_walks_of<Plan::kRelay>>(s); }

}  // namespace hyla::gdn
