// The implementations of attention.append, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/append.h"
#include "cpu/table_rows.h"
#include "ops/tables.h"
#include "problem/attention.h"
#include "reference/attention.h"
#ifdef HYLA_HAS_CUDA
#include "ops/attention_append/launch_append.h"
#endif

namespace hyla {
namespace {

using Problem = attention::AppendProblem;

constexpr auto kTable = cpu::with_cpu_rows<Problem, cpu::run_append>({
#ifdef HYLA_HAS_CUDA
    {"cuda_rows", Device::Kind::kCuda, attention::append_rows_refuses, nullptr,
     attention::launch_append_rows},
    {"cuda_heads", Device::Kind::kCuda, attention::append_refuses, nullptr,
     attention::launch_append},
#endif
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::attention_append},
});
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> attention_append_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const attention::AppendParams& params, const Context& context) {
  return core::explain(table(), attention::validate(params, context), context);
}

void attention::append(const AppendParams& params, const Context& context) {
  core::dispatch("attention.append", table(), validate(params, context), params.impl, {}, context);
}

}  // namespace hyla
