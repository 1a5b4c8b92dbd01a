// The serial chain of state_chain.cuh for K above 128: one warpgroup holds S^T of 64 value rows by
// 256 keys, 128 accumulators a thread. As a left operand S is made a quarter of its keys at a time,
// two quarters at once, while the products of the quarter before run:
//
//     X += S_0, S_1 | O of the chunk before leaves | O += S_0, S_1 | X += S_2, S_3 | O += S_2, S_3 |
//     W | T' W | R | S += | P R | S_0, S_1 packed
//
// Nothing is left running at the end of a chunk, and the products keep the tensor cores busy but for
// the waits around T' W and after P R.
#pragma once

#include "arch/wgmma_n128.cuh"
#include "arch/wgmma_n64.cuh"
#include "ops/gdn_prefill/out_tiles.cuh"
#include "ops/gdn_prefill/pairs.cuh"
#include "ops/gdn_prefill/wide_feed.cuh"

namespace hyla::gdn {

template <class Io>
class WideChain : public OutTiles<Io> {
 public:
  // The barrier is a number that nobody else uses.
  __device__ __forceinline__ WideChain(WideShared<Io>& s, int value_block, int own_barrier)
      : OutTiles<Io>(s.out, value_block, own_barrier), pipe{s} {
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = 0;
  }

  // First key of the thread's fragment.
  __device__ __forceinline__ int column() const { return 2 * (this->thread() & 3); }

  // S is there: before the first chunk.
  __device__ __forceinline__ void begin() {
    pack_quarter<0>();
    pack_quarter<1>();
  }

