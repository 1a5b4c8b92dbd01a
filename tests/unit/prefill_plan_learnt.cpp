// The learnt part of the cost model of chunked prefill, and what it looks at.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <vector>

#include "ops/gdn_prefill/plan.h"
#include "ops/gdn_prefill/plan_network.h"
#include "testing/random.h"

namespace hyla::gdn {
namespace {

PlanNetwork random_network(std::int64_t seed, float scale) {
  const testing::Random draw(static_cast<std::uint64_t>(seed), "plan networks");
  PlanNetwork network{};
  network.key = plan_features_key();
  network.scale = scale;
  std::int64_t next = 0;
  const auto number = [&](double most) {
    return static_cast<float>((2 * draw.uniform(next++) - 1) * most);
  };
  for (float& x : network.mean) x = number(3);
  for (float& x : network.per_deviation) x = number(2);
  for (float& x : network.weights) x = std::round(number(200));
  return network;
}

PlanFeatures random_features(std::int64_t seed, double most) {
  const testing::Random draw(static_cast<std::uint64_t>(seed), "plan features");
  PlanFeatures features;
  for (std::size_t i = 0; i < features.size(); ++i) {
    features[i] = static_cast<float>((2 * draw.uniform(static_cast<std::int64_t>(i)) - 1) * most);
  }
  return features;
}

// As the layout of the weights is described.
double plain_factor(const PlanNetwork& n, const PlanFeatures& features) {
  std::vector<double> values;
  for (std::size_t i = 0; i < kPlanFeatures; ++i) {
    values.push_back(std::clamp((double{features[i]} - n.mean[i]) * n.per_deviation[i], -4.0, 4.0));
  }
  std::size_t at = 0;
  for (const std::size_t outputs : {PlanNetwork::kFirst, PlanNetwork::kSecond, std::size_t{1}}) {
    std::vector<double> sums(outputs);
    for (std::size_t j = 0; j < outputs; ++j) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        sums[j] += values[i] * n.weights[at + i * outputs + j] / 256;
      }
      sums[j] += n.weights[at + values.size() * outputs + j] / 256;
      if (outputs > 1) sums[j] = std::max(sums[j], 0.0);
    }
    at += (values.size() + 1) * outputs;
    values = sums;
  }
  EXPECT_EQ(at, PlanNetwork::kWeights);
  return std::exp(std::clamp(values[0] * n.scale, -0.3, 0.3));
}

TEST(PrefillPlanLearnt, ANetworkIsItsLayers) {
  int inside = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    const PlanNetwork network = random_network(i, 0.005f);
    const PlanFeatures features = random_features(i, 5);
    const double factor = network_factor(network, features);
    EXPECT_NEAR(factor, plain_factor(network, features), 1e-4);
    inside += factor > 0.75 && factor < 1.34 && factor != 1 ? 1 : 0;
  }
  EXPECT_GT(inside, 20);
}

TEST(PrefillPlanLearnt, WhatIsFarFromEverythingKnownChangesLittle) {
  for (const float far : {1e6f, -1e6f, 1e30f}) {
    PlanFeatures features;
    features.fill(far);
    for (int plan = 0; plan <= static_cast<int>(Plan::kVk); ++plan) {
      const double factor = learnt_factor(static_cast<Plan>(plan), features);
      EXPECT_GE(factor, std::exp(-0.3001));
      EXPECT_LE(factor, std::exp(0.3001));
    }
  }
}

TEST(PrefillPlanLearnt, LengthsThatOnlyTheDeviceKnowsAreLeftToTheModel) {
  PlanShape s{5, 8, 5000, 132};
  s.key_bytes = s.value_bytes = 33e3;
  EXPECT_EQ(expected_us(Plan::kFused, s), model_us(Plan::kFused, s));
  s.longest = 1000;
  EXPECT_NE(expected_us(Plan::kFused, s), model_us(Plan::kFused, s));
}

// One CTA after another, as PlanShape::in_order says it for whole rows.
double last_end(const std::vector<double>& lengths, std::int64_t of_row, int places) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < places; ++i) free.push(0);
  double last = 0;
  for (const double length : lengths) {
    for (std::int64_t i = 0; i < of_row; ++i) {
      const double end = free.top() + length;
      free.pop();
      free.push(end);
      last = std::max(last, end);
    }
  }
  return last;
}

TEST(PrefillPlanLearnt, RowsFillPlacesAsTheirCtasDo) {
  for (std::int64_t i = 0; i < 200; ++i) {
    const testing::Random draw(static_cast<std::uint64_t>(i), "places");
    PlanShape s;
    s.rows = 1 + draw.below(0, 40);
    const std::int64_t of_row = 1 + draw.below(1, 70);
    const int places = 1 + static_cast<int>(draw.below(2, 300));
    std::vector<double> lengths;
    for (std::int64_t row = 0; row < s.rows; ++row) {
      lengths.push_back(static_cast<double>(draw.below(3 + row, 20)));
    }
    double count = 0, started = 0;
    const auto ends = s.in_order(
        of_row, places, [&](int row) { return lengths[static_cast<std::size_t>(row)]; },
        [&](const PlanShape::Started& some) {
          EXPECT_GE(some.start, started);  // they start in their order
          count += some.count, started = some.start;
        });
    EXPECT_EQ(count, static_cast<double>(s.rows * of_row));
    EXPECT_EQ(ends.last, last_end(lengths, of_row, places)) << i;
    EXPECT_EQ(ends.started, started);
  }
}

}  // namespace
}  // namespace hyla::gdn
