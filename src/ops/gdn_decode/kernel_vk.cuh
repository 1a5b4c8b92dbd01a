// One-token decode, states [slots, HV, V, K] (K contiguous).
//
// A warp owns kRows value rows of one head: it loads them whole, in 16-byte accesses that are all
// issued before any math, and both dots (k.S and q.S), the update and the store happen in
// registers. o follows from the old state: q.S' = alpha q.S + (q.k) delta, so one sweep is enough.
// What else a token needs is made by each warp for itself, or by one for the CTA.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/registers.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_decode/gated_epilogue.cuh"
#include "ops/gdn_decode/requests.cuh"
#include "ops/gdn_decode/token_scalars.cuh"

namespace hyla::gdn {

template <class State_, class Io_, Options O_, int K_, int Loads_, int Lanes_, int Warps_,
          int Parts_ = 1, bool Again_ = false, bool Gated_ = false, bool Staged_ = false,
          int Resident_ = 0, int Around_ = 0, bool Apart_ = false>
struct DecodeVkPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr Options kOptions = O_;
  static constexpr int kK = K_;
  static constexpr int kLoads = Loads_;  // 16-byte accesses in flight a thread
  static constexpr int kWarps = Warps_;  // that own rows
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kParts = Parts_;  // warps side by side along a row
  static constexpr int kPart = kK / kParts;
  static constexpr int kLanes = kPart / kChunk < Lanes_ ? kPart / kChunk : Lanes_;
  static constexpr int kChunks = kPart / (kChunk * kLanes);  // accesses of a lane in one row
  static constexpr int kRowsPerLane = kLoads / kChunks;
  static constexpr int kSummedRows = kRowsPerLane < 8 ? kRowsPerLane : 8;  // at once, where served
  static constexpr int kRowsPerAccess = 32 / kLanes;
  static constexpr int kRows = kRowsPerLane * kRowsPerAccess;  // value rows a warp owns
  static constexpr int kRowsOfCta = kRows * (kWarps / kParts);
  static constexpr int kColumns = kChunk * kChunks;  // K elements a lane holds
  static constexpr bool kGated = Gated_;             // gated_epilogue.cuh
  static constexpr int kHeadCtas = gdn::kHeadCtas<kGated, kRowsOfCta>;
  static constexpr bool kStaged = Staged_;  // the state waits in shared memory, where served
  static constexpr bool kAgain = Again_ && sizeof(State) == 2 && !kStaged;  // forget(), likewise
  static constexpr int kCtas = Resident_ / (kWarps + 1);
  static constexpr bool kApart = Apart_;  // store_apart(), where served
  using Pieces = std::conditional_t<kStaged, StagedPieces<State, kLoads, 32 * kWarps, Around_>,
                                    RegisterPieces<State, kLoads, Around_>>;
  static constexpr int kStageBytes = kStaged ? 16 * kLoads * 32 * kWarps : 0;  // dynamic
  static_assert(kRowsPerLane <= kLanes && kRowsPerLane >= 1);
  static_assert(kWarps % kParts == 0);

  // A row's place in shared memory: that of the lane that adds it up.
  static __device__ __forceinline__ int place(int warp, int group, int row) {
    return (warp / kParts * kRowsPerAccess + group) * kRowsPerLane + row;
  }
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

// A warp's rows: asked for at once, in 16-byte accesses.
template <class P>
struct VkRows {
  using State = typename P::State;
  typename P::Pieces pieces;

