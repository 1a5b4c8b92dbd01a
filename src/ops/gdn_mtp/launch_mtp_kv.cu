#include "ops/gdn_mtp/kernel_mtp_kv.cuh"
#include "ops/gdn_mtp/launch_mtp.h"
#include "ops/gdn_mtp/select.cuh"

namespace hyla::gdn {
namespace {

struct Kernels {
  template <class State, class Io, int K>
  static MtpLaunch launch() {
    using P = MtpKvPolicy<State, Io, K>;
    return {mtp_kv<P>, P::kColumns, P::kWarps * 32};
  }
};

}  // namespace

const char* mtp_kv_refuses(const MtpProblem& p, const Context& context) {
  if (p.layout != StateLayout::kKV) return "takes states [.., K, V]";
  if (p.V % (p.initial.dtype == DType::kFloat32 ? 32 : 64) != 0) {
    return "takes V that fills 128-byte lines";
  }
  if (!is_wide(p.v, p)) return "v that is not aligned for vector loads";
  return mtp_refuses(p, context);
}

void launch_mtp_kv(const MtpProblem& p, const Context& context) { launch_mtp<Kernels>(p, context); }

}  // namespace hyla::gdn
