#include "testing/random_problem.h"

#include <hyla/error.h>

#include <algorithm>

#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

// Elements of the tensors that grow with the problem; index tensors do not count.
double io_elements(const ProblemSpec& spec) {
  const auto tokens = static_cast<double>(total_tokens(spec));
  const double per_token = static_cast<double>(spec.hq * spec.k + spec.hk * spec.k +
                                               (spec.hv + std::max(spec.hq, spec.hv)) * spec.v);
  return tokens * per_token;
}

double state_elements(const ProblemSpec& spec) {
  const std::vector<std::int64_t> lengths = row_lengths(spec);
  const auto rows = static_cast<double>(lengths.size());
  double states = spec.slots != 0 ? static_cast<double>(spec.slots) : 2 * rows;
  if (spec.operation == Operation::kGdnMtp && spec.mode == Mode::kAll && !lengths.empty()) {
    states += rows * static_cast<double>(*std::max_element(lengths.begin(), lengths.end()));
  }
  if (spec.checkpoint != 0) {
    for (std::int64_t length : lengths) states += static_cast<double>(length / spec.checkpoint);
  }
  return states * static_cast<double>(std::max(spec.hq, spec.hv) * spec.k * spec.v);
}

}  // namespace

CaseOptions CaseOptions::hostile() {
  return {true, true, true, true, true, true, true, true, true};
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
  options.wide_indices = (bits & 256) != 0;
  return options;
}

std::int64_t check_memory(const ProblemSpec& spec) {
  const double bytes = io_elements(spec) * static_cast<double>(size_of(spec.io)) +
                       state_elements(spec) * static_cast<double>(size_of(spec.state));
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
    default:
      throw Unsupported("operation", std::string(name_of(spec.operation)) + " is not built in");
  }
}

}  // namespace hyla::testing
