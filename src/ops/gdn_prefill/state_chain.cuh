// The serial chain over chunks: one warpgroup holds S^T of 64 value rows, float32, in its
// accumulators. With T', P and the factors of a chunk at hand:
//
//     X^T = S^T K^T        W^T = V^T - X^T diag(2^g)        U^T = W^T T'^T
//     O^T = (S^T Q^T) diag(scale 2^g) + U^T P^T
//     S^T = 2^g_last S^T + (U^T diag(2^(g_last - g))) K
//
// Every left operand is a register fragment of the accumulator before it, so the chain from S to S
// makes no round trip through shared memory.
//
// Pipe says where the parts of chunk n lie and hands them over:
//
//     wait_keys(n), wait_values(n), wait_factors(n), wait_inverse(n), wait_scores(n)
//     release_values(n), release_inverse(n), release_factors(n), release_scores(n), release_keys(n)
//     keys(n), values(n), inverse(n), scores(n): addresses in shared memory;  factors(n)
//
// Here there are registers for W while S^T Q^T runs, and for O until the state is updated.
#pragma once

#include "ops/gdn_prefill/chain_base.cuh"

namespace hyla::gdn {

template <class Io, class Pipe>
class StateChain : public ChainBase<Io, Pipe> {
  using Base = ChainBase<Io, Pipe>;

 public:
  using Base::Base, Base::S, Base::column, Base::thread;

  // Chunk n of the warpgroup, chunk c of its task. O of the chunk before leaves meanwhile; `first`:
  // there is none.
  template <Walk W>
  __device__ __forceinline__ void chunk(int n, int c, bool first, const OutTarget& target) {
    static_assert(W != Walk::kTransfer);
    constexpr bool kOut = W == Walk::kOutputs;
    const std::uint32_t keys = arch::uniform(pipe.keys(n));
    this->pack_state();
    std::uint32_t out[16];
    if constexpr (kOut) pack_out(out);  // of the chunk before
    pipe.wait_keys(n);
    this->multiply_state(x, keys);
    if constexpr (kOut) this->multiply_state(o, keys + kTileBytes);

    std::uint32_t v[16];
    pipe.wait_values(n);
    const std::uint32_t values = pipe.values(n) + token_block(thread());
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      arch::load_matrices_transposed(reinterpret_cast<std::uint32_t(&)[4]>(v[4 * j]),
                                     values + j * 2048);
    }
    pipe.wait_factors(n);
    const Factors& factors = pipe.factors(n);
    if constexpr (kOut) {
      arch::wgmma_wait<1>();
      arch::pin(x);
    } else {
      arch::wgmma_wait<0>();
      arch::pin(x);
      arch::pin(o);
    }
    std::uint32_t w[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) make_w<Io>(w, i, v + 4 * i, x, factors, column());
    pipe.release_values(n);

    pipe.wait_inverse(n);
    multiply_tokens<Io>(x, w, arch::uniform(pipe.inverse(n)), false);
    scale(S, factors.decay[0]);
    arch::wgmma_wait<0>();
    arch::pin(x);
    if constexpr (kOut) arch::pin(o);
    pipe.release_inverse(n);

    std::uint32_t u[16];
    if (factors.decay[1] == 0.0f) [[unlikely]] {
      pack_decayed<Io>(u, x, factors, column());
      this->update(u, keys);
      arch::wgmma_wait<0>();
      arch::pin(S);
      pack_tokens<Io>(u, x);
    } else {
      pack_tokens<Io>(u, x);
      this->update(u, keys);
    }
    if constexpr (kOut) {
      scale_queries(o, factors, column());
      pipe.wait_scores(n);
    }
    pipe.release_factors(n);
    if constexpr (kOut) {
      multiply_tokens<Io>(o, u, arch::uniform(pipe.scores(n)), true);
      if (!first) this->leave(n - 1, c - 1, out, target);
    }
    arch::wgmma_wait<0>();
    arch::pin(S);
    if constexpr (kOut) arch::pin(o);
    pipe.release_scores(n);
    pipe.release_keys(n);
  }

  // The last chunk of a task, of `rows` tokens; where it is not whole, only its own rows.
  __device__ __forceinline__ void store_last_out(int n, int c, int rows, const OutTarget& target) {
    std::uint32_t out[16];
    pack_out(out);
    this->leave_last(n, c, rows, out, target);
  }

 private:
  using Base::pipe, Base::x, Base::o;

  __device__ __forceinline__ void pack_out(std::uint32_t (&out)[16]) {
    pack_tokens<Io>(out, o);
    arch::pin(out);
  }
};

}  // namespace hyla::gdn
