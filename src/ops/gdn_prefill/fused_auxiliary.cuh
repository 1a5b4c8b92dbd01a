// The auxiliary role: T' and P of a chunk (chunk_matrices.cuh), ahead of the state warpgroups.
//
// Two warpgroups take the even and the odd chunks, so that one may spend two periods of the state
// warpgroups on a chunk. Warp 3 has most of T' to make: warp 0 sums the gates of the next chunk,
// warp 1 looks for the one after it, warp 2 has the betas. They ask for the tiles of the first
// chunks, the state warpgroups for all others.
#pragma once

#include "arch/named_barrier.cuh"
#include "ops/gdn_prefill/chunk_gates.cuh"
#include "ops/gdn_prefill/chunk_loads.cuh"
#include "ops/gdn_prefill/chunk_matrices.cuh"
#include "ops/gdn_prefill/fused_shared.cuh"
#include "ops/gdn_prefill/lower_part.cuh"

namespace hyla::gdn {

// Longs: see find_task. Shared: FusedShared, or WalkShared, without outputs (walk_shared.cuh).
template <class Io, bool Normalised, bool Longs, class Shared = FusedShared<Io>>
class Auxiliary {
 public:
  __device__ __forceinline__ Auxiliary(Shared& shared, const FusedArguments& arguments)
      : s(shared), a(arguments), id(static_cast<int>(threadIdx.x) & 255) {
    renew();
  }

  __device__ __forceinline__ void run() {
    start();
    for (;;) {
      // Three warps leave the inner loop after every chunk, the other one where there is more to do
      // than usual: so its code is in one piece. Jumps over other code cost fetches.
      Left left;
#pragma unroll 1
      do {
        if (info(0).rows == 0) return;
        left = Left::kAll;
        if (!begin_chunk()) break;
        left = Left::kLower;
        if (make_scores<true>()) break;
        left = Left::kRows;
        if (make_inverse()) break;
        hand_over_inverse();
        left = Left::kNothing;
      } while (me() >= 96);
      if (left != Left::kNothing) {
        finish(left);
        if (me() >= 96) continue;
      }
      if (me() < 32) {
        if (info(0).rows > 0) scan_gates(a.p, info(0), gates(0), me());
        if (info(2).rows > 0) load_gates(a.p, info(2), gates(2), me());
      } else if (me() >= 64) {
        if (info(0).rows > 0) make_betas(a.p, info(0), gates(0), me() & 31);
        if (info(2).rows > 0) load_betas(a.p, info(2), gates(2), me() & 31);
      } else if (me() == 32) {
        step_cursor(2, info(4));
      }
      __syncwarp();
    }
  }

 private:
  static constexpr int kThreads = 128;
  static constexpr bool kOutputs = Shared::kOutputs;
  // What is left to do of a chunk that is not as most are.
  enum class Left {
    kNothing,
    kAll,    // it is not mild, or not whole
    kLower,  // L and T': keys out of reach
    kRows,   // the warp's rows of T': beyond fp16
  };

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

  __device__ __forceinline__ void start() {
    n = group();
    if (me() == 96) {
      s.cursors[group()].start();
      step_cursor(group() + 1, s.chunks[group()][0]);
    }
    sync();
    if (me() == 32 && group() == 0) ask_keys(info(0), group());
    if (me() == 96) {
#pragma unroll 1
      for (int i = 1; i < 3; ++i) step_cursor(2, s.chunks[group()][i]);
      if (group() == 0) ask_keys(info(2), 2);
      // Only now: whoever sees these keys looks for chunk 3 next.
      if (group() == 1) ask_keys(info(0), group());
    }
    if (me() == 64 && info(0).rows > 0) {
      if (kOutputs || info(0).v_head >= 0) {
        load_value_tiles(s.values[group()], a.maps, info(0), s.values_full[group()]);
      } else {
        arch::arrive(s.values_full[group()]);
      }
    }
    if (me() < 32) {
      if (info(0).rows > 0) load_gates(a.p, info(0), gates(0), me());
      if (info(0).rows > 0) scan_gates(a.p, info(0), gates(0), me());
    } else if (me() >= 64 && me() < 96) {
      if (info(0).rows > 0) load_betas(a.p, info(0), gates(0), me() & 31);
      if (info(0).rows > 0) make_betas(a.p, info(0), gates(0), me() & 31);
    }
    sync();
    if (info(2).rows == 0) return;
    if (me() < 32) load_gates(a.p, info(2), gates(2), me());
    if (me() >= 64 && me() < 96) load_betas(a.p, info(2), gates(2), me() & 31);
  }

  __device__ __forceinline__ void step_cursor(int steps, ChunkInfo& to) {
    if constexpr (kOutputs) {
      s.cursors[group()].template advance<Longs>(a, s.ranked, steps);
    } else {
      s.cursors[group()].advance(a, s.walks, steps);
    }
    to = s.cursors[group()].info;
  }

