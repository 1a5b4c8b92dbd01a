// Gated RMSNorm of vectors that a group of lanes holds whole: every element is read once, in
// 16-byte accesses.
//
// A group of Lanes neighbouring lanes takes one vector, a warp 32 / Lanes of them, and a thread has
// nothing else to do: with 2 x 16 bytes in flight each, full SMs hide the latency better than
// threads that loop.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/activation_for.cuh"
#include "device/dtype.cuh"
#include "device/reduce.cuh"
#include "problem/norm.h"

namespace hyla::norm {

inline constexpr int kWideThreads = 128;

template <class Io_, int Lanes_, int Chunks_>
struct WidePolicy {
  using Io = Io_;
  static constexpr int kLanes = Lanes_;
  static constexpr int kChunks = Chunks_;  // 16-byte accesses of a lane, kLanes apart
  static constexpr int kVec = device::kPerChunk<Io>;
  static constexpr int kVectors = kWideThreads / kLanes;  // of a CTA
};

struct WideArguments {
  GatedRmsProblem p;
  bool wide_weight;  // 16 bytes of them at a time are contiguous and aligned
};

// Weights that are asked for with x and z, as they came, so that nobody waits for them at the end.
template <int Count>
struct AskedWeights {
  device::Pack<float, 4> words[Count / 4];

  // `there`: `Count` of them, contiguous and aligned to 16 bytes.
  __device__ __forceinline__ void ask(bool there, const core::VectorView& w, int d) {
    const bool wide = w.dtype == DType::kFloat32;
    const char* from = static_cast<const char*>(w.data) + d * (wide ? 4 : 2);
    words[0].load_if(there, from);
    if constexpr (Count == 8) words[1].load_if(there && wide, from + 16);
  }
  __device__ __forceinline__ void unpack(DType dtype, float (&weight)[Count]) const {
    if (dtype == DType::kFloat32) {
#pragma unroll
      for (int i = 0; i < Count; ++i) weight[i] = __uint_as_float(words[i / 4].words[i % 4]);
    } else if constexpr (Count == 8) {
      if (dtype == DType::kBFloat16) {
        as<__nv_bfloat16>().unpack(weight);
      } else {
        as<__half>().unpack(weight);
      }
    }
  }

 private:
  template <class T>
  __device__ __forceinline__ device::Pack<T, 8> as() const {
    device::Pack<T, 8> pack;
#pragma unroll
    for (int w = 0; w < 4; ++w) pack.words[w] = words[0].words[w];
    return pack;
  }
};

// x, z, out [tokens, heads, D]; weight [D]; grid (ceil(tokens * heads / kVectors))
template <class P>
__global__ void __launch_bounds__(kWideThreads)
    gated_rms_wide(const __grid_constant__ WideArguments a) {
  using Io = typename P::Io;
  const GatedRmsProblem& p = a.p;
  const int lane = static_cast<int>(threadIdx.x) % P::kLanes, D = static_cast<int>(p.D);
  const std::uint32_t index = blockIdx.x * P::kVectors + threadIdx.x / P::kLanes;
  const auto heads = static_cast<std::uint32_t>(p.heads);
  const std::int64_t token = index / heads, head = index % heads;
  const bool inside = token < p.tokens;
  device::Pack<Io, P::kVec> x[P::kChunks] = {}, z[P::kChunks] = {};
  const Io* x_vector = static_cast<const Io*>(p.x.data) + p.x.offset(0, token, head);
  const Io* z_vector = static_cast<const Io*>(p.gate.z.data) + p.gate.z.offset(0, token, head);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
#pragma unroll
  for (int c = 0; c < P::kChunks; ++c) {
    const int d = (c * P::kLanes + lane) * P::kVec;
    if (inside && d < D) x[c].load(x_vector + d);
  }
#pragma unroll
  for (int c = 0; c < P::kChunks; ++c) {
    const int d = (c * P::kLanes + lane) * P::kVec;
    if (inside && d < D) z[c].load(z_vector + d);
  }
  AskedWeights<P::kVec> weights[P::kChunks];
#pragma unroll
  for (int c = 0; c < P::kChunks; ++c) {
    const int d = (c * P::kLanes + lane) * P::kVec;
    weights[c].ask(a.wide_weight && inside && d < D, p.gate.weight, d);
  }
  float sum = 0;
#pragma unroll
  for (int c = 0; c < P::kChunks; ++c) {
    float values[P::kVec];
    x[c].unpack(values);
#pragma unroll
    for (int v = 0; v < P::kVec; ++v) sum += values[v] * values[v];
  }
  sum = device::sum_lanes<P::kLanes>(sum);
  const float factor = rsqrtf(sum / static_cast<float>(D) + static_cast<float>(p.gate.eps));
  Io* out = static_cast<Io*>(p.out.data) + p.out.offset(0, token, head);
#pragma unroll
  for (int c = 0; c < P::kChunks; ++c) {
    const int d = (c * P::kLanes + lane) * P::kVec;
    if (!inside || d >= D) continue;
    float values[P::kVec], gate[P::kVec], weight[P::kVec];
    const core::VectorView& w = p.gate.weight;
    if (a.wide_weight) {
      weights[c].unpack(w.dtype, weight);
    } else {
      device::load_numbers(w.data, w.dtype, d * w.stride, w.stride, weight);
    }
    x[c].unpack(values);
    z[c].unpack(gate);
#pragma unroll
    for (int v = 0; v < P::kVec; ++v) {
      const float open = p.gate.gate == Activation::kSilu ? device::silu_for<Io>(gate[v])
                                                          : device::sigmoid_for<Io>(gate[v]);
      values[v] *= factor * weight[v] * open;
    }
    device::Pack<Io, P::kVec> result;
    result.pack(values);
    result.store(out + d);
  }
}

}  // namespace hyla::norm
