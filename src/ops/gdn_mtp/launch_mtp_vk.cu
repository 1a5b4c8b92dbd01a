#include "ops/gdn_mtp/kernel_mtp_vk.cuh"
#include "ops/gdn_mtp/launch_mtp.h"
#include "ops/gdn_mtp/select.cuh"

namespace hyla::gdn {
namespace {

constexpr int kFloatsOfState = 32;  // registers a thread spends on the state: 8 rows at K = 128

struct Kernels {
  template <class State, class Io, int K>
  static MtpLaunch launch() {
    using P = MtpVkPolicy<State, Io, K, kFloatsOfState / device::kPerChunk<State>>;
    return {mtp_vk<P>, P::kRows, 32};
  }
};

}  // namespace

const char* mtp_vk_refuses(const MtpProblem& p, const Context& context) {
  if (p.layout != StateLayout::kVK) return "takes states [.., V, K]";
  if (p.V % 32 != 0) return "takes V that is a multiple of 32";
  if (!is_wide(p.q, p) || !is_wide(p.k, p)) return "q or k that is not aligned for vector loads";
  return mtp_refuses(p, context);
}

void launch_mtp_vk(const MtpProblem& p, const Context& context) { launch_mtp<Kernels>(p, context); }

}  // namespace hyla::gdn
