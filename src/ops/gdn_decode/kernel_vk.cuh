// One-token decode, states [slots, HV, V, K] (K contiguous).
//
// A warp owns kRows value rows of one head: it loads them whole, in 16-byte accesses that are all
// issued before any math, and both dots (k.S and q.S), the update and the store happen in
// registers. No shared memory, no barrier. o follows from the old state: q.S' = alpha q.S + (q.k)
// delta, so one sweep is enough.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/registers.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_decode/arguments.cuh"

namespace hyla::gdn {

template <class State_, class Io_, Options O_, int K_, int Loads_, int Warps_>
struct DecodeVkPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr Options kOptions = O_;
  static constexpr int kK = K_;
  static constexpr int kLoads = Loads_;  // 16-byte accesses in flight a thread
  static constexpr int kWarps = Warps_;  // warps never talk to each other
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kLanes = kK / kChunk < 32 ? kK / kChunk : 32;  // lanes across a row
  static constexpr int kChunks = kK / (kChunk * kLanes);  // accesses of a lane in one row
  static constexpr int kRowsPerLane = kLoads / kChunks;
  static constexpr int kRowsPerAccess = 32 / kLanes;
  static constexpr int kRows = kRowsPerLane * kRowsPerAccess;  // value rows a warp owns
  static constexpr int kColumns = kChunk * kChunks;            // K elements a lane holds
  static_assert(kRowsPerLane <= kLanes && kRowsPerLane >= 1);
};

// A lane's elements of q or k, as they lie in memory: chunk c covers columns (c * kLanes + lane) *
// kChunk.
template <class P>
struct KeyBits {
  device::Pack<typename P::Io, P::kChunk> packs[P::kChunks];

  __device__ __forceinline__ void load(const typename P::Io* from, bool wide, int lane_in_row) {
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
      const typename P::Io* chunk = from + (c * P::kLanes + lane_in_row) * P::kChunk;
      if (P::kOptions == Options::kUsual || wide) {
        packs[c].load(chunk);
      } else {
        packs[c].load_unaligned(chunk);
      }
    }
  }
  __device__ __forceinline__ void unpack(float (&x)[P::kColumns]) const {
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
      float values[P::kChunk];
      packs[c].unpack(values);
#pragma unroll
      for (int i = 0; i < P::kChunk; ++i) x[c * P::kChunk + i] = values[i];
    }
  }
};

// q, k [B, H, K]; v, out [B, HV, V]; state [slots, HV, V, K]; grid (V / (kRows * kWarps), HV, B)
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32)
    decode_vk(const __grid_constant__ DecodeArguments a) {
  using State = typename P::State;
  using Io = typename P::Io;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int lane_in_row = lane % P::kLanes, group = lane / P::kLanes;
  // Opaque, so that addresses are not made in the slower uniform datapath.
  const std::uint32_t row = arch::opaque(blockIdx.z), head = arch::opaque(blockIdx.y);
  const std::uint32_t key_head = key_head_of(a, head);
  const int first_value = (static_cast<int>(blockIdx.x) * P::kWarps + warp) * P::kRows;
  const std::int64_t line_stride = P::kOptions == Options::kUsual ? P::kK : a.line_stride;
  arch::wait_for_previous_grid();

  const Slot<P::kOptions> slot = read_slot<P::kOptions>(a, row);
  if (is_null<P::kOptions>(a, slot)) return;  // padding: the whole grid row leaves
  const std::int64_t offset = head * static_cast<std::int64_t>(a.head_stride) +
                              (first_value + group) * line_stride + lane_in_row * P::kChunk;
  const State* from =
      static_cast<const State*>(a.state) + static_cast<std::int64_t>(slot) * a.slot_stride + offset;
  device::Pack<State, P::kChunk> chunks[P::kRowsPerLane][P::kChunks];
#pragma unroll
  for (int r = 0; r < P::kRowsPerLane; ++r) {
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
      chunks[r][c].load_first(from + r * P::kRowsPerAccess * line_stride +
                              c * P::kLanes * P::kChunk);
    }
  }
  KeyBits<P> k_bits, q_bits;
  k_bits.load(static_cast<const Io*>(a.k) + at<P::kOptions>(a.k_stride, row, key_head), a.wide_keys,
              lane_in_row);
  q_bits.load(static_cast<const Io*>(a.q) + at<P::kOptions>(a.q_stride, row, key_head), a.wide_keys,
              lane_in_row);
  const GateBits gates =
      load_gates<P::kOptions, Io>(a, at<P::kOptions>(a.gate_stride, row, head),
                                  at<P::kOptions>(a.beta_stride, row, head), head);
  // After the sums below lane l holds row l % kRowsPerLane of its group.
  const int own_row = first_value + lane_in_row % P::kRowsPerLane * P::kRowsPerAccess + group;
  const Io v_bits = static_cast<const Io*>(a.v)[at<P::kOptions>(a.v_stride, row, head) + own_row];
  const Slot<P::kOptions> write = write_slot<P::kOptions>(a, row, slot);

  float q[P::kColumns], k[P::kColumns];
  k_bits.unpack(k);
  q_bits.unpack(q);
  float kk = 0, qq = 0, qk = 0;
