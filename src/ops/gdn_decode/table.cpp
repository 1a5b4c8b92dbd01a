// The implementations of gdn.decode, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/gdn.h"
#include "cpu/table_rows.h"
#include "ops/tables.h"
#include "problem/gdn_decode.h"
#include "reference/gdn.h"
#ifdef HYLA_HAS_CUDA
#include "ops/gdn_decode/launch.h"
#include "ops/gdn_mtp/by_mtp.h"
#include "ops/gdn_mtp/launch_mtp.h"
#include "ops/gdn_rows/launch_rows.h"
#endif

namespace hyla {
namespace {

using Problem = gdn::DecodeProblem;

constexpr auto kTable = cpu::with_cpu_rows<Problem, cpu::run_decode, cpu::rows_refuses>({
#ifdef HYLA_HAS_CUDA
    {"cuda_vk", Device::Kind::kCuda, gdn::decode_vk_refuses, nullptr, gdn::launch_decode},
    {"cuda_kv", Device::Kind::kCuda, gdn::decode_kv_refuses, nullptr, gdn::launch_decode},
    gdn::by_mtp<Problem, gdn::mtp_block_refuses, gdn::launch_mtp_block>("cuda_block"),
    gdn::by_mtp<Problem, gdn::rows_refuses, gdn::launch_rows>("cuda_rows"),
#endif
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::decode},
});
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> gdn_decode_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const gdn::DecodeParams& params, const Context& context) {
  return core::explain(table(), gdn::validate(params, context), context);
}

void gdn::decode(const DecodeParams& params, const Context& context) {
  core::dispatch("gdn.decode", table(), validate(params, context), params.impl, {}, context);
}

}  // namespace hyla
