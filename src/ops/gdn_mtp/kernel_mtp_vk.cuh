// Several tokens a row, states [slots, HV, V, K] (K contiguous), one token after another.
//
// A warp owns kRows value rows of one head and keeps them in registers over all its tokens, as the
// one-token kernel does; nothing is shared between warps. Gates are computed for 32 tokens at once,
// a token a lane. The q, k and v of the next token are asked for before the current one is worked
// on.
#pragma once

#include "arch/grid_dependency.cuh"
#include "device/dtype.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_mtp/arguments.cuh"
#include "ops/gdn_rows/gates.cuh"

namespace hyla::gdn {

template <class State_, class Io_, int K_, int Loads_>
struct MtpVkPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr int kK = K_;
  static constexpr int kLoads = Loads_;  // 16-byte accesses of a thread's part of the state
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kLanes = kK / kChunk < 32 ? kK / kChunk : 32;  // lanes across a row
  static constexpr int kChunks = kK / (kChunk * kLanes);  // accesses of a lane in one row
  static constexpr int kRowsPerLane = kLoads / kChunks;
  static constexpr int kRowsPerAccess = 32 / kLanes;
  static constexpr int kRows = kRowsPerLane * kRowsPerAccess;
  static constexpr int kColumns = kChunk * kChunks;  // K elements a lane holds
  static_assert(kRowsPerLane <= kLanes && kRowsPerLane >= 1);
};

// Where a warp's rows lie inside a state: offsets of its first element and of its rows and chunks.
template <class P>
struct MtpRows {
  float s[P::kRowsPerLane][P::kColumns];

  __device__ __forceinline__ void load(const PoolView& pool, std::int64_t offset) {
    device::Pack<typename P::State, P::kChunk> packs[P::kRowsPerLane][P::kChunks];
    const auto* from = static_cast<const typename P::State*>(pool.data) + offset;
#pragma unroll
    for (int r = 0; r < P::kRowsPerLane; ++r) {
#pragma unroll
      for (int c = 0; c < P::kChunks; ++c) {
        packs[r][c].load(from + r * P::kRowsPerAccess * pool.v_stride + c * P::kLanes * P::kChunk);
      }
    }
#pragma unroll
    for (int r = 0; r < P::kRowsPerLane; ++r) {
#pragma unroll
      for (int c = 0; c < P::kChunks; ++c) {
        float values[P::kChunk];
        packs[r][c].unpack(values);
#pragma unroll
        for (int i = 0; i < P::kChunk; ++i) s[r][c * P::kChunk + i] = values[i];
      }
    }
  }

  __device__ __forceinline__ void store(const PoolView& pool, std::int64_t offset) const {
    auto* to = static_cast<typename P::State*>(pool.data) + offset;
#pragma unroll
    for (int r = 0; r < P::kRowsPerLane; ++r) {
#pragma unroll
      for (int c = 0; c < P::kChunks; ++c) {
        float values[P::kChunk];
#pragma unroll
        for (int i = 0; i < P::kChunk; ++i) values[i] = s[r][c * P::kChunk + i];
        device::Pack<typename P::State, P::kChunk> pack;
        pack.pack(values);
        pack.store(to + r * P::kRowsPerAccess * pool.v_stride + c * P::kLanes * P::kChunk);
      }
    }
  }
};

// A lane's q, k and v of one token, as they lie in memory.
template <class P>
struct TokenBits {
  device::Pack<typename P::Io, P::kChunk> q[P::kChunks], k[P::kChunks];
  typename P::Io v;

  __device__ __forceinline__ void load(const MtpProblem& p, std::int64_t row, std::int64_t token,
                                       int head, int key_head, int lane_in_row, int own_row) {
    using Io = typename P::Io;
    const Io* k_from = static_cast<const Io*>(p.k.data) + p.k.offset(row, token, key_head);
    const Io* q_from = static_cast<const Io*>(p.q.data) + p.q.offset(row, token, key_head);
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
      k[c].load(k_from + (c * P::kLanes + lane_in_row) * P::kChunk);
      q[c].load(q_from + (c * P::kLanes + lane_in_row) * P::kChunk);
    }
    v = static_cast<const Io*>(p.v.data)[p.v.offset(row, token, head, own_row)];
  }

  static __device__ __forceinline__ void unpack(
      const device::Pack<typename P::Io, P::kChunk> (&packs)[P::kChunks], float (&x)[P::kColumns]) {
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
      float values[P::kChunk];
      packs[c].unpack(values);
#pragma unroll
      for (int i = 0; i < P::kChunk; ++i) x[c * P::kChunk + i] = values[i];
    }
  }
};

