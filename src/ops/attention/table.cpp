// The implementations of attention.run, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/attention.h"
#include "ops/tables.h"
#include "problem/attention.h"
#include "reference/attention.h"
#ifdef HYLA_HAS_CUDA
#include "ops/attention/launch_rows.h"
#include "ops/attention_decode/launch_decode.h"
#include "ops/attention_prefill/launch_prefill.h"
#endif

namespace hyla {
namespace {

using Problem = attention::RunProblem;

#ifdef HYLA_HAS_CUDA
// Up to 16 tokens a row are the decode kernel's; lengths are on the device, so the mean decides.
const char* prefill_refuses(const Problem& problem, const Context& context) {
  constexpr std::int64_t kDecodeTokens = 16;
  const attention::Queries& q = problem.queries;
  if (q.q.shape[0] <= kDecodeTokens * q.rows) return "takes more than 16 tokens a row";
  return attention::attention_prefill_refuses(problem, context);
}
std::size_t prefill_bytes(const Problem& problem) {
  return attention::attention_prefill_workspace_bytes(problem.queries.rows);
}
void launch_prefill(const Problem& problem, const Workspace& workspace, const Context& context) {
  attention::launch_attention_prefill(problem, 0, workspace, context);
}
#endif

constexpr core::Implementation<Problem> kTable[] = {
#ifdef HYLA_HAS_CUDA
    {"cuda_prefill", Device::Kind::kCuda, prefill_refuses, prefill_bytes, launch_prefill},
    {"cuda_decode", Device::Kind::kCuda, attention::decode::refuses,
     attention::decode_workspace_bytes, attention::launch_decode},
    {"cuda_rows", Device::Kind::kCuda, attention::rows_refuses, nullptr, attention::launch_rows},
#endif
    {"cpu_avx512_bf16", Device::Kind::kCpu, cpu::attention_refuses<cpu::Target::kAvx512Bf16>,
     nullptr, cpu::attend<cpu::Target::kAvx512Bf16>},
    {"cpu_avx512", Device::Kind::kCpu, cpu::attention_refuses<cpu::Target::kAvx512>, nullptr,
     cpu::attend<cpu::Target::kAvx512>},
    {"cpu_avx2", Device::Kind::kCpu, cpu::attention_refuses<cpu::Target::kAvx2>, nullptr,
     cpu::attend<cpu::Target::kAvx2>},
    {"cpu_baseline", Device::Kind::kCpu, cpu::attention_refuses<cpu::Target::kBaseline>, nullptr,
     cpu::attend<cpu::Target::kBaseline>},
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::attention},
};
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
