// The implementations of gdn.recurrence, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/gdn.h"
#include "ops/tables.h"
#include "problem/gdn_recurrence.h"
#include "reference/gdn.h"
#ifdef HYLA_HAS_CUDA
#include "ops/gdn_mtp/by_mtp.h"
#include "ops/gdn_mtp/launch_mtp.h"
#include "ops/gdn_rows/launch_rows.h"
#endif

namespace hyla {
namespace {

using Problem = gdn::RecurrenceProblem;

constexpr core::Implementation<Problem> kTable[] = {
#ifdef HYLA_HAS_CUDA
    gdn::by_mtp<Problem, gdn::mtp_block_refuses, gdn::launch_mtp_block>("cuda_block"),
    gdn::by_mtp<Problem, gdn::mtp_vk_refuses, gdn::launch_mtp_vk>("cuda_vk"),
    gdn::by_mtp<Problem, gdn::mtp_kv_refuses, gdn::launch_mtp_kv>("cuda_kv"),
    gdn::by_mtp<Problem, gdn::rows_refuses, gdn::launch_rows>("cuda_rows"),
#endif
    {"cpu_avx512_bf16", Device::Kind::kCpu, cpu::rows_refuses<cpu::Target::kAvx512Bf16, Problem>,
     nullptr, cpu::recurrence<cpu::Target::kAvx512Bf16>},
    {"cpu_avx512", Device::Kind::kCpu, cpu::rows_refuses<cpu::Target::kAvx512, Problem>, nullptr,
     cpu::recurrence<cpu::Target::kAvx512>},
    {"cpu_avx2", Device::Kind::kCpu, cpu::rows_refuses<cpu::Target::kAvx2, Problem>, nullptr,
     cpu::recurrence<cpu::Target::kAvx2>},
    {"cpu_baseline", Device::Kind::kCpu, cpu::rows_refuses<cpu::Target::kBaseline, Problem>,
     nullptr, cpu::recurrence<cpu::Target::kBaseline>},
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::recurrence},
};
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> gdn_recurrence_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const gdn::RecurrenceParams& params, const Context& context) {
  return core::explain(table(), gdn::validate(params, context), context);
}

void gdn::recurrence(const RecurrenceParams& params, const Context& context) {
  core::dispatch("gdn.recurrence", table(), validate(params, context), params.impl, {}, context);
}

}  // namespace hyla
