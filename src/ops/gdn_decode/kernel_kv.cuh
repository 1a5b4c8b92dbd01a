// One-token decode, states [slots, HV, K, V] (V contiguous).
//
// A CTA owns kColumns value columns of one head and all of K; its warps split K. In a warp kLanes
// lanes lie along a line, 16 bytes each or 8, and lane groups take kLoads neighbouring lines each, all
// loaded before any math. So a lane's elements of q and k lie side by side, too. The dots are
// summed over lane groups by shuffles and over warps through shared memory: one barrier. One warp
// more owns no lines: it makes the token's scalars meanwhile, and o at the end.
#pragma once

#include "arch/barrier_arrival.cuh"
#include "arch/grid_dependency.cuh"
#include "arch/named_barrier.cuh"
#include "arch/registers.cuh"
#include "ops/gdn_decode/gated_epilogue.cuh"
#include "ops/gdn_decode/requests.cuh"
#include "ops/gdn_decode/token_scalars.cuh"

namespace hyla::gdn {

template <class State_, class Io_, Options O_, int K_, int Loads_, int Lanes_, bool Served_,
          bool Early_ = false, bool Spread_ = false, bool Again_ = false, int Resident_ = 0,
          bool Gated_ = false, bool Staged_ = false, bool Half_ = false, bool Dense_ = false>
struct DecodeKvPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr Options kOptions = O_;
  static constexpr int kK = K_;
  static constexpr int kLoads = Loads_;  // accesses in flight a thread
  static constexpr bool kHalf = Half_;   // of 8 bytes instead of 16
  static constexpr int kChunk = device::kPerChunk<State> / (kHalf ? 2 : 1);
  static constexpr int kLanes = Lanes_;            // lanes along V
  static constexpr int kGroups = 32 / kLanes;      // lines of one access
  static constexpr int kLines = kLoads * kGroups;  // lines a warp owns
  static constexpr int kWarps = kK / kLines;       // that own lines
  static constexpr int kThreads = 32 * (kWarps + 1);
  static constexpr int kColumns = kLanes * kChunk;
  static constexpr bool kServed = Served_;  // the warp without lines sums the columns for all
  static constexpr bool kEarly = Early_;    // and does it while they make their sums with q
  static constexpr bool kSpread = Spread_;  // or they do, one sum a thread
  static constexpr bool kStaged = Staged_;  // the state waits in shared memory
  static constexpr bool kAgain = Again_ && sizeof(State) == 2 && !kStaged;  // forget()
  static constexpr int kCtas = Resident_ > 0 ? Resident_ / (kWarps + 1) : kWarps > 8 ? 1 : 0;
  static constexpr bool kDense = Dense_;  // the lines lie side by side: V = K
  static constexpr bool kGated = Gated_;  // gated_epilogue.cuh
  // The server hands out the steps before it adds up for o: faster with a cluster, else not.
  static constexpr bool kStepsFirst = kEarly || (kGated && kServed && !kSpread);
  static constexpr int kHeadCtas = gdn::kHeadCtas<kGated, kColumns>;
  // Pieces of 64 and of 128 bytes of a line: L2 gets twice as many, the other half for the CTA
  // beside this one. Whole lines, pieces of 256 bytes and those of 128 with the norm lose by it.
  static constexpr int kPieceBytes = kColumns * static_cast<int>(sizeof(State));
  static constexpr int kAround = kPieceBytes > (kGated ? 64 : 128) ? 0 : 2 * kPieceBytes;
  using Lines = std::conditional_t<kStaged, StagedPieces<State, kLoads, 32 * kWarps, kAround>,
                                   std::conditional_t<kHalf, HalfPieces<State, kLoads, kAround>,
                                                      RegisterPieces<State, kLoads, kAround>>>;
  static constexpr int kStageBytes = kStaged ? 16 * kLoads * 32 * kWarps : 0;  // dynamic
  static_assert(kWarps >= 1 && kK % kLines == 0);
  static_assert(!kHalf || (sizeof(State) == 2 && !kStaged));
  static_assert(kServed || (!kEarly && !kSpread));
  static_assert(!kSpread || (!kEarly && 2 * kColumns < kThreads));
};

