// One-token decode, states [slots, HV, K, V] (V contiguous).
//
// A CTA owns kColumns value columns of one head and all of K. Warps split K; in a warp 8 lanes
// cover a 128-byte piece of a line and 4 lane groups take neighbouring lines, so every access is
// whole lines and 16 bytes a thread, all issued before any math. The dots are summed over lane
// groups by shuffles and over warps through shared memory: one barrier.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_decode/arguments.cuh"

namespace hyla::gdn {

template <class State_, class Io_, Options O_, int K_, int Loads_>
struct DecodeKvPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr Options kOptions = O_;
  static constexpr int kK = K_;
  static constexpr int kLoads = Loads_;  // 16-byte accesses in flight a thread
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kLanes = 8;                 // lanes along V: 128 bytes
  static constexpr int kGroups = 32 / kLanes;      // lines of one access
  static constexpr int kLines = kLoads * kGroups;  // lines a warp owns
  static constexpr int kWarps = kK / kLines;
  static constexpr int kColumns = kLanes * kChunk;
  static_assert(kWarps >= 1 && kK % kLines == 0 && kLines % 32 == 0);
};

// q, k [B, H, K]; v, out [B, HV, V]; state [slots, HV, K, V]; grid (V / kColumns, HV, B)
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32)
    decode_kv(const __grid_constant__ DecodeArguments a) {
  using State = typename P::State;
  using Io = typename P::Io;
  __shared__ float k_sums[P::kWarps][P::kColumns], q_sums[P::kWarps][P::kColumns];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int lane_in_line = lane % P::kLanes, group = lane / P::kLanes;
  const std::uint32_t row = blockIdx.z, head = blockIdx.y, key_head = key_head_of(a, head);
  const int first_column = static_cast<int>(blockIdx.x) * P::kColumns + lane_in_line * P::kChunk;
  const int first_line = warp * P::kLines;
  arch::wait_for_previous_grid();

  const std::int64_t slot = read_slot<P::kOptions>(a, row);
  const Io* k_from = static_cast<const Io*>(a.k) + at(a.k_stride, row, key_head);
  const Io* q_from = static_cast<const Io*>(a.q) + at(a.q_stride, row, key_head);
  // Lane l of the warp holds elements l, l + 32, ... of the warp's own lines first, then of all
  // lines for the norms.
  constexpr int kOwn = P::kLines / 32, kAll = P::kK / 32;
  Io q_own[kOwn], k_own[kOwn], q_all[kAll], k_all[kAll];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    q_own[i] = q_from[first_line + i * 32 + lane];
    k_own[i] = k_from[first_line + i * 32 + lane];
  }
#pragma unroll
  for (int i = 0; i < kAll; ++i) {
    q_all[i] = q_from[i * 32 + lane];
    k_all[i] = k_from[i * 32 + lane];
  }
  const GateBits gates = load_gates<P::kOptions, Io>(a, row, head);
  const Io* v_from = static_cast<const Io*>(a.v) + at(a.v_stride, row, head) + first_column;
  device::Pack<Io, P::kChunk> v_bits;
  if (P::kOptions == Options::kUsual || a.wide_values) {
    v_bits.load(v_from);
  } else {
    v_bits.load_unaligned(v_from);
  }
  const std::int64_t write = write_slot<P::kOptions>(a, row, slot);
  if (is_null(a, slot)) return;  // padding: the whole CTA leaves

  const std::int64_t line_stride = a.line_stride;
  const std::int64_t offset = head * static_cast<std::int64_t>(a.head_stride) +
                              (first_line + group) * line_stride + first_column;
  const State* from = static_cast<const State*>(a.state) + slot * a.slot_stride + offset;
  device::Pack<State, P::kChunk> chunks[P::kLoads];
#pragma unroll
  for (int i = 0; i < P::kLoads; ++i) chunks[i].load(from + i * P::kGroups * line_stride);

  float kk = 0, qq = 0, qk = 0;
