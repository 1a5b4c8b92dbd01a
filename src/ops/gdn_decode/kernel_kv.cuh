// One-token decode, states [slots, HV, K, V] (V contiguous).
//
// A CTA owns kColumns value columns of one head and all of K; its warps split K. In a warp kLanes lanes
// lie along a line, 16 bytes each, and lane groups take kLoads neighbouring lines each, all loaded
// before any math. So a lane's elements of q and k lie side by side, too. The dots are summed over
// lane groups by shuffles and over warps through shared memory, the norms with them: one barrier.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_decode/arguments.cuh"

namespace hyla::gdn {

template <class State_, class Io_, Options O_, int K_, int Loads_, int Lanes_ = 8>
struct DecodeKvPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr Options kOptions = O_;
  static constexpr int kK = K_;
  static constexpr int kLoads = Loads_;  // 16-byte accesses in flight a thread
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kLanes = Lanes_;            // lanes along V
  static constexpr int kGroups = 32 / kLanes;      // lines of one access
  static constexpr int kLines = kLoads * kGroups;  // lines a warp owns
  static constexpr int kWarps = kK / kLines;
  static constexpr int kColumns = kLanes * kChunk;
  static constexpr int kOwn = kChunk / kGroups;  // columns whose sums a lane holds in the end
  static_assert(kWarps >= 1 && kK % kLines == 0 && kOwn >= 1);
};

// What the warps tell each other.
template <class P>
struct KvSums {
  float k_dot[P::kWarps][P::kColumns], q_dot[P::kWarps][P::kColumns];
  float kk[P::kWarps], qq[P::kWarps], qk[P::kWarps];
};

// Sums a lane's columns over the lane groups; group g keeps columns [g, g + 1) * kOwn of its lanes.
template <class P>
__device__ __forceinline__ void sum_lane_groups(float (&dot)[P::kChunk], int lane, float* to) {
  int half = P::kChunk / 2;
#pragma unroll
  for (int mask = 16; mask >= P::kLanes; mask /= 2, half /= 2) {
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int j = 0; j < half; ++j) {
      const float send = upper ? dot[j] : dot[j + half], keep = upper ? dot[j + half] : dot[j];
      dot[j] = keep + __shfl_xor_sync(device::kFullWarp, send, mask);
    }
  }
#pragma unroll
  for (int j = 0; j < P::kOwn; ++j) to[lane / P::kLanes * P::kOwn + j] = dot[j];
}

