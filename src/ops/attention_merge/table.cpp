// The implementations of attention.merge, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/merge.h"
#include "cpu/table_rows.h"
#include "ops/tables.h"
#include "problem/attention_merge.h"
#include "reference/attention_merge.h"
#ifdef HYLA_HAS_CUDA
#include "ops/attention_merge/launch_merge.h"
#endif

namespace hyla {
namespace {

using Problem = attention::MergeProblem;

constexpr auto kTable = cpu::with_cpu_rows<Problem, cpu::run_merge>({
#ifdef HYLA_HAS_CUDA
    {"cuda_wide", Device::Kind::kCuda, attention::merge_wide_refuses, nullptr,
     attention::launch_merge_wide},
    {"cuda", Device::Kind::kCuda, attention::merge_any_refuses, nullptr,
     attention::launch_merge_any},
#endif
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::attention_merge},
});
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> attention_merge_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const attention::MergeParams& params, const Context& context) {
  return core::explain(table(), attention::validate(params, context), context);
}

void attention::merge(const MergeParams& params, const Context& context) {
  core::dispatch("attention.merge", table(), validate(params, context), params.impl, {}, context);
}

}  // namespace hyla
