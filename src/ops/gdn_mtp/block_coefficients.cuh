// Gates, norms and the products of the keys of a block, by one warp.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/matrix.cuh"
#include "arch/mma.cuh"
#include "device/reduce.cuh"
#include "ops/gdn_mtp/block_arguments.cuh"
#include "ops/gdn_mtp/block_policy.h"

namespace hyla::gdn {

// The two 16-bit numbers of a word as float32, which are tf32 too.
template <class Io>
__device__ __forceinline__ void widen(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
  if constexpr (std::is_same_v<Io, __nv_bfloat16>) {
    low = word << 16, high = word & 0xffff0000u;
  } else {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
    low = __float_as_uint(pair.x), high = __float_as_uint(pair.y);
  }
}

__device__ __forceinline__ std::uint32_t word_of(const uint4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// The lane's columns of step j, of token g; which: k or q.
template <class P>
__device__ __forceinline__ uint4 key_words(const BlockKeys<P, true>& keys, int which, int j,
                                           int lane) {
  return keys.words[which][j][lane];
}

template <class P>
__device__ __forceinline__ uint4 key_words(const BlockKeys<P, false>& keys, int which, int j,
                                           int lane) {
  constexpr int kBytes = sizeof(typename P::Io);
  const unsigned char* token = keys.bytes[which][lane >> 2];
  if constexpr (!P::kApart) {
    return *reinterpret_cast<const uint4*>(token + (32 * j + 8 * (lane & 3)) * kBytes);
  }
  const unsigned char* at = token + (32 * j + 4 * (lane & 3)) * kBytes;
  const uint2 low = *reinterpret_cast<const uint2*>(at);
  const uint2 high = *reinterpret_cast<const uint2*>(at + 16 * kBytes);
  return make_uint4(low.x, low.y, high.x, high.y);
}

// The first operand of the dots of one step: words 2 half, 2 half + 1 of k and q in turns.
struct KeyQuads {
  uint4 halves[2];

  __device__ __forceinline__ KeyQuads(const uint4& k, const uint4& q)
      : halves{make_uint4(k.x, q.x, k.y, q.y), make_uint4(k.z, q.z, k.w, q.w)} {}
};

template <class P>
__device__ __forceinline__ KeyQuads key_quads(const BlockKeys<P, true>& keys, int j, int lane) {
  KeyQuads quads({}, {});
  quads.halves[0] = keys.words[0][j][lane], quads.halves[1] = keys.words[1][j][lane];
  return quads;
}

template <class P>
__device__ __forceinline__ KeyQuads key_quads(const BlockKeys<P, false>& keys, int j, int lane) {
  return {key_words<P>(keys, 0, j, lane), key_words<P>(keys, 1, j, lane)};
}

__device__ __forceinline__ uint4 turned(const uint4& words) {
  return make_uint4(arch::transpose_matrix(words.x), arch::transpose_matrix(words.y),
                    arch::transpose_matrix(words.z), arch::transpose_matrix(words.w));
}

// A row of one block: a lane's k and q, for all steps or for half of them. Zero past the end of the
// row. Warp 0 makes the coefficients of all steps, two others hand on the keys.
template <class P>
struct KeyFragments {
  uint4 k[P::kSteps], q[P::kSteps];

  static constexpr int kSharers = 2, kShare = P::kSteps / kSharers;

  __device__ __forceinline__ void load(const MtpBlockArguments& a, std::uint32_t row,
                                       std::uint32_t head, std::uint32_t tokens, int warp,
                                       int lane) {
    using Io = typename P::Io;
    if (warp > kSharers) return;
    const auto key_head = static_cast<std::uint32_t>(a.group(static_cast<int>(head)));
    const std::uint32_t token = lane >> 2;
    const int column =
        (P::kApart ? 4 : 8) * (lane & 3) + (warp == 0 ? 0 : 32 * kShare * (warp - 1));
    const Io* from_k = static_cast<const Io*>(a.k) + at(a.k_stride, row, token, key_head) + column;
    const Io* from_q = static_cast<const Io*>(a.q) + at(a.q_stride, row, token, key_head) + column;
    const auto load_step = [](const Io* from) {
      if constexpr (!P::kApart) return *reinterpret_cast<const uint4*>(from);
      const uint2 low = *reinterpret_cast<const uint2*>(from);
      const uint2 high = *reinterpret_cast<const uint2*>(from + 16);
      return make_uint4(low.x, low.y, high.x, high.y);
    };
#pragma unroll
    for (int j = 0; j < P::kSteps; ++j) {
      k[j] = q[j] = make_uint4(0, 0, 0, 0);
      if (token < tokens && (j < kShare || warp == 0)) {
        k[j] = load_step(from_k + 32 * j);
        q[j] = load_step(from_q + 32 * j);
      }
    }
  }

  __device__ __forceinline__ void share(MtpBlockShared<P>& shared, int warp, int lane) const {
    if (warp > kSharers) return;
    const int first = kShare * (warp - 1);
#pragma unroll
    for (int j = 0; j < kShare; ++j) {
      const KeyQuads quads(k[j], q[j]);
      shared.keys[0].words[0][first + j][lane] = P::kStateFirst ? k[j] : quads.halves[0];
      shared.keys[0].words[1][first + j][lane] = P::kStateFirst ? q[j] : quads.halves[1];
      shared.turned[0][first + j][lane] = turned(k[j]);
    }
  }
};

// The keys of a longer row: 16 bytes of k and of q a thread.
template <class P>
struct KeyChunks {
  using Io = typename P::Io;
  static constexpr int kChunk = 8, kChunks = P::kK / kChunk;
  static_assert(P::kTokens * kChunks == P::kWarps * 32);
  uint4 k, q;

  static const __device__ __forceinline__ Io* place(const void* data, const TokenStrides& stride,
                                                    std::uint32_t row, std::uint32_t head,
                                                    std::uint32_t token, int thread) {
    return static_cast<const Io*>(data) + at(stride, row, token, head) + thread % kChunks * kChunk;
  }
  static __device__ __forceinline__ unsigned char* place(BlockKeys<P, false>& keys, int which,
                                                         int thread) {
    return &keys.bytes[which][thread / kChunks][thread % kChunks * kChunk * sizeof(Io)];
  }
  // The first block's pass through registers: copies without them made a row of one block slower
  // by a sixth.
  __device__ __forceinline__ void load(const MtpBlockArguments& a, std::uint32_t row,
                                       std::uint32_t head, std::uint32_t first,
                                       std::uint32_t tokens, int thread) {
    const auto key_head = static_cast<std::uint32_t>(a.group(static_cast<int>(head)));
    const std::uint32_t token = thread / kChunks;
    k = q = make_uint4(0, 0, 0, 0);
    if (token < tokens) {
      k = *reinterpret_cast<const uint4*>(
          place(a.k, a.k_stride, row, key_head, first + token, thread));
      q = *reinterpret_cast<const uint4*>(
          place(a.q, a.q_stride, row, key_head, first + token, thread));
    }
  }
  __device__ __forceinline__ void share(int thread, BlockKeys<P, false>& to) const {
    *reinterpret_cast<uint4*>(place(to, 0, thread)) = k;
    *reinterpret_cast<uint4*>(place(to, 1, thread)) = q;
  }
};

// Those of later blocks come while others are worked on. Zero past the end of the row.
template <class P>
__device__ __forceinline__ void start_keys(const MtpBlockArguments& a, std::uint32_t row,
                                           std::uint32_t head, std::uint32_t first,
                                           std::uint32_t tokens, int thread,
                                           BlockKeys<P, false>& to) {
  using Chunks = KeyChunks<P>;
  const auto key_head = static_cast<std::uint32_t>(a.group(static_cast<int>(head)));
  const std::uint32_t own = thread / Chunks::kChunks, token = own < tokens ? first + own : first;
  const int bytes = own < tokens ? 16 : 0;
  arch::copy_16(arch::shared_address(Chunks::place(to, 0, thread)),
                Chunks::place(a.k, a.k_stride, row, key_head, token, thread), bytes);
  arch::copy_16(arch::shared_address(Chunks::place(to, 1, thread)),
                Chunks::place(a.q, a.q_stride, row, key_head, token, thread), bytes);
  arch::commit_copies();
}

// Rows of `solved` and `output` hold, to begin with, what token i takes from the y of tokens before
// it (with the other sign) and what o(i) takes from them. b instead of y: times the inverse of the
// triangular matrix 1 + solved.
__device__ __forceinline__ void invert(MtpCoefficients& c, int lane) {
  constexpr int kTokens = kMtpBlockTokens;
  const int column = lane % kTokens, pair = lane / kTokens;  // this lane's part: rows 2 pair + 0..1
  float inverse[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    inverse[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; ++j) inverse[i] -= c.solved[i][j] * inverse[j];
  }
  float output[2] = {};
#pragma unroll
  for (int j = 0; j < kTokens; ++j) {
    output[0] += c.output[2 * pair][j] * inverse[j];
    output[1] += c.output[2 * pair + 1][j] * inverse[j];
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (i / 2 == pair) {
      c.solved[i][column] = inverse[i];
      c.output[i][column] = output[i % 2];
    }
  }
}

// Products of the keys of a block: k(g).k(2t..); k(g).q(2t..), and q(g).q(2t..) below.
struct KeyProducts {
  float kk[4], kq[4];
};

// Of all steps of a lane's words k(j) and q(j).
template <class Io, int Steps, class Keys>
__device__ __forceinline__ KeyProducts multiply_keys(Keys keys) {
  float kk[2][4] = {}, kq[2][4] = {};
#pragma unroll
  for (int j = 0; j < Steps; ++j) {
    const uint4 k = keys(0, j), q = keys(1, j);
    const std::uint32_t k0[] = {k.x, 0, k.y, 0}, k1[] = {k.z, 0, k.w, 0};
    const std::uint32_t kq0[] = {k.x, q.x, k.y, q.y}, kq1[] = {k.z, q.z, k.w, q.w};
    arch::mma_16x8x16<Io>(kk[0], k0, k.x, k.y);
    arch::mma_16x8x16<Io>(kq[0], kq0, q.x, q.y);
    arch::mma_16x8x16<Io>(kk[1], k1, k.z, k.w);
    arch::mma_16x8x16<Io>(kq[1], kq1, q.z, q.w);
  }
  KeyProducts products;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    products.kk[i] = kk[0][i] + kk[1][i], products.kq[i] = kq[0][i] + kq[1][i];
  }
  return products;
}

template <int Warps>
__device__ __forceinline__ void send_products(SentProducts (&sent)[Warps],
                                              const KeyProducts& products, int warp, int lane) {
  const auto& kk = products.kk;
  const auto& kq = products.kq;
  sent[warp].words[0][lane] = make_float4(kk[0], kk[1], kk[2], kk[3]);
  sent[warp].words[1][lane] = make_float4(kq[0], kq[1], kq[2], kq[3]);
}

// Behind a barrier.
template <int Warps>
__device__ __forceinline__ KeyProducts receive_products(const SentProducts (&sent)[Warps],
                                                        const KeyProducts& own, int warp,
                                                        int lane) {
  KeyProducts sum = own;
#pragma unroll
  for (int i = 1; i < Warps; ++i) {
    const SentProducts& other = sent[(warp + i) % Warps];
    const float4 kk = other.words[0][lane], kq = other.words[1][lane];
    sum.kk[0] += kk.x, sum.kk[1] += kk.y, sum.kk[2] += kk.z, sum.kk[3] += kk.w;
    sum.kq[0] += kq.x, sum.kq[1] += kq.y, sum.kq[2] += kq.z, sum.kq[3] += kq.w;
  }
  return sum;
}

// A lane's k and q of its warp's columns, those of all warps of a side: pieces of 32.
template <class P>
struct OwnKeys {
  static constexpr int kPieces = P::kLines / 32;
  uint4 k[kPieces], q[kPieces];

