// What the chains of states do with tokens in registers, 64 of them as the columns of an
// accumulator: a thread holds columns 8 j + column and the one after, of two value rows.
#pragma once

#include "arch/matrix.cuh"
#include "arch/registers.cuh"
#include "arch/wgmma_any.cuh"
#include "ops/gdn_prefill/chunk.cuh"
#include "ops/gdn_prefill/pairs.cuh"
#include "ops/gdn_prefill/spoilt_rows.cuh"

namespace hyla::gdn {

// d (+)= tokens times the transpose of a 64 x 64 tile
template <class Io>
__device__ __forceinline__ void multiply_tokens(float (&d)[32], std::uint32_t (&tokens)[16],
                                                std::uint32_t address, bool accumulate) {
  const arch::WgmmaDescriptor right = arch::descriptor(address);
  arch::pin(tokens);
  arch::pin(d);
  arch::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    arch::wgmma_rs<Io, 64>(d, tokens + 4 * i, right + 2 * i, accumulate || i > 0);
  }
  arch::wgmma_commit();
}

template <class Io>
__device__ __forceinline__ void pack_tokens(std::uint32_t (&to)[16], const float (&from)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) to[i] = pack<Io>(from[2 * i], from[2 * i + 1]);
}

// The same of U with the decay to the end of a chunk that is not mild: it goes into the update
// only. U without it goes into the outputs, and where that is infinite the state shall know
// (spoilt_rows.cuh).
template <class Io>
__device__ __forceinline__ void pack_decayed(std::uint32_t (&to)[16], const float (&u)[32],
                                             const Factors& factors, int column) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 r = *reinterpret_cast<const float2*>(&factors.exit[8 * j + column]);
    to[2 * j] = pack<Io>(u[4 * j] * r.x, u[4 * j + 1] * r.y);
    to[2 * j + 1] = pack<Io>(u[4 * j + 2] * r.x, u[4 * j + 3] * r.y);
    if constexpr (kMaySpoil<Io>) {
      spoil_pair(to[2 * j], pack<Io>(u[4 * j], u[4 * j + 1]));
      spoil_pair(to[2 * j + 1], pack<Io>(u[4 * j + 2], u[4 * j + 3]));
    }
  }
}

// W^T = V^T - X^T diag(entry), of 16 tokens. `entry`: of the thread's tokens, two by two.
template <class Io>
__device__ __forceinline__ void make_w(std::uint32_t (&w)[16], int tokens16, const std::uint32_t* v,
                                       const float (&x)[32], const float2 (&entry)[8]) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int j = 2 * tokens16 + k;
    const float2 e = entry[j], v0 = unpack<Io>(v[2 * k]), v8 = unpack<Io>(v[2 * k + 1]);
    w[2 * j] = pack<Io>(fmaf(-e.x, x[4 * j], v0.x), fmaf(-e.y, x[4 * j + 1], v0.y));
    w[2 * j + 1] = pack<Io>(fmaf(-e.x, x[4 * j + 2], v8.x), fmaf(-e.y, x[4 * j + 3], v8.y));
  }
}

// The same with the factors where they are.
template <class Io>
__device__ __forceinline__ void make_w(std::uint32_t (&w)[16], int tokens16, const std::uint32_t* v,
                                       const float (&x)[32], const Factors& factors, int column) {
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int j = 2 * tokens16 + k;
    const float2 e = *reinterpret_cast<const float2*>(&factors.entry[8 * j + column]);
    const float2 v0 = unpack<Io>(v[2 * k]), v8 = unpack<Io>(v[2 * k + 1]);
    w[2 * j] = pack<Io>(fmaf(-e.x, x[4 * j], v0.x), fmaf(-e.y, x[4 * j + 1], v0.y));
    w[2 * j + 1] = pack<Io>(fmaf(-e.x, x[4 * j + 2], v8.x), fmaf(-e.y, x[4 * j + 3], v8.y));
  }
}

// The same of all, V 16 tokens at a time from where the thread finds it in shared memory.
template <class Io>
__device__ __forceinline__ void make_w(std::uint32_t (&w)[16], const float (&x)[32],
                                       std::uint32_t values, const Factors& factors, int column) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t v[4];
    arch::load_matrices_transposed(v, values + i * 2048);
    make_w<Io>(w, i, v, x, factors, column);
  }
}

// O^T diag(query)
__device__ __forceinline__ void scale_queries(float (&o)[32], const Factors& factors, int column) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 q = *reinterpret_cast<const float2*>(&factors.query[8 * j + column]);
    o[4 * j] *= q.x, o[4 * j + 1] *= q.y, o[4 * j + 2] *= q.x, o[4 * j + 3] *= q.y;
  }
}

__device__ __forceinline__ void scale(float (&S)[64], float factor) {
#pragma unroll
  for (int i = 0; i < 64; ++i) S[i] *= factor;
}

}  // namespace hyla::gdn