#pragma unroll
  for (int i = 0; i < P::kColumns; ++i) {
    kk += k[i] * k[i];
    qq += q[i] * q[i];
    qk += q[i] * k[i];
  }
  float k_factor = 1.0f, q_factor = a.scale;
  if (P::kOptions == Options::kUsual || a.l2norm) {
    k_factor = rsqrtf(device::sum_lanes<P::kLanes>(kk) + a.l2norm_eps);
    q_factor *= rsqrtf(device::sum_lanes<P::kLanes>(qq) + a.l2norm_eps);
  }
  qk = device::sum_lanes<P::kLanes>(qk) * k_factor * q_factor;
  const float alpha = alpha_of<P::kOptions, Io>(a, gates);
  const float beta = beta_of<P::kOptions, Io>(a, gates);

  float k_dot[P::kRowsPerLane], q_dot[P::kRowsPerLane];
#pragma unroll
  for (int r = 0; r < P::kRowsPerLane; ++r) {
    k_dot[r] = q_dot[r] = 0;
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
      float s[P::kChunk];
      chunks[r][c].unpack(s);
#pragma unroll
      for (int i = 0; i < P::kChunk; ++i) {
        k_dot[r] += s[i] * k[c * P::kChunk + i];
        q_dot[r] += s[i] * q[c * P::kChunk + i];
      }
    }
  }
  const float kS = device::reduce_scatter<P::kLanes>(k_dot) * k_factor * alpha;
  const float qS = device::reduce_scatter<P::kLanes>(q_dot) * q_factor * alpha;
  const float delta = beta * (device::to_float(v_bits) - kS);
  if (lane_in_row < P::kRowsPerLane) {
    static_cast<Io*>(a.out)[at<P::kOptions>(a.out_stride, row, head) + own_row] =
        device::from_float<Io>(qS + qk * delta);
  }
  if (P::kOptions == Options::kAny && is_null<P::kOptions>(a, write)) return;

  State* to =
      static_cast<State*>(a.state) + static_cast<std::int64_t>(write) * a.slot_stride + offset;
  const float step = delta * k_factor;
#pragma unroll
  for (int r = 0; r < P::kRowsPerLane; ++r) {
    const float d = __shfl_sync(device::kFullWarp, step, group * P::kLanes + r);
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
      float s[P::kChunk];
      chunks[r][c].unpack(s);
#pragma unroll
      for (int i = 0; i < P::kChunk; ++i) s[i] = alpha * s[i] + d * k[c * P::kChunk + i];
      chunks[r][c].pack(s);
      chunks[r][c].store(to + r * P::kRowsPerAccess * line_stride + c * P::kLanes * P::kChunk);
    }
  }
}

}  // namespace hyla::gdn