// q, k [.., H, K]; v, out [.., HV, V]; state [slots, HV, V, K]; one warp; grid (V / kRows, HV, B)
// 20 CTAs an SM: 96 registers; left alone it takes 128, with 24 CTAs it spills.
template <class P>
__global__ void __launch_bounds__(32, 20) mtp_vk(const __grid_constant__ MtpArguments a) {
  const MtpProblem& p = a.p;
  const int lane = static_cast<int>(threadIdx.x);
  const int lane_in_row = lane % P::kLanes, group = lane / P::kLanes;
  const std::int64_t row = blockIdx.z;
  const int head = static_cast<int>(blockIdx.y);
  const int key_head = head / static_cast<int>(p.heads / p.k_heads);
  const int first_value = static_cast<int>(blockIdx.x) * P::kRows;
  // After the sums below lane l holds row l % kRowsPerLane of its group.
  const int own_row = first_value + lane_in_row % P::kRowsPerLane * P::kRowsPerAccess + group;
  arch::wait_for_previous_grid();

  MtpRow span;
  if (!find_row(a, row, span)) return;
  const std::int64_t place = (first_value + group) * p.initial.v_stride + lane_in_row * P::kChunk;
  const std::int64_t place_in_steps = (first_value + group) * p.states_out.v_stride +
                                      lane_in_row * P::kChunk + row * p.states_out_row_stride +
                                      head * p.states_out.head_stride;

  MtpRows<P> state;
  state.load(p.initial, span.read * p.initial.slot_stride + head * p.initial.head_stride + place);
  const auto keep = [&](std::int64_t slot) {
    if (slot == core::kNullSlot) return;
    state.store(p.final, slot * p.final.slot_stride + head * p.final.head_stride + place);
  };
  if (span.commit == 0) keep(span.write);
  TokenBits<P> next;
  if (span.length > 0) next.load(p, row, span.begin, head, key_head, lane_in_row, own_row);
  float lane_alpha = 1, lane_beta = 1;
  for (std::int64_t t = 0; t < span.length; ++t) {
    const std::int64_t token = span.begin + t;
    if (t % 32 == 0 && t + lane < span.length) {
      lane_alpha = gate_alpha(p.gate, row, token + lane, head);
      lane_beta = gate_beta(p.beta, row, token + lane, head);
    }
    const float alpha = __shfl_sync(device::kFullWarp, lane_alpha, static_cast<int>(t % 32));
    const float beta = __shfl_sync(device::kFullWarp, lane_beta, static_cast<int>(t % 32));
    float q[P::kColumns], k[P::kColumns];
    TokenBits<P>::unpack(next.q, q);
    TokenBits<P>::unpack(next.k, k);
    const float v = device::to_float(next.v);
    if (t + 1 < span.length) next.load(p, row, token + 1, head, key_head, lane_in_row, own_row);

    float kk = 0, qq = 0, qk = 0;
#pragma unroll
    for (int i = 0; i < P::kColumns; ++i) {
      kk += k[i] * k[i];
      qq += q[i] * q[i];
      qk += q[i] * k[i];
    }
    float k_factor = 1.0f, q_factor = static_cast<float>(p.scale);
    if (p.l2norm) {
      const float eps = static_cast<float>(p.l2norm_eps);
      k_factor = rsqrtf(device::sum_lanes<P::kLanes>(kk) + eps);
      q_factor *= rsqrtf(device::sum_lanes<P::kLanes>(qq) + eps);
    }
    qk = device::sum_lanes<P::kLanes>(qk) * k_factor * q_factor;
    float k_dot[P::kRowsPerLane] = {}, q_dot[P::kRowsPerLane] = {};
#pragma unroll
    for (int r = 0; r < P::kRowsPerLane; ++r) {
#pragma unroll
      for (int i = 0; i < P::kColumns; ++i) {
        k_dot[r] += state.s[r][i] * k[i];
        q_dot[r] += state.s[r][i] * q[i];
      }
    }
    const float kS = device::reduce_scatter<P::kLanes>(k_dot) * k_factor * alpha;
    const float qS = device::reduce_scatter<P::kLanes>(q_dot) * q_factor * alpha;
    const float delta = beta * (v - kS);
    if (lane_in_row < P::kRowsPerLane) {
      static_cast<typename P::Io*>(p.out.data)[p.out.offset(row, token, head, own_row)] =
          device::from_float<typename P::Io>(qS + qk * delta);
    }
    const float step = delta * k_factor;
#pragma unroll
    for (int r = 0; r < P::kRowsPerLane; ++r) {
      const float d = __shfl_sync(device::kFullWarp, step, group * P::kLanes + r);
#pragma unroll
      for (int i = 0; i < P::kColumns; ++i) state.s[r][i] = alpha * state.s[r][i] + d * k[i];
    }
    if (p.states_out.present() && t < p.states_out.slots) {
      state.store(p.states_out, place_in_steps + t * p.states_out.slot_stride);
    }
    if (p.step_slots.present() && t < p.step_slots.columns) {
      keep(p.slots.checked(p.step_slots.at(row, t), p.final.slots));
    }
    if (t + 1 == span.commit) keep(span.write);
  }
}

}  // namespace hyla::gdn
