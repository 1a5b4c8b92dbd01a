// The implementations of conv.update, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/conv.h"
#include "cpu/table_rows.h"
#include "ops/tables.h"
#include "problem/conv.h"
#include "reference/conv.h"
#ifdef HYLA_HAS_CUDA
#include "ops/causal_conv1d/launch_conv.h"
#endif

namespace hyla {
namespace {

using Problem = conv::UpdateProblem;

constexpr auto kTable = cpu::with_cpu_rows<Problem, cpu::run_conv, cpu::conv_refuses>({
#ifdef HYLA_HAS_CUDA
    {"cuda_step", Device::Kind::kCuda, conv::step_refuses, nullptr, conv::launch_step},
    {"cuda_drafts", Device::Kind::kCuda, conv::drafts_refuses, nullptr, conv::launch_drafts},
    {"cuda", Device::Kind::kCuda,
     [](const Problem& p, const Context& context) { return conv::runs_refuses(p, context); },
     nullptr, conv::launch_runs},
    {"cuda_rows", Device::Kind::kCuda,
     [](const Problem& p, const Context& context) { return conv::rows_refuses(p, context); },
     nullptr, conv::launch_rows},
#endif
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::conv_update},
});
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> conv_update_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const conv::UpdateParams& params, const Context& context) {
  return core::explain(table(), conv::validate(params, context), context);
}

void conv::update(const UpdateParams& params, const Context& context) {
  core::dispatch("conv.update", table(), validate(params, context), params.impl, {}, context);
}

}  // namespace hyla
