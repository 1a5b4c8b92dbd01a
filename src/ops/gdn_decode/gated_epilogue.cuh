// The fused gated norm: o * rsqrt(mean(o^2) + eps) * weight * activation(z) over the V values of a
// head. They are one CTA or a cluster; every CTA sends its values to the first one and leaves.
#pragma once

#include <type_traits>

#include "arch/cluster.cuh"
#include "arch/registers.cuh"
#include "device/dtype.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_decode/arguments.cuh"

namespace hyla::gdn {

struct HeadValues {
  arch::Mbarrier all;
  float o[kGatedDim];
};

struct NoHeadValues {};
template <bool Gated>
using HeadValuesIf = std::conditional_t<Gated, HeadValues, NoHeadValues>;

// Nobody sends before the first CTA's barrier is there: all warps arrive early, the one that sends
// waits before it does, the others at their end. Relaxed, because a release waits for the state.
template <int Ctas>
__device__ __forceinline__ void arrive_for_head() {
  if constexpr (Ctas > 1) arch::arrive_at_cluster_relaxed();
}
template <int Ctas>
__device__ __forceinline__ void wait_for_head() {
  if constexpr (Ctas > 1) arch::wait_for_cluster();
}

// CTAs of a head, as far as its end needs to know.
template <bool Gated, int ValuesOfCta>
inline constexpr int kHeadCtas = Gated ? kGatedDim / ValuesOfCta : 1;

// By the warp of a CTA that owns no part of the state.
template <class Io, int Ctas>
class GatedHead {
 public:
  // Before anything else.
  __device__ __forceinline__ GatedHead(HeadValues& values, int lane)
      : values_(values), lane_(lane), first_(Ctas == 1 || blockIdx.x == 0) {
    if constexpr (Ctas == 1) return;
    if (first_ && lane == 0) {
      arch::init(values.all, 1);
      arch::fence_mbarrier_init();
      arch::arrive_expecting(values.all, kGatedDim * sizeof(float));
    }
    __syncwarp();
    arrive_for_head<Ctas>();
  }
  __device__ __forceinline__ void load(const GatedArguments& a, std::int64_t z_offset) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int value = lane_ + 32 * i;
      if (!first_) continue;
      z_[i] = static_cast<const Io*>(a.z)[z_offset + value];
      weight_[i] = device::load_bits(a.weight, a.weight_dtype,
                                     value * static_cast<std::int64_t>(a.weight_stride));
    }
  }
  // Behind wait_for_head().
  __device__ __forceinline__ void send(int value, float o) {
    if constexpr (Ctas == 1) {
      values_.o[value] = o;
    } else {
      arch::send(&values_.o[value], o, values_.all, 0);
    }
  }
  // After the last.
  __device__ __forceinline__ void write(const GatedArguments& a, Io* out) {
    if (!first_) return;
    float gate[kOwn];  // while the others' values are on their way
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float z = device::to_float(z_[i]);
      gate[i] =
          gates::sigmoid(z) * (a.silu ? z : 1.0f) * device::number(weight_[i], a.weight_dtype);
    }
    arch::pin(gate);
    __syncwarp();
    if constexpr (Ctas > 1) arch::wait(values_.all, 0);
    float o[kOwn], sum = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      o[i] = values_.o[lane_ + 32 * i];
      sum += o[i] * o[i];
    }
    const float factor = rsqrtf(device::sum_lanes<32>(sum) / kGatedDim + a.eps);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      out[lane_ + 32 * i] = device::from_float<Io>(o[i] * factor * gate[i]);
    }
  }

 private:
  static constexpr int kOwn = kGatedDim / 32;
  HeadValues& values_;
  int lane_;
  bool first_;
  Io z_[kOwn];
  std::uint32_t weight_[kOwn];
};

struct NoGatedHead {
  __device__ __forceinline__ NoGatedHead(const NoHeadValues&, int) {}
};
template <bool Gated, class Io, int Ctas>
using GatedHeadIf = std::conditional_t<Gated, GatedHead<Io, Ctas>, NoGatedHead>;

}  // namespace hyla::gdn
