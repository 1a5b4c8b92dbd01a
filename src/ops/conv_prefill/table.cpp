// The implementations of conv.prefill, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/conv.h"
#include "ops/tables.h"
#include "problem/conv.h"
#include "reference/conv.h"
#ifdef HYLA_HAS_CUDA
#include "ops/causal_conv1d/launch_conv.h"
#endif

namespace hyla {
namespace {

using Problem = conv::PrefillProblem;

constexpr core::Implementation<Problem> kTable[] = {
#ifdef HYLA_HAS_CUDA
    {"cuda", Device::Kind::kCuda,
     [](const Problem& p, const Context& context) { return conv::runs_refuses(p, context); },
     nullptr, conv::launch_runs},
#endif
    {"cpu_avx512_bf16", Device::Kind::kCpu, cpu::conv_refuses<cpu::Target::kAvx512Bf16, Problem>,
     nullptr, cpu::convolution<cpu::Target::kAvx512Bf16, Problem>},
    {"cpu_avx512", Device::Kind::kCpu, cpu::conv_refuses<cpu::Target::kAvx512, Problem>, nullptr,
     cpu::convolution<cpu::Target::kAvx512, Problem>},
    {"cpu_avx2", Device::Kind::kCpu, cpu::conv_refuses<cpu::Target::kAvx2, Problem>, nullptr,
     cpu::convolution<cpu::Target::kAvx2, Problem>},
    {"cpu_baseline", Device::Kind::kCpu, cpu::conv_refuses<cpu::Target::kBaseline, Problem>,
     nullptr, cpu::convolution<cpu::Target::kBaseline, Problem>},
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::conv_prefill},
};
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> conv_prefill_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const conv::PrefillParams& params, const Context& context) {
  return core::explain(table(), conv::validate(params, context), context);
}

void conv::prefill(const PrefillParams& params, const Context& context) {
  core::dispatch("conv.prefill", table(), validate(params, context), params.impl, {}, context);
}

}  // namespace hyla
