#include "testing/random_problem.h"

#include <hyla/error.h>

#include <algorithm>
#include <stdexcept>

#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

// Bytes of the tensors that grow with the problem, as double because the product of the largest
// values overflows an integer.
struct Sizes {
  const ProblemSpec& spec;
  double tokens, rows;

  explicit Sizes(const ProblemSpec& s)
      : spec(s),
        tokens(static_cast<double>(total_tokens(s))),
        rows(static_cast<double>(row_lengths(s).size())) {}

  double io(std::int64_t per_token) const {
    return tokens * static_cast<double>(per_token) * static_cast<double>(size_of(spec.io));
  }
  double pool(double states, std::int64_t per_state) const {
    return states * static_cast<double>(per_state) * static_cast<double>(size_of(spec.state));
  }
  double slots() const { return spec.slots != 0 ? static_cast<double>(spec.slots) : 2 * rows; }

  double gdn() const {
    const std::int64_t heads = std::max(spec.hq, spec.hv);
    const std::vector<std::int64_t> lengths = row_lengths(spec);
    double states = slots();
    if (spec.mode == Mode::kAll && !lengths.empty()) {
      states += rows * static_cast<double>(*std::max_element(lengths.begin(), lengths.end()));
    }
    for (std::int64_t length : lengths) {
      if (spec.checkpoint != 0) states += static_cast<double>(length / spec.checkpoint);
    }
    return io((spec.hq + spec.hk) * spec.k + (spec.hv + heads) * spec.v) +
           pool(states, heads * spec.k * spec.v);
  }
  double conv() const {
    const std::int64_t channels = 2 * spec.hq * spec.k + spec.hv * spec.v;
    return io(2 * channels) + pool(slots(), channels * (spec.width + spec.drafts));
  }
  double attention() const {
    double keys = 0;
    for (std::int64_t length : kv_lengths(spec)) keys += static_cast<double>(length);
    const std::int64_t dims = spec.d + value_dim(spec);
    return io(spec.hq * dims) +
           keys * static_cast<double>(spec.hk * dims) * static_cast<double>(size_of(spec.kv));
  }
  double all() const {
    switch (spec.operation) {
      case Operation::kConvPrefill:
      case Operation::kConvUpdate:
        return conv();
      case Operation::kNormGatedRms:
        return io(3 * spec.hv * spec.v);
      case Operation::kAttentionMerge:
        return io(3 * spec.hq * spec.d);
      case Operation::kAttentionDecode:
      case Operation::kAttentionPrefill:
      case Operation::kAttentionAppend:
        return attention();
      default:
        return gdn();
    }
  }
};

}  // namespace

CaseOptions CaseOptions::hostile() {
  return {true, true, true, true, true, true, true, true, true, true, 0};
}

CaseOptions CaseOptions::scattered() {
  CaseOptions options;
  options.shuffled = options.padding = options.elsewhere = true;
  return options;
}

CaseOptions CaseOptions::drawn(std::uint64_t seed) {
  const std::uint64_t bits = Random(seed, "case options").bits(0);
  CaseOptions options;
  options.packed = (bits & 1) != 0;
  options.gaps = (bits & 2) != 0;
  options.shuffled = (bits & 4) != 0;
  options.padding = (bits & 8) != 0;
  options.elsewhere = (bits & 16) != 0;
  options.read_table = (bits & 32) != 0;
  options.starts = (bits & 64) != 0;
  options.fresh_rows = (bits & 128) != 0;
  options.extras = (bits & 256) != 0;
  options.wide_indices = (bits & 512) != 0;
  options.variety = seed + 1;
  return options;
}

std::int64_t check_memory(const ProblemSpec& spec) {
  const double bytes = Sizes(spec).all();
  const auto have = static_cast<double>(devices().front().memory_bytes);
  if (bytes > have) {
    constexpr double kGiB = 1 << 30;
    throw InvalidArgument(
        "problem",
        "tensors that fit into the " + std::to_string(std::int64_t(have / kGiB)) +
            " GiB of this machine",
        std::to_string(std::int64_t(bytes / kGiB)) + " GiB for " + to_string(spec));
  }
  return static_cast<std::int64_t>(bytes);
}

Call random_call(const ProblemSpec& spec, const CaseOptions& options) {
  check_problem(spec);
  check_memory(spec);
  CaseBuilder builder(spec, options);
  switch (spec.operation) {
    case Operation::kGdnDecode:
      return random_decode(std::move(builder));
    case Operation::kGdnMtp:
      return random_mtp(std::move(builder));
    case Operation::kGdnPrefill:
      return random_prefill(std::move(builder));
    case Operation::kGdnRecurrence:
      return random_recurrence(std::move(builder));
    case Operation::kConvPrefill:
      return random_conv_prefill(std::move(builder));
    case Operation::kConvUpdate:
      return random_conv_update(std::move(builder));
    case Operation::kNormGatedRms:
      return random_gated_rms(std::move(builder));
    case Operation::kAttentionDecode:
    case Operation::kAttentionPrefill:
      return random_attention(std::move(builder));
    case Operation::kAttentionAppend:
      return random_append(std::move(builder));
    case Operation::kAttentionMerge:
      return random_merge(std::move(builder));
  }
  throw std::logic_error("an operation without a random call");
}

}  // namespace hyla::testing
