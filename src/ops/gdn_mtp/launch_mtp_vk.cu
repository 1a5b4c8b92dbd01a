#include "ops/gdn_mtp/launch_mtp_vk.h"

#include "device/alignment.h"
#include "device/launch.h"
#include "ops/gdn_mtp/kernel_mtp_vk.cuh"

namespace hyla::gdn {
namespace {

constexpr std::int64_t kMaxGrid = 65535;  // of a grid's y and z
constexpr int kFloatsOfState = 32;  // registers a thread spends on the state: 8 rows at K = 128

struct Launch {
  void (*kernel)(MtpArguments) = nullptr;
  int rows = 0;
};

template <class State, class Io, int K>
Launch select() {
  using P = MtpVkPolicy<State, Io, K, kFloatsOfState / device::kPerChunk<State>>;
  return {mtp_vk<P>, P::kRows};
}

template <class State, class Io>
Launch select(std::int64_t K) {
  if (K == 64) return select<State, Io, 64>();
  return K == 128 ? select<State, Io, 128>() : select<State, Io, 256>();
}

template <class State>
Launch select(DType io, std::int64_t K) {
  if (io == DType::kFloat32) return select<State, float>(K);
  return io == DType::kBFloat16 ? select<State, __nv_bfloat16>(K) : select<State, __half>(K);
}

Launch select(DType state, DType io, std::int64_t K) {
  if (state == DType::kFloat32) return select<float>(io, K);
  return state == DType::kBFloat16 ? select<__nv_bfloat16>(io, K) : select<__half>(io, K);
}

bool aligned_states(const PoolView& pool) {
  const auto size = static_cast<std::int64_t>(size_of(pool.dtype));
  return pool.k_stride == 1 && device::aligned(pool.data, 16) &&
         pool.slot_stride * size % 16 == 0 && pool.head_stride * size % 16 == 0 &&
         pool.v_stride * size % 16 == 0;
}

}  // namespace

const char* mtp_vk_refuses(const MtpProblem& p, const Context& context) {
  if (p.layout != StateLayout::kVK) return "takes states [.., V, K]";
  if (p.K != 64 && p.K != 128 && p.K != 256) return "takes K = 64, 128, 256";
  if (p.V % 32 != 0) return "takes V that is a multiple of 32";
  if (p.norm.present()) return "does not fuse the gated norm";
  if (p.heads > kMaxGrid || p.sequences.rows > kMaxGrid) return "more heads or rows than a grid";
  if (p.states_out.present() && p.states_out.dtype != p.initial.dtype) {
    return "takes states_out of the dtype of the pool";
  }
  const std::int64_t chunk = 16 / static_cast<std::int64_t>(size_of(p.initial.dtype));
  if (p.q.dim_stride != 1 || p.k.dim_stride != 1 || !device::aligned(p.q, chunk) ||
      !device::aligned(p.k, chunk)) {
    return "q or k that is not contiguous and aligned for vector loads";
  }
  const auto size = static_cast<std::int64_t>(size_of(p.states_out.dtype));
  if (!aligned_states(p.initial) ||
      (p.states_out.present() &&
       (!aligned_states(p.states_out) || p.states_out_row_stride * size % 16 != 0))) {
    return "state lines that are not aligned to 16 bytes";
  }
  return device::refuses_device(context);
}

void launch_mtp_vk(const MtpProblem& p, const Workspace&, const Context& context) {
  if (p.sequences.rows == 0) return;
  const Launch launch = select(p.initial.dtype, p.q.dtype, p.K);
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.V / launch.rows), static_cast<unsigned>(p.heads),
                    static_cast<unsigned>(p.sequences.rows));
  shape.block = dim3(32);
  device::launch(launch.kernel, shape, MtpArguments{p, p.sequences.tokens}, context);
}

const char* mtp_vk_refuses(const RecurrenceProblem& p, const Context& context) {
  return mtp_vk_refuses(as_mtp(p), context);
}

void launch_mtp_vk(const RecurrenceProblem& p, const Workspace& workspace, const Context& context) {
  launch_mtp_vk(as_mtp(p), workspace, context);
}

}  // namespace hyla::gdn
