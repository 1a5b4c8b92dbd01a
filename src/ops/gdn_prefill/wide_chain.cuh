// The serial chain of state_chain.cuh for K above 128, by two warpgroups. One holds S^T of 64 value
// rows by 256 keys, 128 accumulators a thread, and goes from state to state; before it changes S,
// it leaves it in shared memory, and later U, for the other one, which makes the outputs:
//
//     state    | S_0 K, S_1 K | S_2 K, S_3 K | W | T' W | U | S_0, S_1 += | S_2, S_3 += |
//     outputs                                | S Q                | P U | O leaves |
//
// As a left operand S is made a quarter of its keys at a time, two quarters at once, while the
// products of the quarter before run. Each warpgroup's products fill the gaps of the other's.
#pragma once

#include "ops/gdn_prefill/chunk_matrices.cuh"
#include "ops/gdn_prefill/out_tiles.cuh"
#include "ops/gdn_prefill/token_products.cuh"
#include "ops/gdn_prefill/wide_feed.cuh"

namespace hyla::gdn {

template <class Io>
class WideChain {
 public:
  // `own_barrier`: a number that nobody else uses.
  __device__ __forceinline__ WideChain(WideShared<Io>& shared, int value_block, int own_barrier)
      : s(shared), first_row(value_block * 64), barrier(own_barrier) {}

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x) & 127; }
  __device__ __forceinline__ void sync() const { arch::sync_threads(barrier, 128); }

  // First element of the thread's fragment.
  __device__ __forceinline__ int value_row() const {
    return first_row + (thread() >> 5) * 16 + (thread() >> 2 & 7);
  }
  __device__ __forceinline__ int column() const { return 2 * (thread() & 3); }

  // S is there: before the first chunk.
  __device__ __forceinline__ void begin() {
    pack_quarter<0>();
    pack_quarter<1>();
  }

  // Chunk n of the CTA, the m-th one with outputs.
  template <Walk W>
  __device__ __forceinline__ void chunk(int n, int m) {
    constexpr bool kOut = W == Walk::kOutputs;
    const int stage = n & 1;
    const std::uint32_t keys = arch::uniform(arch::shared_address(s.keys[stage]));
    float x[32];  // X, then U
    wait_stage(s.keys_full, n);
    multiply_quarter<0>(x, keys);
    multiply_quarter<1>(x, keys);
    if constexpr (kOut) {
      if (m > 0) arch::wait(s.state_empty, (m - 1) & 1);
      leave_quarter<0>();
      leave_quarter<1>();
    }
    arch::wgmma_wait<1>();
    pack_quarter<2>();
    multiply_quarter<2>(x, keys);
    if constexpr (kOut) leave_quarter<2>();
    arch::wgmma_wait<1>();
    pack_quarter<3>();
    multiply_quarter<3>(x, keys);
    if constexpr (kOut) {
      leave_quarter<3>();
      arch::fence_async_proxy();
      release(s.state_full);
    }
    wait_stage(s.rest_full, n);
    const Factors& factors = s.factors[stage];
    const float decay = factors.decay[0];
    scale(S[0], decay);
    scale(S[1], decay);
    arch::wgmma_wait<0>();
    arch::pin(x);

    std::uint32_t w[16];
    make_w<Io>(w, x, arch::shared_address(s.rest[stage].values) + token_block(thread()), factors,
               column());
    multiply_tokens<Io>(x, w, arch::uniform(arch::shared_address(s.rest[stage].prepared[0])),
                        false);
    arch::wgmma_wait<0>();
    arch::pin(x);

    std::uint32_t u[16];
    pack_tokens<Io>(u, x);
    if (factors.decay[1] == 0.0f) [[unlikely]] {
      if constexpr (kOut) leave_update(u, m);
      pack_decayed<Io>(u, x, factors, column());
    }
    update(u, keys);
    if constexpr (kOut) {
      if (factors.decay[1] != 0.0f) [[likely]]
        leave_update(u, m);
    }
    release(s.rest_empty[stage]);
    if constexpr (!kOut) release(s.rest_empty[stage]);  // for those who make outputs
    arch::wgmma_wait<1>();
    arch::pin(S[0]);
    begin();
    arch::wgmma_wait<0>();
    arch::pin(S[1]);
    release(s.keys_empty[stage]);
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

  // The same into its tile.
  template <int Quarter>
  __device__ __forceinline__ void leave_quarter() {
    put(s.state[Quarter], left[Quarter % 2]);
  }

  __device__ __forceinline__ void leave_update(const std::uint32_t (&u)[16], int m) {
    if (m > 0) arch::wait(s.update_empty, (m - 1) & 1);
    put(s.update, u);
    arch::fence_async_proxy();
    release(s.update_full);
  }

  __device__ __forceinline__ void put(Io* tile, const std::uint32_t (&from)[16]) {
    const BlockAddress to = block_address(tile, thread());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      arch::store_matrices(to(i), reinterpret_cast<const std::uint32_t(&)[4]>(from[4 * i]));
    }
  }

  // d (+)= a quarter of S^T times the transpose of the same columns of K
  template <int Quarter>
  __device__ __forceinline__ void multiply_quarter(float (&d)[32], std::uint32_t address) {
    const arch::WgmmaDescriptor right = arch::descriptor(address + Quarter * kTileBytes);
    if constexpr (Quarter == 0) arch::pin(d);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      arch::wgmma_rs<Io, 64>(d, left[Quarter % 2] + 4 * i, right + 2 * i, Quarter > 0 || i > 0);
    }
    arch::wgmma_commit();
  }

  // S += tokens K, in two groups.
  __device__ __forceinline__ void update(std::uint32_t (&tokens)[16], std::uint32_t address) {
    const arch::WgmmaDescriptor keys = arch::descriptor(address, kTileBytes);
    arch::pin(tokens);
    arch::pin(S[0]);
    arch::pin(S[1]);
    arch::wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        arch::wgmma_rs<Io, 128, true>(S[half], tokens + 4 * i,
                                      keys + half * (2 * kTileBytes >> 4) + 128 * i, true);
      }
      arch::wgmma_commit();
    }
  }

  WideShared<Io>& s;
  const int first_row, barrier;
  std::uint32_t left[2][16];  // two quarters of S as left operands
};

