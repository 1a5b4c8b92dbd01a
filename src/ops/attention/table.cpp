// The implementations of attention.run, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/attention.h"
#include "cpu/table_rows.h"
#include "ops/tables.h"
#include "problem/attention.h"
#include "reference/attention.h"
#ifdef HYLA_HAS_CUDA
#include "ops/attention/expected.h"
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
    attention::launch_attention_prefill(problem, most, false, rest, context);
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
// Each kernel finds its rows on the device.
void launch_mixed(const Problem& problem, const Workspace& workspace, const Context& context) {
  const std::int64_t most = most_decode_rows(problem);
  const std::size_t before = decode_part(problem);
  Workspace rest = workspace;
  rest.data = static_cast<char*>(workspace.data) + before;
  rest.bytes = workspace.bytes - before;
  const bool widens = attention::widening_refuses(problem, context) == nullptr &&
                      attention::expected_mixture(problem, context).both_widen();
  attention::launch_attention_prefill(problem, most, widens, rest, context);
  attention::launch_decode_rows(problem, most, workspace, context);
}
double mixed_us(const Problem& problem, const Context& context) {
  return attention::expected_mixture(problem, context).by_both();
}

// Prompts that are short beside decode rows would be a few CTAs of the prefill kernel, for which
// all others wait.
const char* wide_refuses(const Problem& problem, const Context& context) {
  if (guess(problem) != Guess::kMixed) return "rows seem to be alike";
  if (const char* reason = decode_refuses(problem, context)) return reason;
  if (size_of(problem.cache.k.dtype) != 2 || !(problem.queries.scale > 0)) {
    return "takes 16-bit caches and a scale above 0";
  }
  return nullptr;
}
std::size_t wide_bytes(const Problem& problem) {
  return attention::decode_rows_workspace_bytes(problem, attention::decode::kAnyRows);
}
void launch_wide(const Problem& problem, const Workspace& workspace, const Context& context) {
  attention::launch_decode_rows(problem, attention::decode::kAnyRows, workspace, context);
}
double wide_us(const Problem& problem, const Context& context) {
  return attention::expected_mixture(problem, context).by_chunks();
}

const char* prefill_refuses(const Problem& problem, const Context& context) {
  // Where a row's bits are its own, this kernel takes all rows, and does not cut them. Of few tokens
  // a row it takes what the decode kernel does not, for example several scales a head.
  if (guess(problem) == Guess::kDecode && !context.batch_invariant &&
      attention::decode::refuses(problem, context) == nullptr) {
    return "takes more than 16 tokens a row, where cuda_decode takes fewer";
  }
  return attention::attention_prefill_refuses(problem, context);
}
void launch_prefill(const Problem& problem, const Workspace& workspace, const Context& context) {
  attention::launch_attention_prefill(problem, 0, false, workspace, context);
}
double prefill_us(const Problem& problem, const Context& context) {
  return attention::expected_mixture(problem, context).by_tiles();
}

const char* widened_refuses(const Problem& problem, const Context& context) {
  if (const char* reason = prefill_refuses(problem, context)) return reason;
  return attention::widening_refuses(problem, context);
}
void launch_widened(const Problem& problem, const Workspace& workspace, const Context& context) {
  attention::launch_attention_prefill(problem, 0, true, workspace, context);
}
double widened_us(const Problem& problem, const Context& context) {
  return attention::expected_mixture(problem, context).by_widened();
}
#endif

constexpr auto kTable =
    cpu::with_cpu_rows<Problem, cpu::run_attention, nullptr, cpu::attention_amx_refuses>({
#ifdef HYLA_HAS_CUDA
        {"cuda_invariant", Device::Kind::kCuda, invariant_refuses, invariant_bytes,
         launch_invariant},
        {"cuda_wide", Device::Kind::kCuda, wide_refuses, wide_bytes, launch_wide, wide_us},
        {"cuda_mixed", Device::Kind::kCuda, mixed_refuses, mixed_bytes, launch_mixed, mixed_us},
        {"cuda_widened", Device::Kind::kCuda, widened_refuses, prefill_bytes, launch_widened,
         widened_us},
        {"cuda_prefill", Device::Kind::kCuda, prefill_refuses, prefill_bytes, launch_prefill,
         prefill_us},
        {"cuda_decode", Device::Kind::kCuda, decode_refuses, attention::decode_workspace_bytes,
         attention::launch_decode},
        {"cuda_rows", Device::Kind::kCuda, attention::rows_refuses, nullptr,
         attention::launch_rows},
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