  __device__ __forceinline__ void ask_keys(const ChunkInfo& chunk, int stage) {
    if (chunk.rows > 0) load_key_tiles<kOutputs>(s.keys[stage], a.maps, chunk, s.keys_full[stage]);
  }

  // Waits for the next chunk. Is it mild, and whole?
  __device__ __forceinline__ bool begin_chunk() {
    renew();
    sync();  // gates are there, and no warp is busy with the chunk before any more
    const float last = __uint_as_float(gates(0)[0][63]);
    const bool whole = info(0).rows == kChunk;
    const KeyStage k = key_stage(static_cast<std::uint32_t>(arch::opaque(n)));
    arch::wait(s.keys_full[k.full()], k.full_parity());
    return kMayBeMild<Io> && is_mild(last) && whole;
  }

  // L and P, and all that T' is made of. Usual: as begin_chunk says. Whether a key is out of reach.
  // Without outputs there is no P, but it is noted which walks have keys that let states grow.
  template <bool Usual>
  __device__ __forceinline__ bool make_scores() {
    if (!Usual && info(0).rows < kChunk) {
      clear_rows(key_tiles()[0], key_tiles()[2], info(0).rows, me());
      sync();
    }
    multiply_rows(product, key_tiles(), 0);
    const bool mild = Usual || is_mild<Io>(gates(0));
    // Their place is free: P of chunk n - 4 has been used, which this warpgroup waited for before.
    float held;
    if constexpr (Usual) {
      if constexpr (!Normalised && kOutputs) {
        put_mild_query_factors(a.scale, gates(0), s.masks[group()], factors(), me());
      }
      held = make_mild_key_factors(gates(0), factors(), me());
    } else {
      if constexpr (!Normalised && kOutputs) {
        put_query_factors(mild, a.scale, gates(0), s.masks[group()], factors(), me());
      }
      held = make_key_factors(mild, gates(0), s.masks[group()], factors(), me());
    }
    if constexpr (!Normalised) put_factors(held, 1.0f);
    if (!mild) sync();  // those of other warps' columns
    renew();
    renew_chunk();
    arch::wgmma_wait<0>();
    arch::pin(product);
    float own_square = 0.0f;  // of the key whose factors the thread makes
    {
      const DiagonalBlock y = diagonal_block(product, me() >> 5);
      float2 rows = of_rows(reinterpret_cast<const float*>(gates(0)[1]), me());
      float2 squares = make_float2(1.0f, 1.0f);  // over those of the keys' lengths
      if constexpr (Normalised) {
        const float2 sums = key_squares(y, me() & 31);
        own_square = me() & 1 ? sums.y : sums.x;
        squares = make_float2(over(sums.x + a.eps), over(sums.y + a.eps));
      }
      if constexpr (!kOutputs) {
        const float2 sums = key_squares(y, me() & 31);
        if (grows(rows, make_float2(sums.x * squares.x, sums.y * squares.y))) {
          s.walks.grown[info(0).q_head] = 1;
        }
      }
      store_diagonal(y, mild, make_float2(rows.x * squares.x, rows.y * squares.y), gates(0),
                     s.scratch[group()], me());
      renew();
      if (!mild) rows = of_rows(s.masks[group()].block_l, me());
      store_lower(product, mild, make_float2(rows.x * squares.x, rows.y * squares.y),
                  s.masks[group()], s.scratch[group()], me());
    }
    __syncwarp();

    if constexpr (kOutputs) {
      // Before the product, behind which its own products of fragments would wait.
      if constexpr (Normalised) make_query_factors<Usual>(mild);
      multiply_rows(product, key_tiles(), 1);
      renew();
    }
    far = false;
    if constexpr (Normalised) {
      const float key = over_root(own_square + a.eps);
      far = !__all_sync(device::kFullWarp, in_reach(own_square, key));
      put_factors(held, key);
    }
    if constexpr (!kOutputs) {
      if (!far) release_keys();
    }
    invert_diagonal(s.scratch[group()], me() >> 5, me() & 31);
    renew();
    renew_chunk();
    if constexpr (kOutputs) {
      arch::wait(s.scores_empty[group()], turn() ^ 1);
      arch::wgmma_wait<0>();
      arch::pin(product);
      if (!far) release_keys();
      store_scores(product, mild, gates(0), s.masks[group()], s.prepared[group()][1], me());
      arch::arrive_warp(s.scores_full[group()], me() & 31);
      renew();
    }
    if constexpr (Normalised) return arch::sync_any(1 + group(), kThreads, far);
    sync();
    return false;
  }