// The outputs: O^T = (S^T Q^T) diag(scale 2^g) + U^T P^T, with S and U from shared memory.
template <class Io>
class WideOutputs : public OutTiles<Io> {
 public:
  __device__ __forceinline__ WideOutputs(WideShared<Io>& shared, int value_block, int own_barrier)
      : OutTiles<Io>(shared.out, value_block, own_barrier), s(shared) {}

  // Chunk n of the CTA, the m-th one with outputs, chunk c of the task, of `rows` tokens.
  __device__ __forceinline__ void chunk(int n, int m, int c, int rows, const OutTarget& target) {
    const int stage = n & 1, column = 2 * (this->thread() & 3);
    float o[32];
    arch::wait(s.state_full, m & 1);
    wait_stage(s.queries_full, m);
    multiply<kWideTiles>(o, s.state[0], s.queries[m & 1][0], false);
    wait_stage(s.rest_full, n);
    arch::wgmma_wait<0>();
    arch::pin(o);
    release(s.queries_empty[m & 1]);
    release(s.state_empty);
    const Factors& factors = s.factors[stage];
    scale_queries(o, factors, column);
    arch::wait(s.update_full, m & 1);
    multiply<1>(o, s.update, s.rest[stage].prepared[1], true);
    this->free_tiles();
    arch::wgmma_wait<0>();
    arch::pin(o);
    release(s.update_empty);
    release(s.rest_empty[stage]);
    std::uint32_t out[16];
    pack_tokens<Io>(out, o);
    this->leave_last(0, c, rows, out, target);
  }

 private:
  // o (+)= left times the transpose of right, both so many tiles of 64 columns.
  template <int Tiles>
  __device__ __forceinline__ void multiply(float (&o)[32], const Io* left, const Io* right,
                                           bool accumulate) {
    const arch::WgmmaDescriptor a = arch::descriptor(arch::uniform(arch::shared_address(left)));
    const arch::WgmmaDescriptor b = arch::descriptor(arch::uniform(arch::shared_address(right)));
    arch::pin(o);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4 * Tiles; ++i) {
      const std::uint32_t step = (i & 3) * 2 + (i >> 2) * (kTileBytes >> 4);
      arch::Wgmma<Io, 64>::ss(o, a + step, b + step, accumulate || i > 0);
    }
    arch::wgmma_commit();
  }

  WideShared<Io>& s;
};

}  // namespace hyla::gdn
