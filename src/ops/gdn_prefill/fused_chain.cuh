// The serial chain of the fused kernel, as state_chain.cuh has it, in as many forms as there are
// kinds of chunks: each has its code in one piece, and mild ones the order that leaves the tensor
// cores least often without a product,
//
//     chain     | K S      | W formed | T' W | U packed | update | S packed | K S ...
//     outputs                                | Q S               | P U
//     besides   | tiles asked for, V |         S decays          | O of the chunk before leaves
//
// The sums are those of StateChain, to the bit.
#pragma once

#include "ops/gdn_prefill/chain_base.cuh"

namespace hyla::gdn {

// Pipe: as for StateChain, and ask_ahead(n), mild(n).
template <class Io, class Pipe>
class FusedChain : public ChainBase<Io, Pipe> {
  using Base = ChainBase<Io, Pipe>;

 public:
  using Base::Base, Base::S, Base::column, Base::thread, Base::pack_state;

  // Chunk n of the warpgroup, chunk c of its task, which is mild. S is packed, and will be. O of
  // the chunk before leaves meanwhile; `first`: there is none. `more`: the next chunk of the walk
  // may be mild. Is it?
  __device__ __forceinline__ bool chunk_mild(int n, int c, bool first, const OutTarget& target,
                                             bool more) {
    const std::uint32_t keys = arch::uniform(pipe.keys(n));
    pipe.wait_keys(n);
    // Not those of the chunk before: these would be live until here.
    float x[32], o[32];
    this->multiply_state(x, keys);
    pipe.ask_ahead(n);
    __syncwarp();
    std::uint32_t w[16];
    const Factors& factors = make_w_of(n, x, w);
    multiply_tokens<Io>(x, w, arch::uniform(pipe.inverse(n)), false);
    scale(S, factors.decay[0]);
    arch::wgmma_wait<0>();
    arch::pin(x);
    this->multiply_state(o, keys + kTileBytes);
    pipe.release_inverse(n);
    std::uint32_t u[16];
    pack_tokens<Io>(u, x);
    this->update(u, keys);
    arch::wgmma_wait<1>();
    arch::pin(o);
    scale_queries(o, factors, column());
    pipe.wait_scores(n);
    multiply_tokens<Io>(o, u, arch::uniform(pipe.scores(n)), true);
    const bool mild = more && pipe.mild(n + 1);
    send_before(n, c, first, target);
    arch::wgmma_wait<1>();
    arch::pin(S);
    pipe.release_keys(n);
    pack_state();
    arch::wgmma_wait<0>();
    arch::pin(o);
    pipe.release_scores(n);
    put_out(n, o);
    return mild;
  }

  // The same of any other chunk, S packed or not. Strong: it is known not to be mild.
  template <bool Strong>
  __device__ __forceinline__ bool chunk(int n, int c, bool first, const OutTarget& target,
                                        bool more) {
    const std::uint32_t keys = arch::uniform(pipe.keys(n));
    pack_state();
    pipe.wait_keys(n);
    float x[32], o[32];
    this->multiply_state(x, keys);
    this->multiply_state(o, keys + kTileBytes);
    pipe.ask_ahead(n);
    __syncwarp();
    send_before(n, c, first, target);
    std::uint32_t w[16];
    pipe.wait_factors(n);
    const Factors& factors = make_w_of(n, x, w, o);
    multiply_tokens<Io>(x, w, arch::uniform(pipe.inverse(n)), false);
    scale(S, factors.decay[0]);
    arch::wgmma_wait<0>();
    arch::pin(x);
    pipe.release_inverse(n);
    std::uint32_t u[16];
    if (Strong || factors.decay[1] == 0.0f) {
      std::uint32_t decayed[16];
      pack_decayed<Io>(decayed, x, factors, column());
      this->update(decayed, keys);
      if constexpr (!Strong) {
        arch::wgmma_wait<0>();
        arch::pin(S);
      }
      pack_tokens<Io>(u, x);
    } else {
      pack_tokens<Io>(u, x);
      this->update(u, keys);
    }
    scale_queries(o, factors, column());
    pipe.wait_scores(n);
    multiply_tokens<Io>(o, u, arch::uniform(pipe.scores(n)), true);
    const bool mild = more && pipe.mild(n + 1);
    arch::wgmma_wait<0>();
    arch::pin(S);
    arch::pin(o);
    pipe.release_scores(n);
    pipe.release_keys(n);
    put_out(n, o);
    return mild;
  }

  // The last chunk of a task, of `rows` tokens; where it is not whole, only its own rows.
  __device__ __forceinline__ void store_last_out(int n, int c, int rows, const OutTarget& target) {
    arch::fence_async_proxy();
    this->send_last(n, c, rows, target);
  }

 private:
  using Base::pipe;

  // W of a chunk whose S^T K^T, and S^T Q^T if it is given, is on its way. T' is there then.
  template <class... Others>
  const __device__ __forceinline__ Factors& make_w_of(int n, float (&x)[32], std::uint32_t (&w)[16],
                                                      Others&... others) {
    pipe.wait_values(n);
    std::uint32_t v[16];
    const std::uint32_t values = pipe.values(n) + token_block(thread());
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      arch::load_matrices_transposed(reinterpret_cast<std::uint32_t(&)[4]>(v[4 * j]),
                                     values + j * 2048);
    }
    const Factors& factors = pipe.factors(n);
    arch::wgmma_wait<0>();
    arch::pin(x);
    (arch::pin(others), ...);
#pragma unroll
    for (int i = 0; i < 4; ++i) make_w<Io>(w, i, v + 4 * i, x, factors, column());
    pipe.release_values(n);
    pipe.wait_inverse(n);
    return factors;
  }

  __device__ __forceinline__ void put_out(int n, const float (&o)[32]) const {
    std::uint32_t out[16];
    pack_tokens<Io>(out, o);
    arch::pin(out);
    this->put(n, out);
  }

  // O of the chunk before, which is in its tile. Frees the other tile.
  __device__ __forceinline__ void send_before(int n, int c, bool first,
                                              const OutTarget& target) const {
    if (first) return this->free_tiles();
    arch::fence_async_proxy();
    this->send(n - 1, c - 1, target);
  }
};

}  // namespace hyla::gdn