// What the warps tell each other.
template <class P>
struct KvShared {
  TokenScalars token;
  UnpackAgainIf<P::kAgain> again;
  alignas(16) float k_dot[P::kWarps][P::kColumns];
  alignas(16) float q_dot[P::kWarps][P::kColumns];
  alignas(16) float v[P::kColumns];
  HeadValuesIf<P::kGated> head;
};

// Sums a lane's columns over the lane groups into `to`, which has a place for each column of the
// lane.
template <class P>
__device__ __forceinline__ void sum_lane_groups(float (&dot)[P::kChunk], int lane, float* to) {
  int kept = P::kChunk, same = 0;  // columns of this lane, lanes that hold the same
#pragma unroll
  for (int mask = 16; mask >= P::kLanes; mask /= 2) {
    if (kept == 1) {
      dot[0] += __shfl_xor_sync(device::kFullWarp, dot[0], mask);
      same |= mask;
      continue;
    }
    kept /= 2;
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int j = 0; j < P::kChunk / 2; ++j) {
      if (j >= kept) continue;
      const float send = upper ? dot[j] : dot[j + kept], keep = upper ? dot[j + kept] : dot[j];
      dot[j] = keep + __shfl_xor_sync(device::kFullWarp, send, mask);
    }
    if (upper) to += kept;
  }
  if ((lane & same) != 0) return;
#pragma unroll
  for (int j = 0; j < P::kChunk; ++j) {
    if (j < kept) to[j] = dot[j];
  }
}

// The barrier at which the sums with k are there. Early: the warps with lines do not wait, they go
// on to q.
template <class P>
__device__ __forceinline__ void sync_sums() {
  if constexpr (P::kEarly) {
    arch::sync_threads(1, P::kThreads);
  } else {
    __syncthreads();
  }
}

template <class P>
__device__ __forceinline__ float sum_column(const float (&dots)[P::kWarps][P::kColumns],
                                            int column) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < P::kWarps; ++w) sum += dots[w][column];
  return sum;
}

__device__ __forceinline__ float output_of(const TokenScalars& token, float qS, float step) {
  return token.q_factor * (qS * token.alpha + token.qk * step);
}

// By a thread of the other warps: k.S of a column, which becomes its step, or q.S.
template <class P>
__device__ __forceinline__ void add_one_sum(KvShared<P>& shared) {
  const int thread = static_cast<int>(threadIdx.x), column = thread % P::kColumns;
  if (thread < P::kColumns) {
    const StepFactors factors(shared.token);
    shared.v[column] =
        factors.from_v * shared.v[column] - factors.from_k * sum_column<P>(shared.k_dot, column);
  } else if (thread < 2 * P::kColumns) {
    shared.q_dot[0][column] = sum_column<P>(shared.q_dot, column);
  }
}

