// The implementations of gdn.mtp, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/gdn.h"
#include "cpu/table_rows.h"
#include "ops/tables.h"
#include "problem/gdn_mtp.h"
#include "reference/gdn.h"
#ifdef HYLA_HAS_CUDA
#include "ops/gdn_mtp/by_mtp.h"
#include "ops/gdn_mtp/launch_mtp.h"
#include "ops/gdn_rows/launch_rows.h"
#endif

namespace hyla {
namespace {

using Problem = gdn::MtpProblem;

constexpr auto kTable =
    cpu::with_cpu_rows<Problem, cpu::run_rows, cpu::rows_refuses, cpu::rows_amx_refuses>({
#ifdef HYLA_HAS_CUDA
        gdn::by_mtp<Problem, gdn::mtp_block_refuses, gdn::launch_mtp_block>("cuda_block"),
        gdn::by_mtp<Problem, gdn::mtp_vk_refuses, gdn::launch_mtp_vk>("cuda_vk"),
        gdn::by_mtp<Problem, gdn::mtp_kv_refuses, gdn::launch_mtp_kv>("cuda_kv"),
        gdn::by_mtp<Problem, gdn::rows_refuses, gdn::launch_rows>("cuda_rows"),
#endif
        {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::mtp},
    });
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> gdn_mtp_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const gdn::MtpParams& params, const Context& context) {
  return core::explain(table(), gdn::validate(params, context), context);
}

void gdn::mtp(const MtpParams& params, const Context& context) {
  core::dispatch("gdn.mtp", table(), validate(params, context), params.impl, {}, context);
}

}  // namespace hyla