  // Chunk n of the warpgroup, chunk c of its task. O of the chunk before leaves meanwhile; `first`:
  // there is none.
  template <Walk W>
  __device__ __forceinline__ void chunk(int n, int c, bool first, const OutTarget& target) {
    constexpr bool kOut = W == Walk::kOutputs;
    const std::uint32_t keys = arch::uniform(pipe.keys(n));
    const std::uint32_t queries = arch::uniform(pipe.queries(n));
    float x[32], o[32];  // X, then U; O
    pipe.wait_keys(n);
    multiply_quarter<0>(x, keys);
    multiply_quarter<1>(x, keys);
    if constexpr (kOut) {
      if (!first) this->leave(n - 1, c - 1, out, target);
      pipe.wait_queries(n);
      multiply_quarter<0>(o, queries);
      multiply_quarter<1>(o, queries);
    }
    pipe.wait_rest(n);
    const Factors& factors = pipe.factors(n);
    const float decay = factors.decay[0];
    arch::wgmma_wait<1>();
    pack_quarter<2>();
    multiply_quarter<2>(x, keys);
    scale(S[0], decay);
    arch::wgmma_wait<1>();
    pack_quarter<3>();
    if constexpr (kOut) multiply_quarter<2>(o, queries);
    multiply_quarter<3>(x, keys);
    if constexpr (kOut) multiply_quarter<3>(o, queries);
    scale(S[1], decay);
    arch::wgmma_wait<kOut ? 1 : 0>();
    arch::pin(x);

    std::uint32_t w[16];
    make_w(w, x, pipe.values(n) + this->block(), factors);
    multiply_tokens(x, w, arch::uniform(pipe.inverse(n)), false);
    arch::wgmma_wait<0>();
    arch::pin(x);
    if constexpr (kOut) arch::pin(o);
    pipe.release_queries(n);

    std::uint32_t u[16];
    if (factors.decay[1] == 0.0f) [[unlikely]] {
      // Not mild: the decay to the end of the chunk goes into the update only.
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 r = *reinterpret_cast<const float2*>(&factors.exit[8 * j + column()]);
        u[2 * j] = pack<Io>(x[4 * j] * r.x, x[4 * j + 1] * r.y);
        u[2 * j + 1] = pack<Io>(x[4 * j + 2] * r.x, x[4 * j + 3] * r.y);
      }
      update(u, keys);
      arch::wgmma_wait<0>();
      arch::pin(S[0]);
      arch::pin(S[1]);
      pack_tokens(u, x);
    } else {
      pack_tokens(u, x);
      update(u, keys);
    }
    if constexpr (kOut) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 q = *reinterpret_cast<const float2*>(&factors.query[8 * j + column()]);
        o[4 * j] *= q.x, o[4 * j + 1] *= q.y, o[4 * j + 2] *= q.x, o[4 * j + 3] *= q.y;
      }
      multiply_tokens(o, u, arch::uniform(pipe.scores(n)), true);
    }
    arch::wgmma_wait<kOut ? 1 : 0>();
    arch::pin(S[0]);
    arch::pin(S[1]);
    pipe.release_keys(n);
    begin();
    if constexpr (kOut) {
      arch::wgmma_wait<0>();
      arch::pin(o);
      pack_tokens(out, o);
    }
    pipe.release_rest(n);
  }

  // The last chunk of a task, of `rows` tokens.
  __device__ __forceinline__ void store_last_out(int n, int c, int rows, const OutTarget& target) {
    this->leave_last(n, c, rows, out, target);
  }

  float S[2][64];  // halves of the keys

 private:
  // 64 keys of S as a left operand.
  template <int Quarter>
  __device__ __forceinline__ void pack_quarter() {
    const float* from = &S[Quarter / 2][Quarter % 2 * 32];
#pragma unroll
    for (int i = 0; i < 16; ++i) left[Quarter % 2][i] = pack<Io>(from[2 * i], from[2 * i + 1]);
    arch::pin(left[Quarter % 2]);
  }

  // d (+)= a quarter of S^T times the transpose of the same columns of K or Q
  template <int Quarter>
  __device__ __forceinline__ void multiply_quarter(float (&d)[32], std::uint32_t address) {
    const arch::WgmmaDescriptor right = arch::descriptor(address + Quarter * kTileBytes);
    if constexpr (Quarter == 0) arch::pin(d);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      arch::wgmma_n64<Io>(d, left[Quarter % 2] + 4 * i, right + 2 * i, Quarter > 0 || i > 0);
    }
    arch::wgmma_commit();
  }

  // d (+)= tokens times the transpose of a 64 x 64 tile
  __device__ __forceinline__ void multiply_tokens(float (&d)[32], std::uint32_t (&tokens)[16],
                                                  std::uint32_t address, bool accumulate) {
    const arch::WgmmaDescriptor right = arch::descriptor(address);
    arch::pin(tokens);
    arch::pin(d);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      arch::wgmma_n64<Io>(d, tokens + 4 * i, right + 2 * i, accumulate || i > 0);
    }
    arch::wgmma_commit();
  }

  // S += tokens K
  __device__ __forceinline__ void update(std::uint32_t (&tokens)[16], std::uint32_t address) {
    const arch::WgmmaDescriptor first = arch::descriptor(address, kTileBytes);
    const arch::WgmmaDescriptor second = first + (2 * kTileBytes >> 4);
    arch::pin(tokens);
    arch::pin(S[0]);
    arch::pin(S[1]);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      arch::wgmma_n128_mn<Io>(S[0], tokens + 4 * i, first + 128 * i, true);
      arch::wgmma_n128_mn<Io>(S[1], tokens + 4 * i, second + 128 * i, true);
    }
    arch::wgmma_commit();
  }

  // W^T = V^T - X^T diag(entry), the values 16 tokens at a time.
  __device__ __forceinline__ void make_w(std::uint32_t (&w)[16], const float (&x)[32],
                                         std::uint32_t values, const Factors& factors) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t v[4];
      arch::load_matrices_transposed(v, values + i * 2048);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int j = 2 * i + k;
        const float2 e = *reinterpret_cast<const float2*>(&factors.entry[8 * j + column()]);
        const float2 v0 = unpack<Io>(v[2 * k]), v8 = unpack<Io>(v[2 * k + 1]);
        w[2 * j] = pack<Io>(fmaf(-e.x, x[4 * j], v0.x), fmaf(-e.y, x[4 * j + 1], v0.y));
        w[2 * j + 1] = pack<Io>(fmaf(-e.x, x[4 * j + 2], v8.x), fmaf(-e.y, x[4 * j + 3], v8.y));
      }
    }
  }

  __device__ __forceinline__ static void pack_tokens(std::uint32_t (&to)[16],
                                                     const float (&from)[32]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) to[i] = pack<Io>(from[2 * i], from[2 * i + 1]);
  }

  __device__ __forceinline__ static void scale(float (&y)[64], float factor) {
#pragma unroll
    for (int i = 0; i < 64; ++i) y[i] *= factor;
  }

  const WidePipe<Io> pipe;
  std::uint32_t out[16];      // O of the chunk before
  std::uint32_t left[2][16];  // two quarters of S as left operands
};

}  // namespace hyla::gdn
