// The implementations of attention.run, best first, and the public entry points over them.
#include <hyla/backend.h>

#include <algorithm>

#include "core/table.h"
#include "cpu/attention.h"
#include "cpu/table_rows.h"
#include "ops/tables.h"
#include "problem/attention.h"
#include "reference/attention.h"
#ifdef HYLA_HAS_CUDA
#include "device/launch.h"
#include "ops/attention/launch_rows.h"
#include "ops/attention/mixed.h"
#include "ops/attention_decode/launch_decode.h"
#include "ops/attention_prefill/launch_prefill.h"
#endif

namespace hyla {
namespace {

using Problem = attention::RunProblem;

#ifdef HYLA_HAS_CUDA
// Up to 16 tokens a row are the decode kernel's. Lengths are on the device, so what a call holds
// can only be guessed from their sum: if equal rows have that sum they are all decode, drafts or
// prompts; anything else may be a mixture. A wrong guess costs time, nothing else.
constexpr std::int64_t kDecodeTokens = 16;

enum class Guess { kDecode, kPrefill, kMixed };

Guess guess(const Problem& problem) {
  const attention::Queries& q = problem.queries;
  const std::int64_t rows = q.rows, tokens = q.q.shape[0];
  if (tokens <= kDecodeTokens) return Guess::kDecode;
  if (rows == 0 || tokens % rows != 0) return Guess::kMixed;
  return tokens <= kDecodeTokens * rows ? Guess::kDecode : Guess::kPrefill;
}

// Rows of up to 8 packed queries by the decode kernel, cut by their own lengths, longer ones by the
// prefill kernel, uncut: who does a row depends on the row alone.
const char* invariant_refuses(const Problem& problem, const Context& context) {
  if (!context.batch_invariant) return "is for Context.batch_invariant";
  if (const char* reason = attention::attention_prefill_refuses(problem, context)) return reason;
  return attention::decode::refuses(problem, context);
}
std::size_t invariant_decode_part(const Problem& problem) {
  return attention::mixed_workspace_bytes(attention::decode_own_workspace_bytes(problem), 0);
}
std::size_t invariant_bytes(const Problem& problem) {
  return invariant_decode_part(problem) +
         attention::attention_prefill_workspace_bytes(problem.queries.rows);
}
void launch_invariant(const Problem& problem, const Workspace& workspace, const Context& context) {
  const attention::Queries& q = problem.queries;
  const std::int64_t group = q.query_heads / q.kv_heads, most = attention::decode::kWarpRows;
  if (q.q.shape[0] * group > most) {
    const std::size_t before = invariant_decode_part(problem);
    Workspace rest = workspace;
    rest.data = static_cast<char*>(workspace.data) + before;
    rest.bytes = invariant_bytes(problem) - before;
    attention::launch_attention_prefill(problem, most, rest, context);
  }
  if (group <= most) attention::launch_decode_own(problem, workspace, context);
}

const char* decode_refuses(const Problem& problem, const Context& context) {
  if (context.batch_invariant) return "bits that depend on the lengths of other rows";
  return attention::decode::refuses(problem, context);
}

const char* mixed_refuses(const Problem& problem, const Context& context) {
  if (context.batch_invariant) return "one kernel for short rows, another for long ones";
  if (guess(problem) != Guess::kMixed) return "rows seem to be alike";
  if (const char* reason = attention::attention_prefill_refuses(problem, context)) return reason;
  return decode_refuses(problem, context);
}
std::size_t prefill_bytes(const Problem& problem) {
  return attention::attention_prefill_workspace_bytes(problem.queries.rows);
}
std::int64_t most_decode_rows(const Problem& problem) {
  return kDecodeTokens * (problem.queries.query_heads / problem.queries.kv_heads);
}
std::size_t decode_part(const Problem& problem) {
  return attention::mixed_workspace_bytes(
      attention::decode_rows_workspace_bytes(problem, most_decode_rows(problem)), 0);
}
std::size_t mixed_bytes(const Problem& problem) {
  return decode_part(problem) + prefill_bytes(problem);
}
// Who computes a mixture: the prefill kernel all rows, the decode kernel all rows in chunks of 64
// packed queries, or each its own.
enum class By { kTiles, kChunks, kBoth };

// What each is expected to take, in microseconds as measured, for rows that are full.
By fastest(const attention::Queries& q, double keys, double processors) {
  const auto heads = static_cast<double>(q.kv_heads), rows = static_cast<double>(q.rows);
  const double packed =
      static_cast<double>(q.q.shape[0]) * static_cast<double>(q.query_heads / q.kv_heads);
  const int dim = attention::decode::padded(std::max(q.head_dim, q.value_dim));
  const double once = rows * heads * keys * 4 * dim / 4.2e6;  // to read keys and values
  // Two CTAs an SM, and a key of a chunk, which is read again for every chunk of a row.
  const double chunk = 0.05 * dim / 256;
  const double chunks = chunk * heads * (packed / 64 + rows) * keys / (2 * processors);
  // A CTA an SM, and a key of a tile. Few items are cut along their keys.
  const double tile = dim == 256 ? 0.0244 : dim == 128 ? 0.0216 : 0.0135;
  const double tiles = heads * packed / (dim == 256 ? 128 : 192), items = tiles + heads * rows;
  const bool cut = q.mask.window == 0 && q.mask.chunk == 0 && 2 * tiles <= processors;
  const double piece = cut ? std::max(dim == 64 ? 1024.0 : 640.0, keys * items / processors) : keys;
  const double prompts = tile * keys * std::max(1.0, tiles / processors);
  const double by_tiles = keys > piece ? 20 + tile * piece + 0.85 * rows : 14 + tile * keys;
  const double by_chunks = 14 + dim / 18.0 + std::max(chunks, once);
  const double by_both = 30 + prompts + once;
  if (items <= processors && by_tiles < std::min(by_chunks, by_both)) return By::kTiles;
  return by_chunks < by_both ? By::kChunks : By::kBoth;
}

By fastest(const Problem& problem, const Context& context) {
  const attention::Queries& q = problem.queries;
  std::int64_t keys = attention::most_keys(problem.cache);
  const int processors = device::multiprocessors(context);
  if (size_of(problem.cache.k.dtype) != 2) {
    constexpr std::int64_t kFewKeys = 512;  // of a row
    const std::int64_t packed = q.q.shape[0] * (q.query_heads / q.kv_heads);
    const bool few = q.kv_heads * (packed / 128 + q.rows) <= processors;
    return keys <= kFewKeys && few ? By::kTiles : By::kBoth;
  }
  if (q.mask.window > 0) keys = std::min(keys, q.mask.window);
  if (q.mask.chunk > 0) keys = std::min(keys, q.mask.chunk);
  return fastest(q, static_cast<double>(keys), processors);
}

// Each kernel finds its rows on the device.
void launch_mixed(const Problem& problem, const Workspace& workspace, const Context& context) {
  if (fastest(problem, context) == By::kTiles) {
    attention::launch_attention_prefill(problem, 0, workspace, context);
    return;
  }
  const std::int64_t most = most_decode_rows(problem);
  const std::size_t before = decode_part(problem);
  Workspace rest = workspace;
  rest.data = static_cast<char*>(workspace.data) + before;
  rest.bytes = workspace.bytes - before;
  attention::launch_attention_prefill(problem, most, rest, context);
  attention::launch_decode_rows(problem, most, workspace, context);
}

// Prompts that are short beside decode rows would be a few CTAs of the prefill kernel, for which
// all others wait.
const char* wide_refuses(const Problem& problem, const Context& context) {
  if (guess(problem) != Guess::kMixed) return "rows seem to be alike";
  if (const char* reason = decode_refuses(problem, context)) return reason;
  if (size_of(problem.cache.k.dtype) != 2 || !(problem.queries.scale > 0)) {
    return "takes 16-bit caches and a scale above 0";
  }
  return fastest(problem, context) == By::kChunks ? nullptr : "others are faster for these rows";
}
std::size_t wide_bytes(const Problem& problem) {
  return attention::decode_rows_workspace_bytes(problem, attention::decode::kAnyRows);
}
void launch_wide(const Problem& problem, const Workspace& workspace, const Context& context) {
  attention::launch_decode_rows(problem, attention::decode::kAnyRows, workspace, context);
}

const char* prefill_refuses(const Problem& problem, const Context& context) {
  const attention::Queries& q = problem.queries;
  // Where a row's bits are its own, this kernel takes all rows, and does not cut them.
  const bool short_rows =
      guess(problem) == Guess::kDecode || q.q.shape[0] <= kDecodeTokens * q.rows;
  if (short_rows && !context.batch_invariant) return "takes more than 16 tokens a row";
  return attention::attention_prefill_refuses(problem, context);
}
void launch_prefill(const Problem& problem, const Workspace& workspace, const Context& context) {
  attention::launch_attention_prefill(problem, 0, workspace, context);
}
#endif

constexpr auto kTable = cpu::with_cpu_rows<Problem, cpu::run_attention>({
#ifdef HYLA_HAS_CUDA
    {"cuda_invariant", Device::Kind::kCuda, invariant_refuses, invariant_bytes, launch_invariant},
    {"cuda_wide", Device::Kind::kCuda, wide_refuses, wide_bytes, launch_wide},
    {"cuda_mixed", Device::Kind::kCuda, mixed_refuses, mixed_bytes, launch_mixed},
    {"cuda_prefill", Device::Kind::kCuda, prefill_refuses, prefill_bytes, launch_prefill},
    {"cuda_decode", Device::Kind::kCuda, decode_refuses, attention::decode_workspace_bytes,
     attention::launch_decode},
    {"cuda_rows", Device::Kind::kCuda, attention::rows_refuses, nullptr, attention::launch_rows},
#endif
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::attention},
});
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> attention_run_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const attention::RunParams& params, const Context& context) {
  return core::explain(table(), attention::validate(params, context), context);
}

void attention::run(const RunParams& params, Workspace workspace, const Context& context) {
  core::dispatch("attention.run", table(), validate(params, context), params.impl, workspace,
                 context);
}

}  // namespace hyla
