// What each segment makes of its initial state (segments.cuh), for a kernel that then makes the
// outputs of all segments as sequences of their own: the fused kernel without Q, P and O. A CTA has
// all value rows of N or of M of a piece, and makes T' on its way: nothing is prepared.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/gdn_prefill/fused_auxiliary.cuh"
#include "ops/gdn_prefill/fused_state.cuh"
#include "ops/gdn_prefill/kernel_fused.cuh"
#include "ops/gdn_prefill/walk_shared.cuh"

namespace hyla::gdn {

// The serial chain without outputs.
template <class Io, class Pipe>
class WalkChain : public ChainBase<Io, Pipe> {
  using Base = ChainBase<Io, Pipe>;

 public:
  using Base::Base, Base::S, Base::column, Base::thread, Base::pack_state;

  // Chunk n of the warpgroup. S is packed, and will be. `zeros`: a tile that takes the place of V;
  // 0: V is there.
  __device__ __forceinline__ void chunk(int n, std::uint32_t zeros) {
    const std::uint32_t keys = arch::uniform(pipe.keys(n));
    pipe.wait_keys(n);
    float x[32];
    this->multiply_state(x, keys);
    pipe.ask_ahead(n);
    __syncwarp();
    pipe.wait_values(n);
    std::uint32_t v[16], w[16];
    const std::uint32_t values = (zeros != 0 ? zeros : pipe.values(n)) + token_block(thread());
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      arch::load_matrices_transposed(reinterpret_cast<std::uint32_t(&)[4]>(v[4 * j]),
                                     values + j * 2048);
    }
    pipe.wait_factors(n);
    const Factors& factors = pipe.factors(n);
    const float2 decay = *reinterpret_cast<const float2*>(factors.decay);
    arch::wgmma_wait<0>();
    arch::pin(x);
#pragma unroll
    for (int i = 0; i < 4; ++i) make_w<Io>(w, i, v + 4 * i, x, factors, column());
    pipe.release_values(n);
    pipe.wait_inverse(n);
    multiply_tokens<Io>(x, w, arch::uniform(pipe.inverse(n)), false);
    scale(S, decay.x);
    arch::wgmma_wait<0>();
    arch::pin(x);
    std::uint32_t u[16];
    if (decay.y == 0.0f) [[unlikely]] {
      pack_decayed<Io>(u, x, factors, column());
    } else {
      pack_tokens<Io>(u, x);
    }
    this->update(u, keys);
    pipe.release_inverse(n);  // whoever makes the next one overwrites factors, too
    arch::wgmma_wait<0>();
    arch::pin(S);
    pipe.release_keys(n);
    pack_state();
  }

 private:
  using Base::pipe;
};

template <class Io>
class WalkState {
 public:
  __device__ __forceinline__ WalkState(WalkShared<Io>& shared, const FusedArguments& arguments,
                                       int value_half)
      : s(shared),
        a(arguments),
        pipe{shared, arguments, value_half},
        chain(pipe, nullptr, value_half, 3 + value_half) {}

  __device__ __forceinline__ void run() {
    int n = 0;  // chunk, counted over all walks
#pragma unroll 1
    for (int i = 0; i < s.walks.count; ++i) {
      const WalkItem& item = s.walks.own[i];
      begin(item);
      chain.pack_state();
      const std::uint32_t zeros = item.matrix ? arch::shared_address(s.zeros) : 0;
      const int end = n + item.chunks;
#pragma unroll 1
      for (; n < end; ++n) chain.chunk(n, zeros);
      float* const to = item.matrix ? segment_matrix(a, item.pair, item.piece)
                                    : segment_state(a, item.pair, item.piece);
      store_state(a.p, as_pool(to), 0, {0, chain.value_row(), chain.column()}, chain.S);
    }
  }

 private:
  __device__ __forceinline__ void begin(const WalkItem& item) {
    if (item.piece == 0 && !item.forgets) {
      load_initial(a.p, item.row, {item.head, chain.value_row(), chain.column()}, chain.S);
      return;
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      const int v = chain.value_row() + (i >> 1 & 1) * 8;
      const int k = chain.column() + (i >> 2) * 8 + (i & 1);
      chain.S[i] = item.matrix && v == k ? 1.0f : 0.0f;
    }
  }

  WalkShared<Io>& s;
  const FusedArguments& a;
  const FusedPipe<Io, WalkShared<Io>> pipe;
  WalkChain<Io, FusedPipe<Io, WalkShared<Io>>> chain;
};

// Ends a pass over the list, by all threads. Whether there is another one.
template <class Io>
__device__ __forceinline__ bool walk_again(WalkShared<Io>& s, const FusedArguments& a) {
  // No barrier of the CTA: the roles come from places of their own in the code.
  const auto meet = [&](std::uint32_t parity) {
    arch::arrive_warp(s.met, static_cast<int>(threadIdx.x) & 31);
    arch::wait(s.met, parity);
  };
  meet(0);
  if (threadIdx.x == 0) {
    s.again = list_again(a, s.walks);
    if (s.again) {
      end_barriers(s);
      init_fused_barriers(s);
    }
  }
  meet(1);
  return s.again;
}

// grid: any number of CTAs, one a multiprocessor.
template <class Io, bool Normalised>
__global__ void __launch_bounds__(kFusedThreads, 1)
    walk_segments(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  WalkShared<Io>& s = *reinterpret_cast<WalkShared<Io>*>(memory);
  const int thread = own_thread();
  const int group = static_cast<int>(arch::uniform(static_cast<std::uint32_t>(thread >> 7)));
  if (thread == 0) {
    arch::init(s.met, kFusedThreads / 32);
    init_fused_barriers(s);
  }
  if (thread == 32) {
    arch::prefetch_map(a.maps.k);
    arch::prefetch_map(a.maps.v);
  }
  // The blocks above the diagonal of T' are zero and stay so.
  auto* zeros = reinterpret_cast<uint4*>(&s.zeros);
  static_assert(offsetof(WalkShared<Io>, prepared) == offsetof(WalkShared<Io>, zeros) + kTileBytes);
  constexpr int kZeros = static_cast<int>((sizeof(s.zeros) + sizeof(s.prepared)) / 16);
  for (int i = thread; i < kZeros; i += kFusedThreads) zeros[i] = make_uint4(0, 0, 0, 0);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  list_walks(a, s.walks);
  arch::fence_async_proxy();
  __syncthreads();
  if (group < 2) {
    arch::take_registers<kStateRegisters>();
    WalkState<Io> state(s, a, group);
    do {
      state.run();
    } while (walk_again(s, a));
  } else {
    arch::give_registers<kAuxiliaryRegisters>();
    do {
      Auxiliary<Io, Normalised, false, WalkShared<Io>>(s, a).run();
    } while (walk_again(s, a));
  }
}

}  // namespace hyla::gdn
