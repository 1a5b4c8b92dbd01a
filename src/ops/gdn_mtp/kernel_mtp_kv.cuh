// Several tokens a row, states [slots, HV, K, V] (V contiguous), one token after another.
//
// A CTA owns 128 bytes of value columns and all of K, as the one-token kernel does, and keeps its
// part of the state in registers over all tokens of the row. Warps split K. Once a token they
// exchange their parts of the two dots and of the norms through shared memory; two buffers taken in
// turns make one barrier a token enough.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/dtype.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_mtp/arguments.cuh"
#include "ops/gdn_rows/gates.cuh"

namespace hyla::gdn {

template <class State_, class Io_, int K_>
struct MtpKvPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr int kK = K_;
  static constexpr int kLoads = 8;  // 16-byte accesses of a thread's part of the state
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kLanes = 8;                 // lanes along V: 128 bytes
  static constexpr int kGroups = 32 / kLanes;      // lines of one access
  static constexpr int kLines = kLoads * kGroups;  // lines a warp owns
  static constexpr int kWarps = kK / kLines;
  static constexpr int kColumns = kLanes * kChunk;
  static_assert(kLines == 32, "a lane holds one element of q and k");
};

// What the warps of a CTA tell each other about one token.
template <class P>
struct MtpSums {
  float k_dot[P::kWarps][P::kColumns], q_dot[P::kWarps][P::kColumns];
  float kk[P::kWarps], qq[P::kWarps], qk[P::kWarps];
};

// A thread's part of the state: lines group, group + kGroups, ... of its warp, kChunk columns of
// each.
template <class P>
struct MtpLines {
  float s[P::kLoads][P::kChunk];

  __device__ __forceinline__ void load(const PoolView& pool, std::int64_t offset) {
    using State = typename P::State;
    device::Pack<State, P::kChunk> packs[P::kLoads];
    const State* from = static_cast<const State*>(pool.data) + offset;
#pragma unroll
    for (int i = 0; i < P::kLoads; ++i) packs[i].load(from + i * P::kGroups * pool.k_stride);
#pragma unroll
    for (int i = 0; i < P::kLoads; ++i) packs[i].unpack(s[i]);
  }

  __device__ __forceinline__ void store(const PoolView& pool, std::int64_t offset) const {
    using State = typename P::State;
    State* to = static_cast<State*>(pool.data) + offset;
#pragma unroll
    for (int i = 0; i < P::kLoads; ++i) {
      device::Pack<State, P::kChunk> pack;
      pack.pack(s[i]);
      pack.store(to + i * P::kGroups * pool.k_stride);
    }
  }
};

// Sums a thread's columns over the 4 lane groups; group g ends with columns [g, g + 1) * kChunk / 4
// of its lanes.
template <class P>
__device__ __forceinline__ void sum_groups(float (&dot)[P::kChunk], int group, float* to) {
  constexpr int kHalf = P::kChunk / 2, kQuarter = P::kChunk / 4;
  const bool upper = (group & 2) != 0, odd = (group & 1) != 0;
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    const float send = upper ? dot[j] : dot[j + kHalf], keep = upper ? dot[j + kHalf] : dot[j];
    dot[j] = keep + __shfl_xor_sync(device::kFullWarp, send, 2 * P::kLanes);
  }
#pragma unroll
  for (int j = 0; j < kQuarter; ++j) {
    const float send = odd ? dot[j] : dot[j + kQuarter], keep = odd ? dot[j + kQuarter] : dot[j];
    to[group * kQuarter + j] = keep + __shfl_xor_sync(device::kFullWarp, send, P::kLanes);
  }
}

