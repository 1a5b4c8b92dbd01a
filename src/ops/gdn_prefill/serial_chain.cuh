// The serial chain over prepared chunks, as state_chain.cuh has it, where registers are plentiful
// and nothing but the chain from S to S decides how long a chunk takes. The products of the outputs
// run where that chain leaves the tensor cores idle:
//
//     chain     | S packed |  K S      | W formed  | T' W | U packed | update      | S packed ...
//     outputs     P U of the chunk before | Q S, a half | the other half |             | P U
//
// So a chunk ends with its last products still running: S is there after settle() or in the next
// chunk. The sums are those of StateChain, to the bit.
//
// Pipe::kRoomy: there are registers for what W is made of while K S runs.
#pragma once

#include "ops/gdn_prefill/chain_base.cuh"

namespace hyla::gdn {

template <class Io, class Pipe>
class SerialChain : public ChainBase<Io, Pipe> {
  using Base = ChainBase<Io, Pipe>;

 public:
  using Base::Base, Base::S, Base::column, Base::thread;

  // Starts a walk: chunk n is there, and S.
  template <Walk W>
  __device__ __forceinline__ void begin(int n) {
    stage = arch::uniform(pipe.stage(n));
    const std::uint32_t keys = pipe.keys_at(stage);
    multiply_keys(keys);
    if constexpr (W == Walk::kOutputs) multiply_queries<0>(keys + kTileBytes);
    load_rest<W>();
    wait_behind<W>();
    arch::pin(x);
  }
  // The same where a walk for the state only has led up to the chunk.
  __device__ __forceinline__ void begin_outputs() {
    multiply_queries<0>(pipe.keys_at(stage) + kTileBytes);
  }

  // Chunk n of the warpgroup, chunk c of its task. O of the chunk before leaves meanwhile; `first`:
  // there is none. `next` waits for the next chunk. Products with that one are started, whether
  // there is one or not.
  template <Walk W, class Next>
  __device__ __forceinline__ void chunk(int n, int c, bool first, const OutTarget& target,
                                        Next&& next) {
    constexpr bool kOut = W == Walk::kOutputs;
    const std::uint32_t keys = pipe.keys_at(stage);
    const Factors& factors = pipe.factors_at(stage);
    std::uint32_t w[16];
    if constexpr (Pipe::kRoomy) {
#pragma unroll
      for (int i = 0; i < 4; ++i) make_w<Io>(w, i, v + 4 * i, x, entry);
    } else {
      make_w<Io>(w, x, pipe.values_at(stage) + token_block(thread()), factors, column());
    }
    multiply_tokens<Io>(x, w, pipe.inverse_at(stage), false);
    if constexpr (kOut) multiply_queries<4>(keys + kTileBytes);
    scale(S, decay.x);
    wait_behind<W>();
    arch::pin(x);

    std::uint32_t u[16];
    if (decay.y == 0.0f) [[unlikely]] {
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
      arch::wgmma_wait<1>();
      arch::pin(o);
      scale_queries(o, factors, column());
      multiply_tokens<Io>(o, u, pipe.scores_at(stage), true);
      if (!first) this->template send<true>(n - 1, c - 1, target);
    }
    stage = arch::uniform(pipe.stage(n + 1));
    next();
    wait_behind<W>();
    arch::pin(S);

    const std::uint32_t next_keys = pipe.keys_at(stage);
    multiply_keys(next_keys);
    if constexpr (kOut) {
      arch::wgmma_wait<1>();
      arch::pin(o);
      std::uint32_t out[16];
      pack_tokens<Io>(out, o);
      arch::pin(out);
      multiply_queries<0>(next_keys + kTileBytes);
      this->write(n, out);
    }
    load_rest<W>();
    pipe.release_keys(n);
    wait_behind<W>();
    arch::pin(x);
  }

  // Ends a walk: nothing runs any more.
  __device__ __forceinline__ void settle() {
    arch::wgmma_wait<0>();
    arch::pin(o);
  }

  // The last chunk of a task, of `rows` tokens; where it is not whole, only its own rows.
  __device__ __forceinline__ void store_last_out(int n, int c, int rows, const OutTarget& target) {
    this->send_last(n, c, rows, target);
  }

 private:
  using Base::pipe, Base::x, Base::o, Base::state;

  // Products of outputs run behind those of the chain.
  template <Walk W>
  __device__ __forceinline__ void wait_behind() const {
    arch::wgmma_wait<W == Walk::kOutputs ? 1 : 0>();
  }

  // The decays, and what W is made of but for x where there are registers for it.
  template <Walk W>
  __device__ __forceinline__ void load_rest() {
    const Factors& factors = pipe.factors_at(stage);
    decay = *reinterpret_cast<const float2*>(factors.decay);
    if constexpr (!Pipe::kRoomy) return;
    if constexpr (W != Walk::kTransfer) {
      const std::uint32_t values = pipe.values_at(stage) + token_block(thread());
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        arch::load_matrices_transposed(reinterpret_cast<std::uint32_t(&)[4]>(v[4 * j]),
                                       values + j * 2048);
      }
    } else {
#pragma unroll
      for (int j = 0; j < 16; ++j) v[j] = 0u;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      entry[j] = *reinterpret_cast<const float2*>(&factors.entry[8 * j + column()]);
    }
  }

  // x = S^T K^T
  __device__ __forceinline__ void multiply_keys(std::uint32_t address) {
    this->pack_state();
    this->multiply_state(x, address);
  }

  // o (+)= S^T Q^T over 64 keys, from the First-th 16 on.
  template <int First>
  __device__ __forceinline__ void multiply_queries(std::uint32_t address) {
    const arch::WgmmaDescriptor right =
        arch::descriptor(address) + (First >> 2) * (2 * kTileBytes >> 4);
    if constexpr (First == 0) arch::pin(o);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      arch::wgmma_rs<Io, 64>(o, state + 4 * (First + i), right + i * 2, First > 0 || i > 0);
    }
    arch::wgmma_commit();
  }

  // Of the chunk that S has been multiplied by.
  std::uint32_t stage;  // its place
  std::uint32_t v[16];  // V^T
  float2 entry[8];      // of the thread's tokens
  float2 decay;
};

}  // namespace hyla::gdn
