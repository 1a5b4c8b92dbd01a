// The implementations of gdn.prefill: those on tiles by the cost model, then the others, best
// first; and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "cpu/gdn.h"
#include "cpu/table_rows.h"
#include "ops/tables.h"
#include "problem/gdn_prefill.h"
#include "reference/gdn.h"
#ifdef HYLA_HAS_CUDA
#include "ops/gdn_prefill/launch_prefill.h"
#endif

namespace hyla {
namespace {

using Problem = gdn::PrefillProblem;

constexpr auto kTable =
    cpu::with_cpu_rows<Problem, cpu::run_prefill, cpu::prefill_refuses, cpu::prefill_amx_refuses>({
#ifdef HYLA_HAS_CUDA
        {"cuda_segments", Device::Kind::kCuda, gdn::prefill_segments_refuses,
         gdn::prefill_segments_bytes, gdn::launch_prefill_segments, gdn::prefill_segments_us},
        {"cuda_relay", Device::Kind::kCuda, gdn::prefill_relay_refuses, gdn::prefill_relay_bytes,
         gdn::launch_prefill_relay, gdn::prefill_relay_us},
        {"cuda_split", Device::Kind::kCuda, gdn::prefill_split_refuses, gdn::prefill_split_bytes,
         gdn::launch_prefill_split, gdn::prefill_split_us},
        {"cuda_fused", Device::Kind::kCuda, gdn::prefill_fused_refuses, nullptr,
         gdn::launch_prefill_fused, gdn::prefill_fused_us},
        {"cuda_steps", Device::Kind::kCuda, gdn::prefill_steps_refuses, nullptr,
         gdn::launch_prefill_steps, gdn::prefill_steps_us},
        {"cuda_block", Device::Kind::kCuda, gdn::prefill_block_refuses, nullptr,
         gdn::launch_prefill_block, gdn::prefill_block_us},
        {"cuda_vk", Device::Kind::kCuda, gdn::prefill_vk_refuses, nullptr, gdn::launch_prefill_vk,
         gdn::prefill_vk_us},
        {"cuda_kv", Device::Kind::kCuda, gdn::prefill_kv_refuses, nullptr, gdn::launch_prefill_kv,
         gdn::prefill_vk_us},
        {"cuda_tokens", Device::Kind::kCuda, gdn::prefill_tokens_refuses, nullptr,
         gdn::launch_prefill_tokens},
#endif
        {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::prefill},
    });
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> gdn_prefill_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const gdn::PrefillParams& params, const Context& context) {
  return core::explain(table(), gdn::validate(params, context), context);
}

void gdn::prefill(const PrefillParams& params, Workspace workspace, const Context& context) {
  core::dispatch("gdn.prefill", table(), validate(params, context), params.impl, workspace,
                 context);
}

std::size_t gdn::prefill_workspace_bytes(const PrefillBounds& bounds) {
  check_bounds(bounds);
#ifdef HYLA_HAS_CUDA
  return prefill_cuda_bytes(bounds);
#else
  return 0;
#endif
}

}  // namespace hyla
