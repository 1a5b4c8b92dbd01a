// S^T of 16 value rows by 128 keys in the accumulators of a warp, and what 16 tokens do to it. With
// lane = 4 g + t, S[j] holds value rows g and g + 8 of two keys each; which keys is free as long as
// keys and queries agree: those of S[2 m] and S[2 m + 1] are 16 m + 4 t ... 16 m + 4 t + 3, four in
// a row of memory.
#pragma once

#include "arch/matrix.cuh"
#include "arch/mma.cuh"
#include "device/dtype.cuh"
#include "ops/gdn_prefill/pairs.cuh"
#include "ops/gdn_prefill/spoilt_rows.cuh"
#include "ops/gdn_prefill/step_chunk.cuh"

namespace hyla::gdn {

using StepState = float[16][4];

namespace step {

// access(address, m, row) for the lane's runs of four keys, those of S[2 m] and S[2 m + 1] from
// `row` on. Wide: they are neighbours in memory.
template <class T, bool Wide, class Access>
__device__ __forceinline__ void each_four(const PoolView& pool, std::int64_t offset,
                                          Access access) {
  T* at = static_cast<T*>(pool.data) + offset;
  const std::int64_t stride = Wide ? 1 : pool.k_stride;
#pragma unroll
  for (int row = 0; row < 4; row += 2) {
#pragma unroll
    for (int m = 0; m < 8; ++m) access(at + 16 * m * stride, m, row);
    at += 8 * pool.v_stride;
  }
}

template <class T, bool Wide>
__device__ __forceinline__ void get_four(const T* from, std::int64_t stride, float (&x)[4]) {
  if constexpr (Wide) {
    device::Pack<T, 4> four;
    four.load(from);
    four.unpack(x);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = device::to_float(from[i * stride]);
  }
}

template <class T, bool Wide>
__device__ __forceinline__ void put_four(T* to, std::int64_t stride, const float (&x)[4]) {
  if constexpr (Wide) {
    device::Pack<T, 4> four;
    four.pack(x);
    four.store(to);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i * stride] = device::from_float<T>(x[i]);
  }
}

// Usual: float32, keys contiguous and aligned.
template <bool Usual, class Body>
__device__ __forceinline__ void with_type(const PoolView& pool, bool wide, Body body) {
  if constexpr (Usual) {
    body.template operator()<float, true>();
  } else {
    const auto of = [&]<class T>() {
      if (wide) {
        body.template operator()<T, true>();
      } else {
        body.template operator()<T, false>();
      }
    };
    if (pool.dtype == DType::kFloat32) {
      of.template operator()<float>();
    } else if (pool.dtype == DType::kBFloat16) {
      of.template operator()<__nv_bfloat16>();
    } else {
      of.template operator()<__half>();
    }
  }
}

}  // namespace step

// `v`: the warp's first value row.
__device__ __forceinline__ std::int64_t step_state_offset(const PoolView& pool, std::int64_t slot,
                                                          int head, int v, int lane) {
  return slot * pool.slot_stride + head * pool.head_stride + (v + (lane >> 2)) * pool.v_stride +
         4 * (lane & 3) * pool.k_stride;
}

__device__ __forceinline__ void set_four(StepState& S, int m, int row, const float (&x)[4]) {
  S[2 * m][row] = x[0], S[2 * m][row + 1] = x[1];
  S[2 * m + 1][row] = x[2], S[2 * m + 1][row + 1] = x[3];
}

// Of a slot, or zero.
template <bool Usual>
__device__ __forceinline__ void begin_state(const PoolView& pool, bool from_pool, bool wide,
                                            std::int64_t slot, int head, int v, int lane,
                                            StepState& S) {
  if (!from_pool) {
#pragma unroll
    for (int i = 0; i < 64; ++i) S[i / 4][i % 4] = 0.0f;
    return;
  }
  const std::int64_t offset = step_state_offset(pool, slot, head, v, lane);
  step::with_type<Usual>(pool, wide, [&]<class T, bool Wide>() {
    step::each_four<T, Wide>(pool, offset, [&](const T* from, int m, int row) {
      float x[4];
      step::get_four<T, Wide>(from, pool.k_stride, x);
      set_four(S, m, row, x);
    });
  });
}

