// The implementations of attention.run, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/attention.h"
#include "cpu/table_rows.h"
#include "ops/attention/call.h"
#include "ops/tables.h"
#include "reference/attention.h"
#ifdef HYLA_HAS_CUDA
#include "ops/attention/launch_rows.h"
#include "ops/attention/mixed.h"
#endif

namespace hyla {
namespace {

using Call = attention::RunCall;

#ifdef HYLA_HAS_CUDA
// Up to 16 tokens a row are the decode kernel's. Lengths are on the device, so what a call holds
// can only be guessed from their sum: if equal rows have that sum they are all decode, drafts or
// prompts; anything else may be a mixture. A wrong guess costs time, nothing else.
constexpr std::int64_t kDecodeTokens = 16;

enum class Guess { kDecode, kPrefill, kMixed };

Guess guess(const Call& call) {
  const attention::Queries& q = call.problem.queries;
  const std::int64_t rows = q.rows, tokens = q.q.shape[0];
  if (tokens <= kDecodeTokens) return Guess::kDecode;
  if (rows == 0 || tokens % rows != 0) return Guess::kMixed;
  return tokens <= kDecodeTokens * rows ? Guess::kDecode : Guess::kPrefill;
}

std::size_t prefill_bytes(const Call& call) {
  return attention::attention_prefill_workspace_bytes(call.problem.queries.rows);
}
// What the decode kernel has of a workspace that both have a part of.
std::size_t decode_part(const attention::decode::Plan& plan) {
  return attention::mixed_workspace_bytes(attention::decode::workspace_bytes(plan), 0);
}
Workspace behind(const Workspace& workspace, std::size_t before, std::size_t bytes) {
  Workspace rest = workspace;
  rest.data = static_cast<char*>(workspace.data) + before;
  rest.bytes = bytes;
  return rest;
}

// Rows of up to 8 packed queries by the decode kernel, cut by their own lengths, longer ones by the
// prefill kernel, uncut: who does a row depends on the row alone.
const char* invariant_refuses(const Call& call, const Context& context) {
  if (!context.batch_invariant) return "is for Context.batch_invariant";
  if (const char* reason = call.prefill_refuses(context)) return reason;
  return call.decode_refuses(context);
}
std::size_t invariant_bytes(const Call& call) {
  return decode_part(call.own_plan()) + prefill_bytes(call);
}
void launch_invariant(const Call& call, const Workspace& workspace, const Context& context) {
  const attention::Queries& q = call.problem.queries;
  const std::int64_t group = q.query_heads / q.kv_heads, most = attention::decode::kWarpRows;
  if (q.q.shape[0] * group > most) {
    const Workspace rest = behind(workspace, decode_part(call.own_plan()), prefill_bytes(call));
    attention::launch_attention_prefill(call.problem, most, false, rest, context);
  }
  if (group <= most) {
    attention::launch_decode(call.problem, most, call.own_plan(), workspace, context);
  }
}

const char* decode_refuses(const Call& call, const Context& context) {
  if (context.batch_invariant) return "bits that depend on the lengths of other rows";
  return call.decode_refuses(context);
}
std::size_t decode_bytes(const Call& call) {
  return attention::decode::workspace_bytes(call.plan(attention::decode::kAllRows));
}
void launch_decode(const Call& call, const Workspace& workspace, const Context& context) {
  constexpr std::int64_t kMost = attention::decode::kAllRows;
  attention::launch_decode(call.problem, kMost, call.plan(kMost), workspace, context);
}

const char* mixed_refuses(const Call& call, const Context& context) {
  if (context.batch_invariant) return "one kernel for short rows, another for long ones";
  if (guess(call) != Guess::kMixed) return "rows seem to be alike";
  if (const char* reason = call.prefill_refuses(context)) return reason;
  return decode_refuses(call, context);
}
std::int64_t most_decode_rows(const Call& call) {
  return kDecodeTokens * (call.problem.queries.query_heads / call.problem.queries.kv_heads);
}
std::size_t mixed_bytes(const Call& call) {
  return decode_part(call.plan(most_decode_rows(call))) + prefill_bytes(call);
}
// Each kernel finds its rows on the device.
void launch_mixed(const Call& call, const Workspace& workspace, const Context& context) {
  const std::int64_t most = most_decode_rows(call);
  const attention::decode::Plan& plan = call.plan(most);
  const std::size_t before = decode_part(plan);
  const bool widens = attention::widening_refuses(call.problem, context) == nullptr &&
                      call.expected(context).both_widen();
  attention::launch_attention_prefill(call.problem, most, widens,
                                      behind(workspace, before, workspace.bytes - before), context);
  attention::launch_decode(call.problem, most, plan, workspace, context);
}
double mixed_us(const Call& call, const Context& context) {
  return call.expected(context).by_both();
}

// Prompts that are short beside decode rows would be a few CTAs of the prefill kernel, for which
// all others wait.
const char* wide_refuses(const Call& call, const Context& context) {
  if (guess(call) != Guess::kMixed) return "rows seem to be alike";
  if (const char* reason = decode_refuses(call, context)) return reason;
  if (size_of(call.problem.cache.k.dtype) != 2) return "takes 16-bit caches";
  if (attention::decode::takes_wide(call.problem.queries)) return nullptr;
  return "takes a scale from 2^-100 on and a soft cap up to 256";
}
std::size_t wide_bytes(const Call& call) {
  return attention::decode::workspace_bytes(call.plan(attention::decode::kAnyRows));
}
void launch_wide(const Call& call, const Workspace& workspace, const Context& context) {
  constexpr std::int64_t kMost = attention::decode::kAnyRows;
  attention::launch_decode(call.problem, kMost, call.plan(kMost), workspace, context);
}
double wide_us(const Call& call, const Context& context) {
  return call.expected(context).by_chunks();
}

const char* prefill_refuses(const Call& call, const Context& context) {
  // Where a row's bits are its own, this kernel takes all rows, and does not cut them. Of few tokens
  // a row it takes what the decode kernel does not, for example several scales a head.
  if (guess(call) == Guess::kDecode && !context.batch_invariant &&
      call.decode_refuses(context) == nullptr) {
    return "takes more than 16 tokens a row, where cuda_decode takes fewer";
  }
  return call.prefill_refuses(context);
}
void launch_prefill(const Call& call, const Workspace& workspace, const Context& context) {
  attention::launch_attention_prefill(call.problem, 0, false, workspace, context);
}
double prefill_us(const Call& call, const Context& context) {
  return call.expected(context).by_tiles();
}

const char* widened_refuses(const Call& call, const Context& context) {
  if (const char* reason = attention::widening_refuses(call.problem, context)) return reason;
  return prefill_refuses(call, context);
}
void launch_widened(const Call& call, const Workspace& workspace, const Context& context) {
  attention::launch_attention_prefill(call.problem, 0, true, workspace, context);
}
double widened_us(const Call& call, const Context& context) {
  return call.expected(context).by_widened();
}

const char* rows_refuses(const Call& call, const Context& context) {
  return attention::rows_refuses(call.problem, context);
}
void launch_rows(const Call& call, const Workspace& workspace, const Context& context) {
  attention::launch_rows(call.problem, workspace, context);
}
#endif

void run_on_cpu(cpu::Target target, const Call& call, const Context& context) {
  cpu::run_attention(target, call.problem, context);
}
const char* amx_refuses(const Call& call) { return cpu::attention_amx_refuses(call.problem); }
void run_reference(const Call& call, const Workspace& workspace, const Context& context) {
  reference::attention(call.problem, workspace, context);
}

constexpr auto kTable = cpu::with_cpu_rows<Call, run_on_cpu, nullptr, amx_refuses>({
#ifdef HYLA_HAS_CUDA
    {"cuda_invariant", Device::Kind::kCuda, invariant_refuses, invariant_bytes, launch_invariant},
    {"cuda_wide", Device::Kind::kCuda, wide_refuses, wide_bytes, launch_wide, wide_us},
    {"cuda_mixed", Device::Kind::kCuda, mixed_refuses, mixed_bytes, launch_mixed, mixed_us},
    {"cuda_widened", Device::Kind::kCuda, widened_refuses, prefill_bytes, launch_widened,
     widened_us},
    {"cuda_prefill", Device::Kind::kCuda, prefill_refuses, prefill_bytes, launch_prefill,
     prefill_us},
    {"cuda_decode", Device::Kind::kCuda, decode_refuses, decode_bytes, launch_decode},
    {"cuda_rows", Device::Kind::kCuda, rows_refuses, nullptr, launch_rows},
#endif
    {"reference", Device::Kind::kCpu, nullptr, nullptr, run_reference},
});
constexpr std::span<const core::Implementation<Call>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> attention_run_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const attention::RunParams& params, const Context& context) {
  return core::explain(table(), Call(params, context), context);
}

void attention::run(const RunParams& params, Workspace workspace, const Context& context) {
  core::dispatch("attention.run", table(), Call(params, context), params.impl, workspace, context);
}

}  // namespace hyla
