// The implementations of norm.gated_rms, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/norm.h"
#include "cpu/table_rows.h"
#include "ops/tables.h"
#include "problem/norm.h"
#include "reference/norm.h"
#ifdef HYLA_HAS_CUDA
#include "ops/norm_gated_rms/launch_gated_rms.h"
#endif

namespace hyla {
namespace {

using Problem = norm::GatedRmsProblem;

constexpr auto kTable = cpu::with_cpu_rows<Problem, cpu::run_norm>({
#ifdef HYLA_HAS_CUDA
    {"cuda_wide", Device::Kind::kCuda, norm::wide_refuses, nullptr, norm::launch_wide},
    {"cuda", Device::Kind::kCuda, norm::any_refuses, nullptr, norm::launch_any},
#endif
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::gated_rms},
});
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> norm_gated_rms_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const norm::GatedRmsParams& params, const Context& context) {
  return core::explain(table(), norm::validate(params, context), context);
}

void norm::gated_rms(const GatedRmsParams& params, const Context& context) {
  core::dispatch("norm.gated_rms", table(), validate(params, context), params.impl, {}, context);
}

}  // namespace hyla
