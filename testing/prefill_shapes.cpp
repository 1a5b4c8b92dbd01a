#include "testing/prefill_shapes.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "testing/random.h"

namespace hyla::testing {
namespace {

constexpr std::int64_t kMostRows = 64, kLeastTokens = 16, kMostTokens = 65536;
// Tokens times heads times dim: the longest takes a millisecond or two.
constexpr std::int64_t kMostWork = std::int64_t{1} << 28;

// Numbers one after another.
class Draw {
 public:
  Draw(std::uint64_t seed, std::int64_t index)
      : random_(mix(seed) ^ static_cast<std::uint64_t>(index), "prefill shapes") {}
  double uniform() { return random_.uniform(next_++); }
  bool chance(double probability) { return random_.chance(next_++, probability); }
  // Every order of magnitude is as likely.
  double log_uniform(double low, double high) {
    return low * std::exp2(uniform() * std::log2(high / low));
  }
  template <class T, std::size_t N>
  T pick(const T (&values)[N]) {
    return values[random_.below(next_++, static_cast<std::int64_t>(N))];
  }

 private:
  Random random_;
  std::int64_t next_ = 0;
};

void draw_heads(ProblemSpec& spec, Draw& draw) {
  constexpr std::int64_t kHeads[] = {1, 2, 4, 6, 8, 8, 12, 16, 16, 24, 32, 32, 48, 64};
  constexpr std::int64_t kGroups[] = {1, 2, 2, 3, 4, 4, 8};
  const std::int64_t heads = draw.pick(kHeads);
  std::int64_t group = draw.pick(kGroups);
  while (heads % group != 0) group = draw.pick(kGroups);
  const bool gqa = draw.chance(0.2);
  spec.hq = gqa ? heads : heads / group;
  spec.hk = heads / group;
  spec.hv = gqa ? heads / group : heads;
}

// Alike, between a tenth of the longest and all of it, or one of many orders of magnitude.
std::vector<std::int64_t> draw_lengths(std::int64_t rows, std::int64_t total, Draw& draw) {
  enum class Kind { kAlike, kSpread, kWild };
  constexpr Kind kKinds[] = {Kind::kAlike, Kind::kAlike, Kind::kSpread, Kind::kWild};
  const Kind kind = draw.pick(kKinds);
  std::vector<double> weights;
  double sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    weights.push_back(kind == Kind::kAlike    ? 1
                      : kind == Kind::kSpread ? 0.1 + 0.9 * draw.uniform()
                                              : draw.log_uniform(1, 64));
    sum += weights.back();
  }
  std::vector<std::int64_t> lengths;
  for (const double weight : weights) {
    const double length = static_cast<double>(total) * weight / sum;
    lengths.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(length)));
  }
  return lengths;
}

}  // namespace

ProblemSpec random_prefill_shape(std::uint64_t seed, std::int64_t index) {
  constexpr std::int64_t kDims[] = {128, 128, 128, 128, 128, 128, 128, 128, 64, 256};
  constexpr DType kStates[] = {DType::kFloat32, DType::kFloat32, DType::kBFloat16};
  Draw draw(seed, index);
  ProblemSpec spec = defaults(Operation::kGdnPrefill);
  spec.device = Device::Kind::kCuda;
  spec.gate = gdn::Gate::Kind::kRaw;
  spec.beta = gdn::Beta::Kind::kLogit;
  draw_heads(spec, draw);
  spec.k = spec.v = draw.pick(kDims);
  spec.state = draw.pick(kStates);
  spec.norm = draw.chance(0.25);
  const std::int64_t heads = std::max(spec.hq, spec.hv);
  const std::int64_t rows =
      draw.chance(0.35)
          ? 1
          : static_cast<std::int64_t>(draw.log_uniform(2, static_cast<double>(kMostRows + 1)));
  const std::int64_t most = std::min(kMostTokens, kMostWork / heads / spec.v);
  const double least = static_cast<double>(std::max(kLeastTokens, 8 * rows));
  const auto total = static_cast<std::int64_t>(draw.log_uniform(least, static_cast<double>(most)));
  spec.lens = draw_lengths(rows, total, draw);
  spec.longest = rows == 1 || draw.chance(0.5);
  return spec;
}

}  // namespace hyla::testing