  __device__ __forceinline__ auto chunk(int r, int c) const {
    return pieces.piece(r * P::kChunks + c);
  }
  static __device__ __forceinline__ std::int64_t place(int r, int c, std::int64_t line_stride) {
    return r * P::kRowsPerAccess * line_stride + c * P::kLanes * P::kChunk;
  }
  __device__ __forceinline__ void load_if(bool condition, const State* from,
                                          std::int64_t line_stride) {
#pragma unroll
    for (int r = 0; r < P::kRowsPerLane; ++r) {
#pragma unroll
      for (int c = 0; c < P::kChunks; ++c) {
        pieces.load_if(r * P::kChunks + c, condition, from + place(r, c, line_stride));
      }
    }
  }
  __device__ __forceinline__ void forget_all(const UnpackAgain& again) {
#pragma unroll
    for (auto& piece : pieces.pieces) forget(piece, again);
  }
  // Row r becomes alpha S + step k in `to`. `natural`: of store_apart().
  template <bool Whole>
  __device__ __forceinline__ void update(int r, float alpha, float step,
                                         const float (&k)[P::kColumns], State* to,
                                         std::int64_t line_stride, int natural = 0) {
#pragma unroll
    for (int c = 0; c < P::kChunks; ++c) {
      float s[P::kChunk];
      auto piece = chunk(r, c);
      piece.unpack(s);
#pragma unroll
      for (int i = 0; i < P::kChunk; ++i) s[i] = alpha * s[i] + step * k[c * P::kChunk + i];
      piece.pack(s);
      if constexpr (Whole && P::kApart) {
        store_apart(natural, piece, to + place(r, c, line_stride));
      } else if constexpr (Whole) {
        store_whole(piece, to + place(r, c, line_stride));
      } else {
        piece.store(to + place(r, c, line_stride));
      }
    }
  }
};

// Sums over a group: lane l holds those of row first + l % kSummedRows.
template <class P>
struct RowSums {
  float k, q;

  __device__ __forceinline__ RowSums(const VkRows<P>& rows, const float (&key)[P::kColumns],
                                     const float (&query)[P::kColumns], int first = 0) {
    float k_dot[P::kSummedRows], q_dot[P::kSummedRows];
#pragma unroll
    for (int r = 0; r < P::kSummedRows; ++r) {
      k_dot[r] = q_dot[r] = 0;
#pragma unroll
      for (int c = 0; c < P::kChunks; ++c) {
        float s[P::kChunk];
        rows.chunk(first + r, c).unpack(s);
#pragma unroll
        for (int i = 0; i < P::kChunk; ++i) {
          k_dot[r] += s[i] * key[c * P::kChunk + i];
          q_dot[r] += s[i] * query[c * P::kChunk + i];
        }
      }
    }
    k = device::reduce_scatter<P::kLanes>(k_dot);
    q = device::reduce_scatter<P::kLanes>(q_dot);
  }
};

// What the warps of a CTA tell each other.
template <class P>
struct VkShared {
  alignas(16) float alpha, from_k;
  UnpackAgainIf<P::kAgain> again;
  alignas(16) float k_dot[P::kRowsOfCta][P::kParts];
  alignas(16) float q_dot[P::kRowsOfCta][P::kParts];
  alignas(16) float v[P::kRowsOfCta];  // times from_v
  HeadValuesIf<P::kGated> head;
};

template <int N>
__device__ __forceinline__ float sum_of(const float (&x)[N]) {
  float sum = x[0];
#pragma unroll
  for (int i = 1; i < N; ++i) sum += x[i];
  return sum;
}

// The warp that owns no rows: the token's scalars, v and o.
template <class P>
__device__ __forceinline__ void serve_rows(const DecodeArguments& a, VkShared<P>& shared,
                                           int lane) {
  using Io = typename P::Io;
  constexpr Options O = P::kOptions;
  constexpr int kRowsOfCta = P::kRowsOfCta, kOwn = (kRowsOfCta + 31) / 32;
  const std::uint32_t row = blockIdx.z, head = blockIdx.y;
  GatedHeadIf<P::kGated, Io, P::kHeadCtas> gated(shared.head, lane);
  arch::wait_for_previous_grid();
  const auto value_of = [&](int i) {  // the value row of place i
    const int place = lane + 32 * i, in_warp = place % P::kRows;
    return static_cast<int>(blockIdx.x) * kRowsOfCta + place / P::kRows * P::kRows +
           in_warp % P::kRowsPerLane * P::kRowsPerAccess + in_warp / P::kRowsPerLane;
  };
  const Slot<O> slot = read_slot<O>(a, row);
  Io v_bits[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (lane + 32 * i < kRowsOfCta) {
      v_bits[i] = static_cast<const Io*>(a.v)[at<O>(a.v_stride, row, head) + value_of(i)];
    }
  }
  const TokenScalars token =
      make_scalars<O, Io, P::kK, true>(a, row, head, key_head_of(a, head), lane, [&] {
        if constexpr (P::kGated) {
          __syncwarp();  // ptxas moves no load across
          gated.load(a.gated, at<O>(a.gated.z_stride, row, head));
          wait_for_head<P::kHeadCtas>();
        }
      });
  const StepFactors factors(token);
  float v[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    v[i] = factors.from_v * device::to_float(v_bits[i]);
    if (lane + 32 * i < kRowsOfCta) shared.v[lane + 32 * i] = v[i];
  }
  if (lane == 0) shared.alpha = factors.alpha, shared.from_k = factors.from_k, shared.again = {};
  __syncthreads();
  if (is_null<O>(a, slot)) return;
  Io* out = static_cast<Io*>(a.out) + at<O>(a.out_stride, row, head);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (lane + 32 * i >= kRowsOfCta) continue;
    const float kS = sum_of(shared.k_dot[lane + 32 * i]);
    const float qS = sum_of(shared.q_dot[lane + 32 * i]);
    const float step = v[i] - factors.from_k * kS;
    const float o = token.q_factor * (qS * token.alpha + token.qk * step);
    if constexpr (P::kGated) {
      gated.send(value_of(i), o);
    } else {
      out[value_of(i)] = device::from_float<Io>(o);
    }
  }
  if constexpr (P::kGated) gated.write(a.gated, out);
}