  __device__ __forceinline__ void load(const MtpBlockArguments& a, std::uint32_t row,
                                       std::uint32_t head, std::uint32_t tokens, int part,
                                       int lane) {
    using Io = typename P::Io;
    static_assert(!P::kApart);
    const auto key_head = static_cast<std::uint32_t>(a.group(static_cast<int>(head)));
    const std::uint32_t token = lane >> 2;
    const int column = P::kLines * part + 8 * (lane & 3);
    const Io* from_k = static_cast<const Io*>(a.k) + at(a.k_stride, row, token, key_head) + column;
    const Io* from_q = static_cast<const Io*>(a.q) + at(a.q_stride, row, token, key_head) + column;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      k[i] = q[i] = make_uint4(0, 0, 0, 0);
      if (token < tokens) {
        k[i] = *reinterpret_cast<const uint4*>(from_k + 32 * i);
        q[i] = *reinterpret_cast<const uint4*>(from_q + 32 * i);
      }
    }
  }
  // Of the piece that no other warp of the CTA multiplies.
  __device__ __forceinline__ KeyProducts multiply(int side) const {
    static_assert(kPieces == 2 && P::kSides == 2);
    return multiply_keys<typename P::Io, 1>([&](int which, int) {
      if (which == 0) return side == 0 ? k[0] : k[1];
      return side == 0 ? q[0] : q[1];
    });
  }
};