#pragma unroll
  for (int i = 0; i < kAll; ++i) {
    const float x = device::to_float(k_all[i]), y = device::to_float(q_all[i]);
    kk += x * x;
    qq += y * y;
    qk += x * y;
  }
  float k_factor = 1.0f, q_factor = a.scale;
  if (P::kOptions == Options::kUsual || a.l2norm) {
    k_factor = rsqrtf(device::sum_lanes<32>(kk) + a.l2norm_eps);
    q_factor *= rsqrtf(device::sum_lanes<32>(qq) + a.l2norm_eps);
  }
  qk = device::sum_lanes<32>(qk) * k_factor * q_factor;
  const float alpha = alpha_of<P::kOptions, Io>(a, gates);
  const float beta = beta_of<P::kOptions, Io>(a, gates);
  float k[P::kLoads], q[P::kLoads];
#pragma unroll
  for (int i = 0; i < P::kLoads; ++i) {
    const int line = i * P::kGroups;  // + group, inside the warp's lines
    k[i] = __shfl_sync(device::kFullWarp, device::to_float(k_own[line / 32]), line % 32 + group);
    q[i] = __shfl_sync(device::kFullWarp, device::to_float(q_own[line / 32]), line % 32 + group);
  }

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
  // Sum over the 4 lane groups; group g keeps a quarter of the columns of its lanes.
  constexpr int kQuarter = P::kChunk / P::kGroups;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float(&dot)[P::kChunk] = part == 0 ? k_dot : q_dot;
    constexpr int kHalf = P::kChunk / 2;
    const bool upper = (group & 2) != 0;
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      const float send = upper ? dot[j] : dot[j + kHalf], keep = upper ? dot[j + kHalf] : dot[j];
      dot[j] = keep + __shfl_xor_sync(device::kFullWarp, send, 2 * P::kLanes);
    }
    const bool odd = (group & 1) != 0;
#pragma unroll
    for (int j = 0; j < kQuarter; ++j) {
      const float send = odd ? dot[j] : dot[j + kQuarter], keep = odd ? dot[j + kQuarter] : dot[j];
      dot[j] = keep + __shfl_xor_sync(device::kFullWarp, send, P::kLanes);
    }
#pragma unroll
    for (int j = 0; j < kQuarter; ++j) {
      (part == 0 ? k_sums : q_sums)[warp][lane_in_line * P::kChunk + group * kQuarter + j] = dot[j];
    }
  }
  __syncthreads();

  float delta[P::kChunk] = {}, qS[P::kChunk] = {};
#pragma unroll
  for (int w = 0; w < P::kWarps; ++w) {
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) delta[j] += k_sums[w][lane_in_line * P::kChunk + j];
  }
  float v[P::kChunk];
  v_bits.unpack(v);
#pragma unroll
  for (int j = 0; j < P::kChunk; ++j) delta[j] = beta * (v[j] - delta[j] * k_factor * alpha);
  if (warp == 0 && group == 0) {
#pragma unroll
    for (int w = 0; w < P::kWarps; ++w) {
#pragma unroll
      for (int j = 0; j < P::kChunk; ++j) qS[j] += q_sums[w][lane_in_line * P::kChunk + j];
    }
    Io* out = static_cast<Io*>(a.out) + at(a.out_stride, row, head) + first_column;
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) {
      out[j] = device::from_float<Io>(qS[j] * q_factor * alpha + qk * delta[j]);
    }
  }
  if (P::kOptions == Options::kAny && is_null(a, write)) return;

  State* to = static_cast<State*>(a.state) + write * a.slot_stride + offset;
#pragma unroll
  for (int i = 0; i < P::kLoads; ++i) {
    float s[P::kChunk];
    chunks[i].unpack(s);
    const float step = k[i] * k_factor;
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) s[j] = alpha * s[j] + step * delta[j];
    chunks[i].pack(s);
    chunks[i].store(to + i * P::kGroups * line_stride);
  }
}

}  // namespace hyla::gdn