// What a warp with rows asks the memory for, in the best order: the state takes longest, so it
// comes first; where it waits for a slot, last.
template <class P>
struct VkRequests {
  static constexpr Options O = P::kOptions;
  using State = typename P::State;
  using Io = typename P::Io;
  std::uint32_t row, head;
  int lane_in_row, group;
  int first_value;  // of the warp
  std::int64_t line_stride, offset;
  Slot<O> slot;
  bool padding;
  VkRows<P> rows;
  KeyBits<P> k_bits, q_bits;

  __device__ __forceinline__ State* in_slot(const DecodeArguments& a, Slot<O> s) const {
    return static_cast<State*>(a.state) + offset + static_cast<std::int64_t>(s) * a.slot_stride;
  }
  // `more` asks for what else this warp needs.
  template <class More>
  __device__ __forceinline__ void send(const DecodeArguments& a, int warp, int lane, More more) {
    lane_in_row = lane % P::kLanes, group = lane / P::kLanes;
    row = blockIdx.z, head = blockIdx.y;
    first_value = static_cast<int>(blockIdx.x) * P::kRowsOfCta + warp / P::kParts * P::kRows;
    const int first_key = P::kParts == 1 ? 0 : warp % P::kParts * P::kPart;
    line_stride = O == Options::kUsual ? P::kK : a.line_stride;
    arch::wait_for_previous_grid();
    arch::let_next_grid_start();
    const bool indirect = a.read_slots != nullptr;
    slot = read_slot<O>(a, row);
    offset = head * static_cast<std::int64_t>(a.head_stride) + (first_value + group) * line_stride +
             first_key + lane_in_row * P::kChunk;
    rows.load_if(!indirect && !is_null<O>(a, row), in_slot(a, row), line_stride);
    __syncwarp();  // ptxas moves no load across
    const std::uint32_t key_head = key_head_of(a, head);
    const Io* k = static_cast<const Io*>(a.k) + at<O>(a.k_stride, row, key_head) + first_key;
    const Io* q = static_cast<const Io*>(a.q) + at<O>(a.q_stride, row, key_head) + first_key;
    k_bits.load(k, a.wide_keys, lane_in_row);
    q_bits.load(q, a.wide_keys, lane_in_row);
    more(*this);
    __syncwarp();
    padding = is_null<O>(a, slot);
    rows.load_if(indirect && !padding, in_slot(a, slot), line_stride);
  }
};