template <bool Usual>
__device__ __forceinline__ void store_step_state(const PoolView& pool, bool wide, std::int64_t slot,
                                                 int head, int v, int lane, const StepState& S,
                                                 const SpoiltRows& without = {}) {
  const std::int64_t offset = step_state_offset(pool, slot, head, v, lane);
  step::with_type<Usual>(pool, wide, [&]<class T, bool Wide>() {
    step::each_four<T, Wide>(pool, offset, [&](T* to, int m, int row) {
      if (row == 0 ? without.first : without.second) return;
      const float x[4] = {S[2 * m][row], S[2 * m][row + 1], S[2 * m + 1][row],
                          S[2 * m + 1][row + 1]};
      step::put_four<T, Wide>(to, pool.k_stride, x);
    });
  });
}

// The end of a walk over the `length` tokens from `begin` on: the state to its slot, if it has one,
// but for rows that are spoilt, which are marked.
template <class Io, bool Usual>
__device__ __forceinline__ void end_state(const StepArguments& a, int begin, int length,
                                          std::int64_t slot, int head, int v, int lane,
                                          StepState& S) {
  SpoiltRows spoilt;
  if constexpr (kMaySpoil<Io>) {
    if (length > 0) {
      spoilt = spoil_rows(reinterpret_cast<float(&)[64]>(S));
      __syncwarp();  // the outputs are there
      mark_rows(a.out.at(begin + length - 1, head) + 2 * (v + (lane >> 2)), spoilt, lane);
    }
  }
  if (slot == core::kNullSlot) return;
  store_step_state<Usual>(a.final, a.wide_final, slot, head, v, lane, S, spoilt);
}

// 16 tokens of the warp's value rows: v in front, o behind. Rows of 48 bytes, so that eight of them
// lie in different banks.
inline constexpr int kStepValuePitch = 48;

// 16 bytes of o, behind the stores of other lanes.
__device__ __forceinline__ uint4 shared_words(std::uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from)
               : "memory");
  return x;
}

// Where the lane's row of a 16 x 16 block of tokens by values lies, for transposing accesses.
__device__ __forceinline__ int step_block(int lane) {
  return ((lane & 7) + (lane >> 4) * 8) * kStepValuePitch + (lane >> 3 & 1) * 16;
}

// S after the tokens of `c`; `values`: address of their v, where their o is afterwards. Operands
// come three products ahead: there may be one warp a scheduler.
template <class Io>
__device__ __forceinline__ void take_step(const StepChunk<Io>& c, std::uint32_t values,
                                          StepState& S, int lane) {
  constexpr int kAhead = 3;
  const int t = 2 * (lane & 3);
  const std::uint32_t first = arch::shared_address(c.keys[0]);
  const std::uint32_t keys = first + over_columns(lane), turned = first + over_tokens(lane);
  const std::uint32_t queries = arch::shared_address(c.queries[0]) + over_columns(lane);
  std::uint32_t k[kAhead + 1][4], q[kAhead + 1][4];
#pragma unroll
  for (int m = 0; m < kAhead; ++m) {
    arch::load_matrices(k[m], keys + kColumnPitch * m);
    arch::load_matrices(q[m], queries + kColumnPitch * m);
  }
  const float decay = c.decay;
  std::uint32_t v[4], inverse[4];
  float x[2][4] = {}, o[2][4] = {};
  float2 entry[2], exit[2], query[2];
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    if (m + kAhead < 8) {
      arch::load_matrices(k[(m + kAhead) % 4], keys + kColumnPitch * (m + kAhead));
      arch::load_matrices(q[(m + kAhead) % 4], queries + kColumnPitch * (m + kAhead));
    }
    if (m == 4) {
      arch::load_matrices_transposed(v, values);
      arch::load_matrices(inverse, arch::shared_address(c.inverse) + inverse_row(lane));
    }
    if (m == 5) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        entry[i] = *reinterpret_cast<const float2*>(&c.entry[8 * i + t]);
        exit[i] = *reinterpret_cast<const float2*>(&c.exit[8 * i + t]);
      }
    }
    float *low = S[2 * m], *high = S[2 * m + 1];
    const std::uint32_t left[4] = {pack<Io>(low[0], low[1]), pack<Io>(low[2], low[3]),
                                   pack<Io>(high[0], high[1]), pack<Io>(high[2], high[3])};
    arch::mma_16x8x16<Io>(x[0], left, k[m % 4][0], k[m % 4][1]);
    arch::mma_16x8x16<Io>(x[1], left, k[m % 4][2], k[m % 4][3]);
    arch::mma_16x8x16<Io>(o[0], left, q[m % 4][0], q[m % 4][1]);
    arch::mma_16x8x16<Io>(o[1], left, q[m % 4][2], q[m % 4][3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) low[i] *= decay, high[i] *= decay;
  }
  // Keys over tokens take the places of those over columns.