  // T' where nothing is in the way. Whether the warp's rows have overflown.
  __device__ __forceinline__ bool make_inverse() {
    arch::wait(s.inverse_empty[group()], turn() ^ 1);
    return put_inverse<false>(s.scratch[group()], s.masks[group()], s.prepared[group()][0], me());
  }

  __device__ __forceinline__ void hand_over_inverse() {
    arch::fence_async_proxy();
    arch::arrive_warp(s.inverse_full[group()], me() & 31);
    renew();
    n += 2;
  }

  __device__ __forceinline__ void finish(Left left) {
    bool lower = left == Left::kLower, rows = left == Left::kRows;
    if (left == Left::kAll) {
      lower = make_scores<false>(), rows = false;
      if (info(0).rows < kChunk) {
        arch::wait(s.values_full[group()], turn());
        clear_rows(s.values[group()][0], s.values[group()][1], info(0).rows, me());
      }
    }
    if (lower) {
      arch::wait(s.inverse_empty[group()], turn() ^ 1);
      normalise_lower();
      if (far) release_keys();
      if (put_inverse<true>(s.scratch[group()], s.masks[group()], s.prepared[group()][0], me())) {
        solve_inverse<true>(s.scratch[group()], s.masks[group()], s.prepared[group()][0], me());
      }
    } else if (rows || make_inverse()) {
      solve_inverse<false>(s.scratch[group()], s.masks[group()], s.prepared[group()][0], me());
    }
    hand_over_inverse();
  }

  __device__ __forceinline__ Factors& factors() const { return s.factors[n % kFactorStages]; }

  __device__ __forceinline__ void put_factors(float held, float key) {
    put_key_factors(held, key, s.masks[group()], factors(), me());
    arch::arrive_warp(s.factors_full[n % kFactorStages], me() & 31);
  }

  // The state warpgroups look at them when T' is there.
  template <bool Usual>
  __device__ __forceinline__ void make_query_factors(bool mild) {
    QuerySquares squares;
    squares.add(key_tiles(), me());
    const float2 sums = squares.sums(me());
    const float query = a.scale * over_root((me() & 1 ? sums.y : sums.x) + a.eps);
    if constexpr (Usual) {
      put_mild_query_factors(query, gates(0), s.masks[group()], factors(), me());
    } else {
      put_query_factors(mild, query, gates(0), s.masks[group()], factors(), me());
    }
    renew();
  }

  __device__ __forceinline__ KeyTiles<Io>& key_tiles() const {
    return s.keys[key_stage(static_cast<std::uint32_t>(arch::opaque(n))).stage];
  }
  __device__ __forceinline__ void release_keys() const {
    arch::arrive_warp(s.keys_empty[key_stage(static_cast<std::uint32_t>(arch::opaque(n))).stage],
                      me() & 31);
  }

  // L once more, with normalised columns. The warp that asked for it has not released the keys.
  __device__ __forceinline__ void normalise_lower() {
    renew();
    renew_chunk();
    multiply_rows(product, key_tiles(), 0);
    arch::wgmma_wait<0>();
    arch::pin(product);
    {
      const float2 sums = key_squares(diagonal_block(product, me() >> 5), me() & 31);
      s.masks[group()].key[factor_token(me())] = over_root((me() & 1 ? sums.y : sums.x) + a.eps);
      const float held =
          make_key_factors(is_mild<Io>(gates(0)), gates(0), s.masks[group()], factors(), me());
      if (makes_masks(me())) put_key_factors(held, 1.0f, s.masks[group()], factors(), me());
    }
    sync();
    renew();
    normalise_columns(product, s.masks[group()], me());
    renew();
    store_diagonal(diagonal_block(product, me() >> 5), is_mild<Io>(gates(0)),
                   normalised_rows(reinterpret_cast<const float*>(gates(0)[1])), gates(0),
                   s.scratch[group()], me());
    renew();
    const bool mild = is_mild<Io>(gates(0));
    store_lower(product, mild,
                normalised_rows(mild ? reinterpret_cast<const float*>(gates(0)[1])
                                     : s.masks[group()].block_l),
                s.masks[group()], s.scratch[group()], me());
    __syncwarp();
    renew();
    invert_diagonal(s.scratch[group()], me() >> 5, me() & 31);
    sync();
    renew();
    renew_chunk();
  }

  __device__ __forceinline__ float2 normalised_rows(const float* rows) const {
    const float2 row = of_rows(rows, me()), key = of_rows(s.masks[group()].key, me());
    return make_float2(row.x * key.x, row.y * key.y);
  }

  Shared& s;
  const FusedArguments& a;
  int id;     // thread of the two warpgroups; each takes every second chunk
  int n = 0;  // chunk
  bool far;   // a key of this warp is out of reach
  float product[32];
};

}  // namespace hyla::gdn