// q, k [B, H, K]; v, out [B, HV, V]; state [slots, HV, V, K]; grid (V / kRowsOfCta, HV, B)
template <class P>
__global__ void __launch_bounds__(32 * (P::kWarps + 1), P::kCtas)
    decode_vk_served(const __grid_constant__ DecodeArguments a) {
  constexpr Options O = P::kOptions;
  __shared__ VkShared<P> shared;
  static_assert(sizeof(shared) + P::kStageBytes <= 48 << 10, "more must be asked for at a launch");
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  if (arch::uniform(static_cast<std::uint32_t>(warp)) == P::kWarps) {
    serve_rows<P>(a, shared, lane);
    return;
  }
  VkRequests<P> own;
  if constexpr (P::kStaged) own.rows.pieces.own = decode_stage + threadIdx.x;
  own.send(a, warp, lane, [](const auto&) {});
  arrive_for_head<P::kHeadCtas>();
  own.rows.pieces.wait();
  const Slot<O> write = write_slot<O>(a, own.row, own.slot);
  float q[P::kColumns], k[P::kColumns];
  own.k_bits.unpack(k);
  own.q_bits.unpack(q);
#pragma unroll
  for (int first = 0; first < P::kRowsPerLane; first += P::kSummedRows) {
    const RowSums<P> sums(own.rows, k, q, first);
    if (own.lane_in_row < P::kSummedRows) {
      const int place = P::place(warp, own.group, first + own.lane_in_row);
      shared.k_dot[place][warp % P::kParts] = sums.k;
      shared.q_dot[place][warp % P::kParts] = sums.q;
    }
  }
  __syncthreads();
  if (own.padding) return wait_for_head<P::kHeadCtas>();  // the whole grid row
  if (O == Options::kAny && is_null<O>(a, write)) return;
  const float alpha = shared.alpha, from_k = shared.from_k;
  auto* to = own.in_slot(a, write);
  if constexpr (P::kAgain) own.rows.forget_all(shared.again);
#pragma unroll
  for (int r = 0; r < P::kRowsPerLane; ++r) {
    const int place = P::place(warp, own.group, r);
    const float step = shared.v[place] - from_k * sum_of(shared.k_dot[place]);
    own.rows.template update<true>(r, alpha, step, k, to, own.line_stride, a.first_slot);
  }
  wait_for_head<P::kHeadCtas>();
}

// The same by warps that each do everything and never talk to each other.
template <class P>
__global__ void __launch_bounds__(32 * P::kWarps)
    decode_vk(const __grid_constant__ DecodeArguments a) {
  using Io = typename P::Io;
  constexpr Options O = P::kOptions;
  static_assert(!P::kStaged && P::kSummedRows == P::kRowsPerLane);
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  VkRequests<P> own;
  GateBits gates;
  Io v_bits;
  int own_row;
  own.send(a, warp, lane, [&](const VkRequests<P>& r) {
    gates = load_gates<O, Io>(a, r.row, r.head);
    own_row = r.first_value + r.lane_in_row % P::kRowsPerLane * P::kRowsPerAccess + r.group;
    v_bits = static_cast<const Io*>(a.v)[at<O>(a.v_stride, r.row, r.head) + own_row];
  });
  if (own.padding) return;  // the whole grid row
  const Slot<O> write = write_slot<O>(a, own.row, own.slot);
  float q[P::kColumns], k[P::kColumns];
  own.k_bits.unpack(k);
  own.q_bits.unpack(q);
  const TokenScalars token = make_scalars<O, Io, P::kLanes>(a, gates, k, q);
  const StepFactors factors(token);
  const RowSums<P> sums(own.rows, k, q);
  const float step = factors.from_v * device::to_float(v_bits) - factors.from_k * sums.k;
  if (own.lane_in_row < P::kRowsPerLane) {
    static_cast<Io*>(a.out)[at<O>(a.out_stride, own.row, own.head) + own_row] =
        device::from_float<Io>(token.q_factor * (sums.q * token.alpha + token.qk * step));
  }
  if (O == Options::kAny && is_null<O>(a, write)) return;
  auto* to = own.in_slot(a, write);
#pragma unroll
  for (int r = 0; r < P::kRowsPerLane; ++r) {
    const float d = __shfl_sync(device::kFullWarp, step, own.group * P::kLanes + r);
    own.rows.template update<false>(r, token.alpha, d, k, to, own.line_stride);
  }
}

}  // namespace hyla::gdn
