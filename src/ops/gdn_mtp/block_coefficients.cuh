// Gates, norms and the products of the keys of a block, by one warp.
#pragma once

#include "arch/matrix.cuh"
#include "arch/mma.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_mtp/block_arguments.cuh"
#include "ops/gdn_mtp/block_policy.h"

namespace hyla::gdn {

// A lane's 16-bit q and k. 8 tokens: part 0 is k, part 1 is q of token g. 4 tokens: k of token g / 2
// where g is even, q where it is odd. Zero past the end of the row.
template <class P>
struct KeyFragments {
  uint4 words[P::kParts][P::kSteps];

  __device__ __forceinline__ void load(const MtpBlockArguments& a, std::uint32_t row,
                                       std::uint32_t first, std::uint32_t tokens,
                                       std::uint32_t key_head, int lane) {
    using Io = typename P::Io;
    const int g = lane >> 2, t = lane & 3;
    const std::uint32_t token = P::kTokens == 8 ? g : g >> 1;
    const Io* from[2] = {
        static_cast<const Io*>(a.k) + at(a.k_stride, row, first + token, key_head) + 8 * t,
        static_cast<const Io*>(a.q) + at(a.q_stride, row, first + token, key_head) + 8 * t};
    if (P::kParts == 1 && (g & 1) != 0) from[0] = from[1];
#pragma unroll
    for (int part = 0; part < P::kParts; ++part) {
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) {
        words[part][j] = token < tokens ? *reinterpret_cast<const uint4*>(from[part] + 32 * j)
                                        : make_uint4(0, 0, 0, 0);
      }
    }
  }

  __device__ __forceinline__ void share(MtpBlockShared<P>& shared, int lane) const {
#pragma unroll
    for (int j = 0; j < P::kSteps; ++j) {
#pragma unroll
      for (int part = 0; part < P::kParts; ++part) shared.keys[j][part][lane] = words[part][j];
      const uint4 k = words[0][j];
      shared.turned[j][lane] = make_uint4(arch::transpose_matrix(k.x), arch::transpose_matrix(k.y),
                                          arch::transpose_matrix(k.z), arch::transpose_matrix(k.w));
    }
  }
};

// The first `applied` of the block's `tokens` reach the state that is kept. alpha and beta are those
// of token lane % kTokens, 1 and 0 past the end of the row.
template <class P>
__device__ __forceinline__ void make_coefficients(const MtpBlockArguments& a,
                                                  const KeyFragments<P>& fragments, float alpha,
                                                  float beta, int tokens, int applied, int lane,
                                                  MtpCoefficients<P::kTokens>& to) {
  using Io = typename P::Io;
  constexpr int kTokens = P::kTokens, kPerLane = P::kPerLane;
  const int g = lane >> 2, t = lane & 3, own = lane % kTokens;
  // Products of the keys. 8 tokens: kk holds k.k, kq k.q in columns (g, 2t..) and q.q below. 4 tokens:
  // all of them in kk, rows and columns k0 q0 k1 q1 ...
  float kk[4] = {}, kq[4] = {};
#pragma unroll
  for (int j = 0; j < P::kSteps; ++j) {
    const uint4 k = fragments.words[0][j];
    const std::uint32_t k0[] = {k.x, 0, k.y, 0}, k1[] = {k.z, 0, k.w, 0};
    arch::mma_16x8x16<Io>(kk, k0, k.x, k.y);
    if constexpr (kTokens == 8) {
      const uint4 q = fragments.words[1][j];
      const std::uint32_t kq0[] = {k.x, q.x, k.y, q.y}, kq1[] = {k.z, q.z, k.w, q.w};
      arch::mma_16x8x16<Io>(kq, kq0, q.x, q.y);
      arch::mma_16x8x16<Io>(kk, k1, k.z, k.w);
      arch::mma_16x8x16<Io>(kq, kq1, q.z, q.w);
    } else {
      arch::mma_16x8x16<Io>(kq, k1, k.z, k.w);
    }
  }
  float k_square, q_square;
  if constexpr (kTokens == 8) {
    const int from = own * 4 + own / 2;
    const float k0 = __shfl_sync(device::kFullWarp, kk[0], from);
    const float k1 = __shfl_sync(device::kFullWarp, kk[1], from);
    const float q0 = __shfl_sync(device::kFullWarp, kq[2], from);
    const float q1 = __shfl_sync(device::kFullWarp, kq[3], from);
    k_square = own % 2 == 0 ? k0 : k1;
    q_square = own % 2 == 0 ? q0 : q1;
  } else {
    kk[0] += kq[0];
    kk[1] += kq[1];
    k_square = __shfl_sync(device::kFullWarp, kk[0], own * 8 + own);
    q_square = __shfl_sync(device::kFullWarp, kk[1], own * 8 + 4 + own);
  }
  float k_factor = 1.0f, q_factor = a.scale;
  if ((P::kOptions == Options::kUsual || a.l2norm) && own < tokens) {
    k_factor = rsqrtf(k_square + a.l2norm_eps);
    q_factor *= rsqrtf(q_square + a.l2norm_eps);
  }
  // E: decay up to and with the own token. after: decay from the own token to the end of what is kept.
  float E = alpha, after = own < applied ? alpha : 1.0f;
#pragma unroll
  for (int step = 1; step < kTokens; step *= 2) {
    const float before = __shfl_up_sync(device::kFullWarp, E, step, kTokens);
    const float behind = __shfl_down_sync(device::kFullWarp, after, step, kTokens);
    if (own >= step) E *= before;
    if (own + step < kTokens) after *= behind;
  }
  float keep = __shfl_down_sync(device::kFullWarp, after, 1, kTokens);
  if (own == kTokens - 1) keep = 1.0f;
  if (own >= applied) keep = 0.0f;
  const float mixed = k_factor * k_factor * beta;
  if (lane < kTokens) {
    to.token[lane] = {k_factor * beta, mixed * E, q_factor * E, keep};
  }
  if (lane == 0) to.decay = after;

  // This lane's columns of mix and read: token j against tokens i = kPerLane t + e.
  const int j = kTokens == 8 ? g : g >> 1;
  float decay = 1.0f, last = 1.0f;
#pragma unroll
  for (int l = 1; l < kTokens; ++l) {
    const float other = __shfl_sync(device::kFullWarp, alpha, l);
    if (l > j && l <= kPerLane * t) decay *= other;
    if (kPerLane == 2 && l == 2 * t + 1) last = other;
  }
#pragma unroll
  for (int e = 0; e < kPerLane; ++e) {
    const int i = kPerLane * t + e;
    const float G = e == 0 ? decay : (j <= 2 * t ? decay * last : 1.0f);
    const float k_i = __shfl_sync(device::kFullWarp, mixed, i);
    const float q_i = __shfl_sync(device::kFullWarp, q_factor, i);
    if (kTokens == 8 || (g & 1) == 0) {
      to.mix[i][j] = j < i ? k_i * G * kk[e] : 0.0f;
      to.read[i][j] = j <= i ? q_i * G * (kTokens == 8 ? kq[e] : kk[1]) : 0.0f;
    }
  }
}

}  // namespace hyla::gdn
