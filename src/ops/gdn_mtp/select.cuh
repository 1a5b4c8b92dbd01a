// What the launchers of the two multi-token kernels share: which instance, and what neither takes.
#pragma once

#include "device/alignment.h"
#include "device/dtype.cuh"
#include "device/launch.h"
#include "device/select.h"
#include "ops/gdn_mtp/arguments.cuh"

namespace hyla::gdn {

struct MtpLaunch {
  void (*kernel)(MtpArguments) = nullptr;
  int values = 0;  // rows or columns of V that a CTA owns
  int threads = 0;
};

// Kernels::launch<State, Io, K>() gives an instance.
template <class Kernels>
void launch_mtp(const MtpProblem& p, const Context& context) {
  if (p.sequences.rows == 0) return;
  const MtpLaunch launch = device::with_float_type(p.initial.dtype, [&]<class State>() {
    return device::with_float_type(p.q.dtype, [&]<class Io>() {
      return device::with_key_dim(
          p.K, [&]<int K>() { return Kernels::template launch<State, Io, K>(); });
    });
  });
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(p.V / launch.values), static_cast<unsigned>(p.heads),
                    static_cast<unsigned>(p.sequences.rows));
  shape.block = dim3(static_cast<unsigned>(launch.threads));
  device::launch(launch.kernel, shape, MtpArguments{p, p.sequences.tokens}, context);
}

// Lines (K or V values, whichever is contiguous) that can be read 16 bytes at a time.
inline bool aligned_states(const PoolView& pool, StateLayout layout) {
  const auto size = static_cast<std::int64_t>(size_of(pool.dtype));
  const bool vk = layout == StateLayout::kVK;
  const std::int64_t inner = vk ? pool.k_stride : pool.v_stride;
  const std::int64_t line = vk ? pool.v_stride : pool.k_stride;
  return inner == 1 && device::aligned(pool.data, 16) && pool.slot_stride * size % 16 == 0 &&
         pool.head_stride * size % 16 == 0 && line * size % 16 == 0;
}

inline const char* mtp_refuses(const MtpProblem& p, const Context& context) {
  constexpr std::int64_t kMaxGrid = 65535;  // of a grid's y and z
  if (p.K != 64 && p.K != 128 && p.K != 256) return "takes K = 64, 128, 256";
  if (p.norm.present()) return "does not fuse the gated norm";
  if (p.heads > kMaxGrid || p.sequences.rows > kMaxGrid) return "more heads or rows than a grid";
  if (p.states_out.present() && p.states_out.dtype != p.initial.dtype) {
    return "takes states_out of the dtype of the pool";
  }
  const auto size = static_cast<std::int64_t>(size_of(p.initial.dtype));
  if (!aligned_states(p.initial, p.layout) ||
      (p.states_out.present() &&
       (!aligned_states(p.states_out, p.layout) || p.states_out_row_stride * size % 16 != 0))) {
    return "state lines that are not aligned to 16 bytes";
  }
  return device::refuses_device(context);
}

// Contiguous, and accesses as wide as a chunk of the state are aligned.
inline bool is_wide(const core::TokenView& view, const MtpProblem& p) {
  const std::int64_t chunk = 16 / static_cast<std::int64_t>(size_of(p.initial.dtype));
  return view.dim_stride == 1 && device::aligned(view, chunk);
}

}  // namespace hyla::gdn
