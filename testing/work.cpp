#include "testing/work.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace hyla::testing {
namespace {

double bytes_of(DType dtype) { return static_cast<double>(size_of(dtype)); }

// A token of a head: decay (1), k^T S (2), the update (2) and q^T S (2), for each state element.
constexpr double kFlopsPerStateElement = 7;
constexpr double kSiluFlops = 4, kNormFlops = 8;

// Chunked prefill, 64 tokens a chunk: K K^T and Q K^T; K S, Q S and the update of S; T' W and P U.
double chunk_products(const ProblemSpec& spec) {
  if (spec.operation != Operation::kGdnPrefill || spec.io == DType::kFloat32) return 0;
  constexpr double kChunk = 64;
  const auto K = static_cast<double>(spec.k), V = static_cast<double>(spec.v);
  double chunks = 0;
  for (std::int64_t length : row_lengths(spec)) chunks += static_cast<double>((length + 63) / 64);
  return chunks * static_cast<double>(std::max(spec.hq, spec.hv)) * 2 * kChunk *
         (2 * kChunk * K + 3 * K * V + 2 * kChunk * V);
}

Work gdn(const ProblemSpec& spec) {
  const auto heads = static_cast<double>(std::max(spec.hq, spec.hv));
  const auto tokens = static_cast<double>(total_tokens(spec));
  const std::vector<std::int64_t> lengths = row_lengths(spec);
  const auto rows = static_cast<double>(lengths.size());
  const double state = heads * static_cast<double>(spec.k * spec.v);
  // Read and written.
  double states = (spec.initial ? rows : 0) + (spec.mode == Mode::kAll ? tokens : rows);
  for (std::int64_t length : lengths) {
    if (spec.checkpoint != 0) states += static_cast<double>(length / spec.checkpoint);
  }
  const double out = heads * static_cast<double>(spec.v) * (spec.gated ? 2 : 1);  // as much z
  const double per_token =
      static_cast<double>((spec.hq + spec.hk) * spec.k + spec.hv * spec.v) + out;
  return {states * state * bytes_of(spec.state) + tokens * per_token * bytes_of(spec.io),
          kFlopsPerStateElement * tokens * state, chunk_products(spec)};
}

Work conv(const ProblemSpec& spec) {
  const auto channels = static_cast<double>(2 * spec.hq * spec.k + spec.hv * spec.v);
  const double values = static_cast<double>(total_tokens(spec)) * channels;
  // Read: a window a row. Written: as much, and the drafts beyond their first.
  double columns = 0;
  for (std::int64_t length : row_lengths(spec)) {
    const bool keeps_drafts = spec.operation == Operation::kConvUpdate && spec.drafts > 0;
    columns += 2 * static_cast<double>(spec.width - 1);
    if (keeps_drafts && length > 0) columns += static_cast<double>(length - 1);
  }
  const auto taps = static_cast<double>(spec.width);
  return {2 * values * bytes_of(spec.io) + columns * channels * bytes_of(spec.state) +
              channels * taps * bytes_of(spec.io),
          values * (2 * taps + kSiluFlops), 0};
}

Work norm(const ProblemSpec& spec) {
  const double values = static_cast<double>(spec.b * spec.hv * spec.v);
  return {3 * values * bytes_of(spec.io), kNormFlops * values, 0};
}

double visible_keys(const ProblemSpec& spec, std::int64_t position, std::int64_t length) {
  switch (spec.mask) {
    case Mask::kNone:
      return static_cast<double>(length);
    case Mask::kWindow:
      return static_cast<double>(std::min(position + 1, spec.window));
    case Mask::kChunked:
      return static_cast<double>(position % spec.window + 1);
    case Mask::kCausal:
      break;
  }
  return static_cast<double>(position + 1);
}

Work attention(const ProblemSpec& spec) {
  const std::vector<std::int64_t> queries = row_lengths(spec), keys = kv_lengths(spec);
  double pairs = 0, read = 0;
  for (std::size_t row = 0; row < queries.size(); ++row) {
    double most = 0;
    for (std::int64_t i = 0; i < queries[row]; ++i) {
      const double seen = visible_keys(spec, keys[row] - queries[row] + i, keys[row]);
      pairs += seen;
      most = std::max(most, seen + static_cast<double>(queries[row] - 1 - i));
    }
    read += std::min(most, static_cast<double>(keys[row]));
  }
  const auto dims = static_cast<double>(spec.d + value_dim(spec));
  const auto hq = static_cast<double>(spec.hq);
  const double io = static_cast<double>(total_tokens(spec)) * hq * dims * bytes_of(spec.io);
  const double flops = 2 * pairs * hq * dims;
  const bool products =
      spec.operation == Operation::kAttentionPrefill && spec.io != DType::kFloat32;
  return {io + read * static_cast<double>(spec.hk) * dims * bytes_of(spec.kv), flops,
          products ? flops : 0};
}

// Positions that any row appends at, each once.
double new_positions(const ProblemSpec& spec) {
  const std::vector<std::int64_t> added = row_lengths(spec), lengths = kv_lengths(spec);
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (std::size_t row = 0; row < added.size(); ++row) {
    ranges.emplace_back(lengths[row] - added[row], lengths[row]);
  }
  std::sort(ranges.begin(), ranges.end());
  std::int64_t positions = 0, end = 0;
  for (const auto& [first, last] : ranges) {
    if (last <= end) continue;
    positions += last - std::max(first, end);
    end = last;
  }
  return static_cast<double>(positions);
}

Work append(const ProblemSpec& spec) {
  const auto heads = static_cast<double>(total_tokens(spec) * spec.hk);
  const double values = heads * static_cast<double>(spec.d + value_dim(spec));
  const bool quantised = size_of(spec.kv) == 1;
  const double scales = quantised ? 2 * heads * 4 : 0;
  const double rotations = spec.rope == Rope::kNone ? 0 : 3 * heads * static_cast<double>(spec.d);
  // D/2 columns of cos and as many of sin, float32.
  const double tables =
      spec.rope == Rope::kNone ? 0 : new_positions(spec) * static_cast<double>(spec.d) * 4;
  return {values * (bytes_of(spec.io) + bytes_of(spec.kv)) + scales + tables,
          rotations + (quantised ? 2 * values : 0)};
}

Work merge(const ProblemSpec& spec) {
  const auto rows = static_cast<double>(spec.b * spec.hq);
  const double values = rows * static_cast<double>(spec.d);
  return {3 * values * bytes_of(spec.io) + 3 * rows * 4, 3 * values, 0};
}

}  // namespace

Work work_of(const ProblemSpec& spec) {
  switch (spec.operation) {
    case Operation::kConvPrefill:
    case Operation::kConvUpdate:
      return conv(spec);
    case Operation::kNormGatedRms:
      return norm(spec);
    case Operation::kAttentionDecode:
    case Operation::kAttentionPrefill:
      return attention(spec);
    case Operation::kAttentionAppend:
      return append(spec);
    case Operation::kAttentionMerge:
      return merge(spec);
    default:
      return gdn(spec);
  }
}

}  // namespace hyla::testing