#pragma unroll
  for (int m = 0; m < kAhead; ++m) arch::load_matrices_transposed(k[m], turned + kColumnPitch * m);
  std::uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // 8 tokens each
    const float2 e = entry[i], v0 = unpack<Io>(v[2 * i]), v8 = unpack<Io>(v[2 * i + 1]);
    w[2 * i] = pack<Io>(fmaf(-e.x, x[i][0], v0.x), fmaf(-e.y, x[i][1], v0.y));
    w[2 * i + 1] = pack<Io>(fmaf(-e.x, x[i][2], v8.x), fmaf(-e.y, x[i][3], v8.y));
  }
  float u[2][4] = {};
  arch::mma_16x8x16<Io>(u[0], w, inverse[0], inverse[1]);
  arch::mma_16x8x16<Io>(u[1], w, inverse[2], inverse[3]);
  const uint4 p = c.scores[lane];
#pragma unroll
  for (int i = 0; i < 2; ++i) query[i] = *reinterpret_cast<const float2*>(&c.query[8 * i + t]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 f = query[i];
    o[i][0] *= f.x, o[i][1] *= f.y, o[i][2] *= f.x, o[i][3] *= f.y;
  }
  std::uint32_t left[4], plain[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 r = exit[i];
    left[2 * i] = pack<Io>(u[i][0] * r.x, u[i][1] * r.y);
    left[2 * i + 1] = pack<Io>(u[i][2] * r.x, u[i][3] * r.y);
    plain[2 * i] = pack<Io>(u[i][0], u[i][1]);
    plain[2 * i + 1] = pack<Io>(u[i][2], u[i][3]);
    if constexpr (kMaySpoil<Io>) {
      spoil_pair(left[2 * i], plain[2 * i]);
      spoil_pair(left[2 * i + 1], plain[2 * i + 1]);
    }
  }
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    if (m + kAhead < 8) {
      arch::load_matrices_transposed(k[(m + kAhead) % 4], turned + kColumnPitch * (m + kAhead));
    }
    arch::mma_16x8x16<Io>(S[2 * m], left, k[m % 4][0], k[m % 4][1]);
    arch::mma_16x8x16<Io>(S[2 * m + 1], left, k[m % 4][2], k[m % 4][3]);
    if (m == 1) {
      arch::mma_16x8x16<Io>(o[0], plain, p.x, p.y);
      arch::mma_16x8x16<Io>(o[1], plain, p.z, p.w);
    }
  }
  const std::uint32_t out[4] = {pack<Io>(o[0][0], o[0][1]), pack<Io>(o[0][2], o[0][3]),
                                pack<Io>(o[1][0], o[1][1]), pack<Io>(o[1][2], o[1][3])};
  __syncwarp();  // all have read v
  arch::store_matrices_transposed(values, out);
  __syncwarp();
}

}  // namespace hyla::gdn
