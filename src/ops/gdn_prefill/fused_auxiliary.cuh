// The auxiliary role: T' and P of a chunk (chunk_matrices.cuh), ahead of the state warpgroups.
//
// Two warpgroups take the even and the odd chunks, so that one may spend two periods of the state
// warpgroups on a chunk. Warp 0 sums the gates, warp 1 looks for the next chunk, warp 2 loads gates.
// They ask for the tiles of the first chunks, the state warpgroups for all others.
#pragma once

#include "arch/named_barrier.cuh"
#include "ops/gdn_prefill/chunk_gates.cuh"
#include "ops/gdn_prefill/chunk_loads.cuh"
#include "ops/gdn_prefill/chunk_matrices.cuh"
#include "ops/gdn_prefill/fused_shared.cuh"

namespace hyla::gdn {

template <class Io>
class Auxiliary {
 public:
  __device__ __forceinline__ Auxiliary(FusedShared<Io>& shared, const FusedArguments& arguments)
      : s(shared), a(arguments), id(static_cast<int>(threadIdx.x) & 255) {
    renew();
  }

  __device__ __forceinline__ void run() {
    start();
    for (;;) {
      // Two warps leave the inner loop after every chunk: so its code is in one piece, and the
      // others need not jump over that of the duties, which costs fetches.
#pragma unroll 1
      do {
        if (info(0).rows == 0) return;
        chunk();
        n += 2;
      } while (me() >= 64);
      if (me() < 32) {
        if (info(0).rows > 0) scan_gates(a.p, info(0), gates(0), me());
        if (info(2).rows > 0) load_gates(a.p, info(2), gates(2), me());
      }
      if (me() == 32) step_cursor(2, info(4));
      __syncwarp();
    }
  }

 private:
  static constexpr int kThreads = 128;

  __device__ __forceinline__ void sync() const { arch::sync_threads(1 + group(), kThreads); }
  __device__ __forceinline__ auto& gates(int ahead) const {
    return s.gates[group()][((arch::opaque(n) + ahead) >> 1) & 1];
  }
  __device__ __forceinline__ ChunkInfo& info(int ahead) const {
    return s.chunks[group()][((arch::opaque(n) + ahead) >> 1) & 3];
  }
  // The same number, but the compiler cannot know: what one phase made of it is not kept in
  // registers for the next.
  __device__ __forceinline__ void renew() { id = __shfl_sync(0xffffffffu, id, id); }
  __device__ __forceinline__ void renew_chunk() { n = __shfl_sync(0xffffffffu, n, 0); }
  __device__ __forceinline__ int me() const { return id & 127; }
  __device__ __forceinline__ int group() const { return id >> 7; }
  // Which of its two places a chunk uses, and the parity of that use.
  __device__ __forceinline__ int turn() const { return arch::opaque(n) >> 1 & 1; }
  __device__ __forceinline__ bool normalised() const { return arch::opaque(a.p.l2norm) != 0; }

  __device__ __forceinline__ void start() {
    n = group();
    if (me() == 96) {
      s.cursors[group()].start();
      step_cursor(group(), s.chunks[group()][0]);
    }
    sync();
    if (me() == 32) ask_keys(info(0), group());
    if (me() == 96) {
#pragma unroll 1
      for (int i = 1; i < 3; ++i) step_cursor(2, s.chunks[group()][i]);
      if (group() == 0) ask_keys(info(2), 2);
    }
    if (me() == 64 && info(0).rows > 0) {
      load_value_tiles(s.values[group()], a.maps, info(0), s.values_full[group()]);
    }
    if (me() < 32) {
      if (info(0).rows > 0) load_gates(a.p, info(0), gates(0), me());
      if (info(0).rows > 0) scan_gates(a.p, info(0), gates(0), me());
    }
    sync();
    if (me() < 32 && info(2).rows > 0) load_gates(a.p, info(2), gates(2), me());
  }

  __device__ __forceinline__ void step_cursor(int chunks, ChunkInfo& to) {
    s.cursors[group()].advance(a, s.ranked, chunks);
    to = s.cursors[group()].info;
  }

  __device__ __forceinline__ void ask_keys(const ChunkInfo& chunk, int stage) {
    if (chunk.rows > 0) load_key_tiles(s.keys[stage], a.maps, chunk, s.keys_full[stage]);
  }

  __device__ __forceinline__ void chunk() {
    renew();
    const KeyStage k = key_stage(static_cast<std::uint32_t>(arch::opaque(n)));
    arch::wait(s.keys_full[k.stage], k.parity);
    if (info(0).rows < kChunk) [[unlikely]] {
      clear_rows(s.keys[k.stage][0], s.keys[k.stage][2], info(0).rows, me());
      sync();
    }
    if (normalised()) [[unlikely]]
      find_lengths(a, s.keys[k.stage], s.masks[group()], me());
    multiply_rows(product, s.keys[k.stage], 0);
    sync();  // gates are there, and no warp is busy with the chunk before any more
    const bool mild = is_mild<Io>(gates(0));
    Factors& factors = s.factors[n % kFactorStages];
    // Their place is free: P of chunk n - 4 has been used, which this warpgroup waited for before.
    make_factors(a, mild, gates(0), s.masks[group()], factors, me());
    arch::arrive_warp(s.factors_full[n % kFactorStages], me() & 31);
    if (!mild || normalised()) [[unlikely]]
      sync();  // those of other warps' columns
    renew();
    renew_chunk();
    arch::wgmma_wait<0>();
    arch::pin(product);
    if (normalised()) [[unlikely]]
      normalise_columns(product, s.masks[group()], me());
    store_diagonal(product, mild, gates(0), s.masks[group()], s.scratch[group()], me());
    renew();
    store_lower(product, mild, s.masks[group()], s.scratch[group()], me());
    __syncwarp();

    multiply_rows(product, s.keys[key_stage(static_cast<std::uint32_t>(arch::opaque(n))).stage], 1);
    renew();
    invert_diagonal(s.scratch[group()], me() >> 5, me() & 31);
    renew();
    renew_chunk();
    arch::wait(s.scores_empty[group()], turn() ^ 1);
    arch::wgmma_wait<0>();
    arch::pin(product);
    arch::arrive_warp(s.keys_empty[key_stage(static_cast<std::uint32_t>(arch::opaque(n))).stage],
                      me() & 31);
    store_scores(product, mild, gates(0), s.masks[group()], s.prepared[group()][1], me());
    arch::arrive_warp(s.scores_full[group()], me() & 31);
    renew();
    sync();
    arch::wait(s.inverse_empty[group()], turn() ^ 1);
    if (info(0).rows < kChunk) [[unlikely]] {
      arch::wait(s.values_full[group()], turn());
      clear_rows(s.values[group()][0], s.values[group()][1], info(0).rows, me());
    }
    store_inverse(s.scratch[group()], normalised(), s.masks[group()], s.prepared[group()][0], me());
    arch::arrive_warp(s.inverse_full[group()], me() & 31);
    renew();
  }

  FusedShared<Io>& s;
  const FusedArguments& a;
  int id;     // thread of the two warpgroups; each takes every second chunk
  int n = 0;  // chunk
  float product[32];
};

}  // namespace hyla::gdn