// q, k [.., H, K]; v, out [.., HV, V]; state [slots, HV, K, V]; grid (V / kColumns, HV, B)
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32) mtp_kv(const __grid_constant__ MtpArguments a) {
  using Io = typename P::Io;
  __shared__ MtpSums<P> sums[2];
  const MtpProblem& p = a.p;
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int lane_in_line = lane % P::kLanes, group = lane / P::kLanes;
  const int head = static_cast<int>(blockIdx.y);
  const int key_head = head / static_cast<int>(p.heads / p.k_heads);
  const int own_column = lane_in_line * P::kChunk;
  const int first_column = static_cast<int>(blockIdx.x) * P::kColumns + own_column;
  const int first_line = warp * P::kLines;
  const std::int64_t row = blockIdx.z;
  arch::wait_for_previous_grid();
  MtpRow span;
  if (!find_row(a, row, span)) return;  // padding: the whole CTA leaves

  const auto place = [&](const PoolView& pool, std::int64_t slot) {
    return slot * pool.slot_stride + head * pool.head_stride +
           (first_line + group) * pool.k_stride + first_column;
  };
  MtpLines<P> state;
  state.load(p.initial, place(p.initial, span.read));
  const auto keep = [&](std::int64_t slot) {
    if (slot != core::kNullSlot) state.store(p.final, place(p.final, slot));
  };
  if (span.commit == 0) keep(span.write);
  float lane_alpha = 1, lane_beta = 1;
  for (std::int64_t t = 0; t < span.length; ++t) {
    const std::int64_t token = span.begin + t;
    const float k_own = device::to_float(
        static_cast<const Io*>(p.k.data)[p.k.offset(row, token, key_head, first_line + lane)]);
    const float q_own = device::to_float(
        static_cast<const Io*>(p.q.data)[p.q.offset(row, token, key_head, first_line + lane)]);
    device::Pack<Io, P::kChunk> v_bits;
    v_bits.load(static_cast<const Io*>(p.v.data) + p.v.offset(row, token, head, first_column));
    if (t % 32 == 0 && t + lane < span.length) {
      lane_alpha = gate_alpha(p.gate, row, token + lane, head);
      lane_beta = gate_beta(p.beta, row, token + lane, head);
    }
    const float alpha = __shfl_sync(device::kFullWarp, lane_alpha, static_cast<int>(t % 32));
    const float beta = __shfl_sync(device::kFullWarp, lane_beta, static_cast<int>(t % 32));

    float k[P::kLoads], q[P::kLoads], k_dot[P::kChunk] = {}, q_dot[P::kChunk] = {};
#pragma unroll
    for (int i = 0; i < P::kLoads; ++i) {
      k[i] = __shfl_sync(device::kFullWarp, k_own, i * P::kGroups + group);
      q[i] = __shfl_sync(device::kFullWarp, q_own, i * P::kGroups + group);
#pragma unroll
      for (int j = 0; j < P::kChunk; ++j) {
        k_dot[j] += state.s[i][j] * k[i];
        q_dot[j] += state.s[i][j] * q[i];
      }
    }
    MtpSums<P>& shared = sums[t % 2];
    sum_groups<P>(k_dot, group, &shared.k_dot[warp][own_column]);
    sum_groups<P>(q_dot, group, &shared.q_dot[warp][own_column]);
    const float kk = device::sum_lanes<32>(k_own * k_own),
                qq = device::sum_lanes<32>(q_own * q_own);
    const float qk = device::sum_lanes<32>(q_own * k_own);
    if (lane == 0) shared.kk[warp] = kk, shared.qq[warp] = qq, shared.qk[warp] = qk;
    __syncthreads();

    float kk_all = 0, qq_all = 0, qk_all = 0, delta[P::kChunk] = {}, v[P::kChunk];
#pragma unroll
    for (int w = 0; w < P::kWarps; ++w) {
      kk_all += shared.kk[w];
      qq_all += shared.qq[w];
      qk_all += shared.qk[w];
#pragma unroll
      for (int j = 0; j < P::kChunk; ++j) delta[j] += shared.k_dot[w][own_column + j];
    }
    float k_factor = 1.0f, q_factor = static_cast<float>(p.scale);
    if (p.l2norm) {
      k_factor = rsqrtf(kk_all + static_cast<float>(p.l2norm_eps));
      q_factor *= rsqrtf(qq_all + static_cast<float>(p.l2norm_eps));
    }
    v_bits.unpack(v);
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) delta[j] = beta * (v[j] - delta[j] * k_factor * alpha);
    if (warp == 0 && group == 0) {
      float o[P::kChunk] = {};
#pragma unroll
      for (int w = 0; w < P::kWarps; ++w) {
#pragma unroll
        for (int j = 0; j < P::kChunk; ++j) o[j] += shared.q_dot[w][own_column + j];
      }
#pragma unroll
      for (int j = 0; j < P::kChunk; ++j) {
        o[j] = o[j] * q_factor * alpha + qk_all * k_factor * q_factor * delta[j];
        static_cast<Io*>(p.out.data)[p.out.offset(row, token, head, first_column + j)] =
            device::from_float<Io>(o[j]);
      }
    }
#pragma unroll
    for (int i = 0; i < P::kLoads; ++i) {
      const float step = k[i] * k_factor;
#pragma unroll
      for (int j = 0; j < P::kChunk; ++j) state.s[i][j] = alpha * state.s[i][j] + step * delta[j];
    }
    if (p.states_out.present() && t < p.states_out.slots) {
      state.store(p.states_out, row * p.states_out_row_stride + place(p.states_out, t));
    }
    if (p.step_slots.present() && t < p.step_slots.columns) {
      keep(p.slots.checked(p.step_slots.at(row, t), p.final.slots));
    }
    if (t + 1 == span.commit) keep(span.write);
  }
}

}  // namespace hyla::gdn
