#include "ops/gdn_prefill/plan_learnt.h"

#include "ops/gdn_prefill/plan_weights_block.h"
#include "ops/gdn_prefill/plan_weights_fused.h"
#include "ops/gdn_prefill/plan_weights_relay.h"
#include "ops/gdn_prefill/plan_weights_segments.h"
#include "ops/gdn_prefill/plan_weights_split.h"
#include "ops/gdn_prefill/plan_weights_steps.h"
#include "ops/gdn_prefill/plan_weights_vk.h"

namespace hyla::gdn {
namespace {

// sums = inputs W + b; returns what follows them.
template <std::size_t Inputs, std::size_t Outputs>
const float* add_up(const float* weights, const float (&inputs)[Inputs], float (&sums)[Outputs]) {
  const float* const bias = weights + Inputs * Outputs;
  std::copy(bias, bias + Outputs, sums);
  for (const float input : inputs) {
    for (std::size_t j = 0; j < Outputs; ++j) sums[j] += input * *weights++;
  }
  return bias + Outputs;
}

constexpr float kUnit = 1.0f / 256;

template <std::size_t N>
void to_hidden(float (&sums)[N]) {
  for (float& sum : sums) sum = std::max(sum * kUnit, 0.0f);
}

}  // namespace

double network_factor(const PlanNetwork& network, const PlanFeatures& features) {
  constexpr float kFar = 4.0f, kMost = 0.3f;
  float inputs[kPlanFeatures], first[PlanNetwork::kFirst], second[PlanNetwork::kSecond], last[1];
  for (std::size_t i = 0; i < kPlanFeatures; ++i) {
    const float deviations = (features[i] - network.mean[i]) * network.per_deviation[i];
    inputs[i] = std::clamp(deviations, -kFar, kFar);
  }
  const float* weights = add_up(network.weights, inputs, first);
  to_hidden(first);
  weights = add_up(weights, first, second);
  to_hidden(second);
  add_up(weights, second, last);
  return std::exp(std::clamp(last[0] * kUnit * network.scale, -kMost, kMost));
}

double learnt_factor(Plan plan, const PlanFeatures& features) {
  static constexpr const PlanNetwork* kNetworks[] = {
      &kFusedNetwork, &kSplitNetwork, &kSegmentsNetwork, &kRelayNetwork,
      &kStepsNetwork, &kBlockNetwork, &kVkNetwork};
  static_assert(
      [] {
        for (const PlanNetwork* network : kNetworks) {
          if (network->key != plan_features_key()) return false;
        }
        return true;
      }(),
      "weights of other features: make them again with scripts/fit_plans.py");
  return network_factor(*kNetworks[static_cast<std::size_t>(plan)], features);
}

}  // namespace hyla::gdn
