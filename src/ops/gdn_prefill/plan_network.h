// A network that learnt by what factor a plan takes longer than the model expects.
#pragma once

#include "ops/gdn_prefill/plan_features.h"

namespace hyla::gdn {

// Two hidden layers whose negative sums are zeros. Weights of a layer lie [inputs, outputs], behind
// them what is added to its sums, in units of 1/256.
struct PlanNetwork {
  static constexpr std::size_t kFirst = 48, kSecond = 24;
  static constexpr std::size_t kWeights =
      (kPlanFeatures + 1) * kFirst + (kFirst + 1) * kSecond + kSecond + 1;
  std::uint32_t key;  // of the features
  float scale;        // of the result
  float mean[kPlanFeatures], per_deviation[kPlanFeatures];
  float weights[kWeights];
};

// exp of the result. Shapes are not known to be alike beyond those that it learnt from, so features
// count as four deviations at most, and the factor stays within 0.74 and 1.35.
double network_factor(const PlanNetwork& network, const PlanFeatures& features);

}  // namespace hyla::gdn
