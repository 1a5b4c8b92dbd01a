// The part of the cost model that was learnt: by what factor a plan takes longer than the model
// expects, from a small network of the features of its expectation. Weights are made from sweeps by
// scripts/fit_plans.py.
#pragma once

#include "ops/gdn_prefill/plan_features.h"

namespace hyla::gdn {

enum class Plan { kFused, kSplit, kSegments, kRelay, kSteps, kBlock, kVk };
inline constexpr const char* kPlanNames[] = {"fused", "split", "segments", "relay",
                                             "steps", "block", "vk"};

double learnt_factor(Plan plan, const PlanFeatures& features);

}  // namespace hyla::gdn