// The warp that owns no lines: the token's scalars, v and o.
template <class P>
__device__ __forceinline__ void serve_columns(const DecodeArguments& a, KvShared<P>& shared,
                                              int lane) {
  using Io = typename P::Io;
  constexpr Options O = P::kOptions;
  constexpr int kOwn = (P::kColumns + 31) / 32;
  const std::uint32_t row = blockIdx.z, head = blockIdx.y;
  const int first_column = static_cast<int>(blockIdx.x) * P::kColumns;
  GatedHeadIf<P::kGated, Io, P::kHeadCtas> gated(shared.head, lane);
  arch::wait_for_previous_grid();
  const Slot<O> slot = read_slot<O>(a, row);
  Io v_bits[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int column = lane + 32 * i;
    if (column < P::kColumns) {
      v_bits[i] = static_cast<const Io*>(a.v)[at<O>(a.v_stride, row, head) + first_column + column];
    }
  }
  const TokenScalars token =
      make_scalars<O, Io, P::kK, false>(a, row, head, key_head_of(a, head), lane, [&] {
        if constexpr (P::kGated) {
          gated.load(a.gated, at<O>(a.gated.z_stride, row, head));
          wait_for_head<P::kHeadCtas>();
        }
      });
  float v[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    v[i] = device::to_float(v_bits[i]);
    if (lane + 32 * i < P::kColumns) shared.v[lane + 32 * i] = v[i];
  }
  if (lane == 0) shared.token = token, shared.again = {};
  sync_sums<P>();
  if (is_null<O>(a, slot)) return;
  if constexpr (P::kSpread) __syncthreads();
  float o[kOwn], step[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int column = lane + 32 * i;
    if (P::kGated) __syncwarp();  // few values at a time: registers
    if (column >= P::kColumns) continue;
    if constexpr (P::kSpread) {
      o[i] = output_of(token, shared.q_dot[0][column], shared.v[column]);
    } else {
      const float kS = sum_column<P>(shared.k_dot, column);
      step[i] = token.k_factor * token.beta * (v[i] - kS * (token.k_factor * token.alpha));
      if (P::kServed) shared.v[column] = step[i];
      if (!P::kStepsFirst) o[i] = output_of(token, sum_column<P>(shared.q_dot, column), step[i]);
    }
  }
  if constexpr (P::kServed && !P::kSpread) __syncthreads();
  if constexpr (P::kStepsFirst) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int column = lane + 32 * i;
      if (column >= P::kColumns) continue;
      o[i] = output_of(token, sum_column<P>(shared.q_dot, column), step[i]);
    }
  }
  Io* out = static_cast<Io*>(a.out) + at<O>(a.out_stride, row, head);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int column = lane + 32 * i;
    if (column >= P::kColumns) continue;
    if constexpr (P::kGated) {
      gated.send(first_column + column, o[i]);
    } else {
      out[first_column + column] = device::from_float<Io>(o[i]);
    }
  }
  if constexpr (P::kGated) gated.write(a.gated, out);
}