// The first `applied` of the block's `tokens` reach the state that is kept. alpha and beta are
// those of token lane % kTokens, 1 and 0 past the end of the row. With r the factor of the L2 norm,
// E(i) the decay up to token i and G(i, j) that after token j up to i:
//   y(i) = r beta v(i) - r^2 beta E(i) k(i).S - sum over j < i of r^2 beta G(i, j) k(i).k(j) y(j)
//   o(i) = r_q E(i) q(i).S + sum over j <= i of r_q G(i, j) q(i).k(j) y(j)
template <class P>
__device__ __forceinline__ void make_coefficients(const MtpBlockArguments& a,
                                                  const KeyProducts& products, float alpha,
                                                  float beta, int tokens, int applied, int lane,
                                                  MtpCoefficients& to) {
  constexpr int kTokens = P::kTokens;
  const int g = lane >> 2, t = lane & 3, own = lane % kTokens;
  const int from = own * 4 + own / 2;
  const float k0 = __shfl_sync(device::kFullWarp, products.kk[0], from);
  const float k1 = __shfl_sync(device::kFullWarp, products.kk[1], from);
  const float q0 = __shfl_sync(device::kFullWarp, products.kq[2], from);
  const float q1 = __shfl_sync(device::kFullWarp, products.kq[3], from);
  float k_factor = 1.0f, q_factor = a.scale;
  if ((P::kOptions == Options::kUsual || a.l2norm) && own < tokens) {
    k_factor = rsqrtf((own % 2 == 0 ? k0 : k1) + a.l2norm_eps);
    q_factor *= rsqrtf((own % 2 == 0 ? q0 : q1) + a.l2norm_eps);
  }
  // E: decay up to and with the own token. after: decay from the own token to the end of what is
  // kept.
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

  // This lane's part of what token j = g means to tokens i = 2 t + e.
  const int j = g;
  float decay = 1.0f, last = 1.0f;
#pragma unroll
  for (int l = 1; l < kTokens; ++l) {
    const float other = __shfl_sync(device::kFullWarp, alpha, l);
    if (l > j && l <= 2 * t) decay *= other;
    if (l == 2 * t + 1) last = other;
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int i = 2 * t + e;
    const float G = e == 0 ? decay : (j <= 2 * t ? decay * last : 1.0f);
    const float k_i = __shfl_sync(device::kFullWarp, mixed, i);
    const float q_i = __shfl_sync(device::kFullWarp, q_factor, i);
    to.solved[i][j] = j < i ? k_i * G * products.kk[e] : 0.0f;
    to.output[i][j] = j <= i ? q_i * G * products.kq[e] : 0.0f;
  }
  __syncwarp();
  invert(to, lane);
}

}  // namespace hyla::gdn