// q, k [B, H, K]; v, out [B, HV, V]; state [slots, HV, K, V]; grid (V / kColumns, HV, B)
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32)
    decode_kv(const __grid_constant__ DecodeArguments a) {
  using State = typename P::State;
  using Io = typename P::Io;
  __shared__ alignas(16) KvSums<P> sums;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int own_column = lane % P::kLanes * P::kChunk;
  const std::uint32_t row = blockIdx.z, head = blockIdx.y, key_head = key_head_of(a, head);
  const int first_column = static_cast<int>(blockIdx.x) * P::kColumns + own_column;
  const int first_line = warp * P::kLines + lane / P::kLanes * P::kLoads;
  arch::wait_for_previous_grid();

  // Everything is asked for before anything is waited for, but the state, which waits for the slot. A
  // padding row leaves after its loads, of which the state's are none.
  const Slot<P::kOptions> slot = read_slot<P::kOptions>(a, row);
  const auto load = [](auto& pack, const Io* from, bool wide) {
    if (P::kOptions == Options::kUsual || wide) {
      pack.load(from);
    } else {
      pack.load_unaligned(from);
    }
  };
  device::Pack<Io, P::kLoads> k_bits, q_bits;
  load(k_bits,
       static_cast<const Io*>(a.k) + at<P::kOptions>(a.k_stride, row, key_head) + first_line,
       a.wide_keys);
  load(q_bits,
       static_cast<const Io*>(a.q) + at<P::kOptions>(a.q_stride, row, key_head) + first_line,
       a.wide_keys);
  const GateBits gates =
      load_gates<P::kOptions, Io>(a, at<P::kOptions>(a.gate_stride, row, head),
                                  at<P::kOptions>(a.beta_stride, row, head), head);
  device::Pack<Io, P::kChunk> v_bits;
  load(v_bits, static_cast<const Io*>(a.v) + at<P::kOptions>(a.v_stride, row, head) + first_column,
       a.wide_values);
  const bool padding = is_null<P::kOptions>(a, slot);
  const std::int64_t line_stride = a.line_stride;
  const std::int64_t offset =
      head * static_cast<std::int64_t>(a.head_stride) + first_line * line_stride + first_column;
  const State* from_state =
      static_cast<const State*>(a.state) + static_cast<std::int64_t>(slot) * a.slot_stride + offset;
  device::Pack<State, P::kChunk> chunks[P::kLoads];
#pragma unroll
  for (int i = 0; i < P::kLoads; ++i) chunks[i].load_if(!padding, from_state + i * line_stride);
  const Slot<P::kOptions> write = write_slot<P::kOptions>(a, row, slot);

  float k[P::kLoads], q[P::kLoads], kk = 0, qq = 0, qk = 0;
  k_bits.unpack(k);
  q_bits.unpack(q);
#pragma unroll
  for (int i = 0; i < P::kLoads; ++i) {
    kk += k[i] * k[i];
    qq += q[i] * q[i];
    qk += q[i] * k[i];
  }
#pragma unroll
  for (int mask = P::kLanes; mask < 32; mask *= 2) {
    kk += __shfl_xor_sync(device::kFullWarp, kk, mask);
    qq += __shfl_xor_sync(device::kFullWarp, qq, mask);
    qk += __shfl_xor_sync(device::kFullWarp, qk, mask);
  }
  if (lane == 0) sums.kk[warp] = kk, sums.qq[warp] = qq, sums.qk[warp] = qk;
  const float alpha = alpha_of<P::kOptions, Io>(a, gates);
  const float beta = beta_of<P::kOptions, Io>(a, gates);

  float k_dot[P::kChunk] = {}, q_dot[P::kChunk] = {};
#pragma unroll
  for (int i = 0; i < P::kLoads; ++i) {
    float s[P::kChunk];
    chunks[i].unpack(s);
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) {
      k_dot[j] += s[j] * k[i];
      q_dot[j] += s[j] * q[i];
    }
  }
  sum_lane_groups<P>(k_dot, lane, &sums.k_dot[warp][own_column]);
  sum_lane_groups<P>(q_dot, lane, &sums.q_dot[warp][own_column]);
  __syncthreads();
  if (padding) return;

  kk = qq = qk = 0;
  float delta[P::kChunk] = {};
#pragma unroll
  for (int w = 0; w < P::kWarps; ++w) {
    kk += sums.kk[w];
    qq += sums.qq[w];
    qk += sums.qk[w];
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) delta[j] += sums.k_dot[w][own_column + j];
  }
  float k_factor = 1.0f, q_factor = a.scale;
  if (P::kOptions == Options::kUsual || a.l2norm) {
    k_factor = rsqrtf(kk + a.l2norm_eps);
    q_factor *= rsqrtf(qq + a.l2norm_eps);
  }
  float v[P::kChunk];
  v_bits.unpack(v);
#pragma unroll
  for (int j = 0; j < P::kChunk; ++j) delta[j] = beta * (v[j] - delta[j] * (k_factor * alpha));
  if (static_cast<int>(threadIdx.x) < P::kLanes) {
    float o[P::kChunk] = {};
#pragma unroll
    for (int w = 0; w < P::kWarps; ++w) {
#pragma unroll
      for (int j = 0; j < P::kChunk; ++j) o[j] += sums.q_dot[w][own_column + j];
    }
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) {
      o[j] = o[j] * (q_factor * alpha) + qk * k_factor * q_factor * delta[j];
    }
    Io* out = static_cast<Io*>(a.out) + at<P::kOptions>(a.out_stride, row, head) + first_column;
    if (P::kOptions == Options::kUsual || a.wide_values) {
      device::Pack<Io, P::kChunk> pack;
      pack.pack(o);
      pack.store(out);
    } else {
#pragma unroll
      for (int j = 0; j < P::kChunk; ++j) out[j] = device::from_float<Io>(o[j]);
    }
  }
  if (P::kOptions == Options::kAny && is_null<P::kOptions>(a, write)) return;

  State* to =
      static_cast<State*>(a.state) + static_cast<std::int64_t>(write) * a.slot_stride + offset;
#pragma unroll
  for (int i = 0; i < P::kLoads; ++i) {
    float s[P::kChunk];
    chunks[i].unpack(s);
    const float step = k[i] * k_factor;
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) s[j] = alpha * s[j] + step * delta[j];
    chunks[i].pack(s);
    chunks[i].store(to + i * line_stride);
  }
}

}  // namespace hyla::gdn
