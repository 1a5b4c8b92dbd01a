// The auxiliary role: T' and P of a chunk (chunk_matrices.cuh), ahead of the state warpgroups.
//
// Two warpgroups take the even and the odd chunks, so that one may spend two periods of the state
// warpgroups on a chunk. Each is its own producer: warp 0 loads and sums the gates, warp 1 asks for
// keys and queries, warp 2 for values, warp 3 looks for the next chunk.
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
#pragma unroll 1
    for (; info(0).rows > 0; n += 2) chunk();
  }

 private:
  static constexpr int kThreads = 128;

  __device__ __forceinline__ void sync() const { arch::sync_threads(1 + group(), kThreads); }
  __device__ __forceinline__ auto& gates(int ahead) const {
    return s.gates[group()][((n + ahead) >> 1) & 1];
  }
  __device__ __forceinline__ ChunkInfo& info(int ahead) const {
    return s.chunks[group()][((n + ahead) >> 1) & 3];
  }
  // The same number, but the compiler cannot know: what one phase made of it is not kept in
  // registers for the next.
  __device__ __forceinline__ void renew() { id = __shfl_sync(0xffffffffu, id, id); }
  __device__ __forceinline__ int me() const { return id & 127; }
  __device__ __forceinline__ int group() const { return id >> 7; }
  // Which of its two places a chunk uses, and the parity of that use.
  __device__ __forceinline__ int turn() const { return n >> 1 & 1; }
  __device__ __forceinline__ bool normalised() const { return arch::opaque(a.p.l2norm) != 0; }

  __device__ __forceinline__ void start() {
    n = group();
    if (me() == 96) {
      s.cursors[group()].start();
#pragma unroll 1
      for (int i = 0; i < 3; ++i) step_cursor(i == 0 ? group() : 2, s.chunks[group()][i]);
    }
    sync();
    if (me() == 32) {
      ask_keys(info(0), static_cast<std::uint32_t>(group()));
      if (group() == 0) ask_keys(info(2), 2);
    }
    if (me() == 64) ask_values(info(0));
    if (me() < 32) {
      if (info(0).rows > 0) load_gates(a.p, info(0), gates(0), me());
      if (info(2).rows > 0) load_gates(a.p, info(2), gates(2), me());
      if (info(0).rows > 0) scan_gates(a.p, info(0), gates(0), me());
    }
    sync();
  }

  __device__ __forceinline__ void step_cursor(int chunks, ChunkInfo& to) {
    s.cursors[group()].advance(a, s.order, chunks);
    to = s.cursors[group()].info;
  }

  __device__ __forceinline__ void ask_keys(ChunkInfo& chunk, std::uint32_t stage) {
    if (chunk.rows > 0) load_key_tiles(s.keys[stage], a.maps, chunk, s.keys_full[stage]);
    chunk.keys_asked = true;
  }

  __device__ __forceinline__ void ask_values(ChunkInfo& chunk) {
    if (chunk.rows > 0) load_value_tiles(s.values[group()], a.maps, chunk, s.values_full[group()]);
    chunk.values_asked = true;
  }

  // Keys and queries of chunk n + 2 as soon as chunk n - 1 no longer needs their place, values of
  // chunk n as soon as chunk n - 2 does not.
  __device__ __forceinline__ void poll() {
    const int thread = me();
    if (thread == 32 && !info(2).keys_asked && info(2).rows > 0) {
      const KeyStage k = key_stage(static_cast<std::uint32_t>(n + 2));
      if (arch::is_complete(s.keys_empty[k.stage], k.parity ^ 1)) ask_keys(info(2), k.stage);
    }
    if (thread == 64 && !info(0).values_asked) {
      if (arch::is_complete(s.values_empty[group()], turn() ^ 1)) ask_values(info(0));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void finish_keys() {
    if (me() == 32 && !info(2).keys_asked && info(2).rows > 0) {
      const KeyStage k = key_stage(static_cast<std::uint32_t>(n + 2));
      arch::wait(s.keys_empty[k.stage], k.parity ^ 1);
      ask_keys(info(2), k.stage);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void finish_values() {
    if (me() == 64 && !info(0).values_asked) {
      arch::wait(s.values_empty[group()], turn() ^ 1);
      ask_values(info(0));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void chunk() {
    renew();
    const KeyStage k = key_stage(static_cast<std::uint32_t>(arch::opaque(n)));
    arch::wait(s.keys_full[k.stage], k.parity);
    if (info(0).rows < kChunk) {
      clear_rows(s.keys[k.stage][0], s.keys[k.stage][2], info(0).rows, me());
      sync();
    }
    if (normalised()) find_lengths(a.p, s.keys[k.stage], s.masks[group()], me());
    multiply_rows(product, s.keys[k.stage], 0);
    sync();  // lengths are there, and no warp is busy with the chunk before any more
    Factors& factors = s.factors[n % kFactorStages];
    // Their place is free: P of chunk n - 4 has been used, which this warpgroup waited for before.
    make_factors(a.p, gates(0), s.masks[group()], factors, me());
    arch::arrive_warp(s.factors_full[n % kFactorStages], me() & 31);
    sync();
    renew();
    float2 exact[3];
    diagonal_decays(s.masks[group()], me(), exact);
    arch::wgmma_wait<0>();
    arch::pin(product);
    store_diagonal(product, exact, normalised(), s.masks[group()], s.scratch[group()], me());
    std::uint32_t decays[3];  // kept in half the registers
    for (int i = 0; i < 3; ++i) decays[i] = pack<__half>(exact[i].x, exact[i].y);
    renew();
    store_lower(product, s.masks[group()], s.scratch[group()], me());
    __syncwarp();

    multiply_rows(product, s.keys[key_stage(static_cast<std::uint32_t>(arch::opaque(n))).stage], 1);
    poll();
    arch::wait(s.scores_empty[group()], turn() ^ 1);
    arch::wgmma_wait<0>();
    arch::pin(product);
    arch::arrive_warp(s.keys_empty[key_stage(static_cast<std::uint32_t>(arch::opaque(n))).stage],
                      me() & 31);
    renew();
    store_scores(product, decays, normalised(), s.masks[group()], s.prepared[group()][1], me());
    arch::arrive_warp(s.scores_full[group()], me() & 31);
    renew();
    poll();

    invert_diagonal(s.scratch[group()], me() >> 5, me() & 31);
    renew();
    poll();
    wait_for_gates();  // of chunk n + 2, asked for a chunk ago
    sync();
    arch::wait(s.inverse_empty[group()], turn() ^ 1);
    finish_values();
    if (info(0).rows < kChunk) {
      arch::wait(s.values_full[group()], turn());
      clear_rows(s.values[group()][0], s.values[group()][1], info(0).rows, me());
    }
    store_inverse(s.scratch[group()], s.masks[group()], s.prepared[group()][0], me());
    arch::arrive_warp(s.inverse_full[group()], me() & 31);
    renew();
    // Warp 3 has most blocks left of its diagonal, so the others have the time.
    if (me() < 32 && info(2).rows > 0) scan_gates(a.p, info(2), gates(2), me());
    if (me() >> 5 == 2 && info(4).rows > 0) load_gates(a.p, info(4), gates(4), me() & 31);
    if (me() == 32) step_cursor(2, info(6));
    finish_keys();
  }

  FusedShared<Io>& s;
  const FusedArguments& a;
  int id;     // thread of the two warpgroups; each takes every second chunk
  int n = 0;  // chunk
  float product[32];
};

}  // namespace hyla::gdn