// q, k [B, H, K]; v, out [B, HV, V]; state [slots, HV, K, V]; grid (V / kColumns, HV, B)
template <class P>
__global__ void __launch_bounds__(P::kThreads, P::kCtas)
    decode_kv(const __grid_constant__ DecodeArguments a) {
  using State = typename P::State;
  using Io = typename P::Io;
  constexpr Options O = P::kOptions;
  __shared__ KvShared<P> shared;
  static_assert(sizeof(shared) + P::kStageBytes <= 48 << 10, "more must be asked for at a launch");
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  if (arch::uniform(static_cast<std::uint32_t>(warp)) == P::kWarps) {
    serve_columns<P>(a, shared, lane);
    return;
  }
  const int own_column = lane % P::kLanes * P::kChunk;
  const std::uint32_t row = blockIdx.z, head = blockIdx.y;
  const int first_line = warp * P::kLines + lane / P::kLanes * P::kLoads;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();

  // The state takes longest, so it is asked for first; where it waits for a slot, last.
  const bool indirect = a.read_slots != nullptr;
  const Slot<O> slot = read_slot<O>(a, row);
  const std::int64_t line_stride = P::kDense ? P::kK : a.line_stride;
  const std::int64_t offset = head * static_cast<std::int64_t>(a.head_stride) +
                              first_line * line_stride +
                              static_cast<int>(blockIdx.x) * P::kColumns + own_column;
  const auto in_slot = [&](Slot<O> s) {
    return static_cast<State*>(a.state) + offset + static_cast<std::int64_t>(s) * a.slot_stride;
  };
  typename P::Lines lines;
  if constexpr (P::kStaged) lines.own = decode_stage + threadIdx.x;
  {
    const bool now = !indirect && !is_null<O>(a, row);
    const State* from = in_slot(row);
#pragma unroll
    for (int i = 0; i < P::kLoads; ++i) lines.load_if(i, now, from + i * line_stride);
  }
  __syncwarp();  // keeps the order of the requests
  const std::uint32_t key_head = key_head_of(a, head);
  device::Pack<Io, P::kLoads> k_bits, q_bits;
  load_keys<O>(static_cast<const Io*>(a.k) + at<O>(a.k_stride, row, key_head) + first_line,
               a.wide_keys, k_bits);
  load_keys<O>(static_cast<const Io*>(a.q) + at<O>(a.q_stride, row, key_head) + first_line,
               a.wide_keys, q_bits);
  __syncwarp();
  const bool padding = is_null<O>(a, slot);
  {
    const State* from = in_slot(slot);
#pragma unroll
    for (int i = 0; i < P::kLoads; ++i) {
      lines.load_if(i, indirect && !padding, from + i * line_stride);
    }
  }
  const Slot<O> write = write_slot<O>(a, row, slot);

  arrive_for_head<P::kHeadCtas>();
  lines.wait();
  float k[P::kLoads], q[P::kLoads];
  k_bits.unpack(k);
  q_bits.unpack(q);
  float k_dot[P::kChunk] = {}, q_dot[P::kChunk] = {};
#pragma unroll
  for (int i = 0; i < P::kLoads; ++i) {
    float s[P::kChunk];
    lines.piece(i).unpack(s);
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) {
      k_dot[j] += s[j] * k[i];
      if (!P::kEarly) q_dot[j] += s[j] * q[i];
    }
  }
  sum_lane_groups<P>(k_dot, lane, &shared.k_dot[warp][own_column]);
  if constexpr (P::kEarly) {
    arch::arrive_threads(1, P::kThreads);
  } else {
    sum_lane_groups<P>(q_dot, lane, &shared.q_dot[warp][own_column]);
    __syncthreads();
  }
  if (padding) return wait_for_head<P::kHeadCtas>();  // the whole grid row
  float step[P::kChunk];
  if constexpr (P::kServed) {
    if constexpr (P::kEarly) {
#pragma unroll
      for (int i = 0; i < P::kLoads; ++i) {
        float s[P::kChunk];
        lines.piece(i).unpack(s);
#pragma unroll
        for (int j = 0; j < P::kChunk; ++j) q_dot[j] += s[j] * q[i];
      }
      sum_lane_groups<P>(q_dot, lane, &shared.q_dot[warp][own_column]);
    }
    if constexpr (P::kSpread) add_one_sum<P>(shared);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) step[j] = shared.v[own_column + j];
  } else {
    const TokenScalars token = shared.token;
    const float from_v = token.k_factor * token.beta;
    const float from_k = from_v * token.k_factor * token.alpha;
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) {
      float kS = 0;
#pragma unroll
      for (int w = 0; w < P::kWarps; ++w) kS += shared.k_dot[w][own_column + j];
      step[j] = from_v * shared.v[own_column + j] - from_k * kS;
    }
  }
  if (O == Options::kAny && is_null<O>(a, write)) return;
  State* to = in_slot(write);
  if constexpr (P::kAgain) {
#pragma unroll
    for (auto& line : lines.pieces) forget(line, shared.again);
    forget(k_bits, shared.again);
    k_bits.unpack(k);
  }
  const float alpha = shared.token.alpha;
#pragma unroll
  for (int i = 0; i < P::kLoads; ++i) {
    float s[P::kChunk];
    auto line = lines.piece(i);
    line.unpack(s);
#pragma unroll
    for (int j = 0; j < P::kChunk; ++j) s[j] = alpha * s[j] + k[i] * step[j];
    line.pack(s);
    store_whole(line, to + i * line_stride);
  }
  wait_for_head<P::kHeadCtas>();
}

}  // namespace hyla::gdn
