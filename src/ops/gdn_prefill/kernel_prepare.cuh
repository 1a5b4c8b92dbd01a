// T', P and the factors of all chunks of all heads, for kernels that then walk over the chunks. The
// four warpgroups of a CTA work on their own, each on a chunk of a head; the next one's keys come
// while the inverse of this one is made. T' and P take the place of the queries, and the next queries
// come when they have left. Of K above 128 the halves take turns in the same tiles; then both products
// are there before anything is made of them.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/named_barrier.cuh"
#include "ops/gdn_prefill/chunk_gates.cuh"
#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/chunk_loads.cuh"
#include "ops/gdn_prefill/chunk_matrices.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"
#include "ops/gdn_prefill/long_rows.cuh"
#include "ops/gdn_prefill/record.cuh"
#include "ops/gdn_prefill/segments.cuh"

namespace hyla::gdn {

inline constexpr int kPrepareThreads = kPrepareGroups * 128;

// Walks over (chunk, head) pairs, `stride` apart; the heads of a chunk are neighbours.
struct PrepareCursor {
  std::int64_t item;
  int row, begin, length;  // of the item's chunk; rows as they are numbered in RecordRows
  bool started;

  // The next pair that is there. False: there is none.
  __device__ __forceinline__ bool find(const RecordRows& all, std::int64_t stride,
                                       ChunkInfo& info) {
    const FusedArguments& a = all.a;
    const PrefillProblem& p = a.p;
    const int rows = all.count(), heads = static_cast<int>(p.heads);
    const std::int64_t items = all.slots() * heads;
    if (!started) enter(all, 0);
    started = true;
    for (;; item += stride) {
      info.rows = 0;
      if (item >= items) return false;
      const int slot = static_cast<int>(item / heads);
      while (row + 1 < rows && slot >= next_slot(all)) enter(all, row + 1);
      const int chunk = slot - all.first_slot(row, begin);
      if (chunk * kChunk >= length || p.slots.read_slot(all.row(row)) == core::kNullSlot) continue;
      set_head(a, static_cast<int>(item - static_cast<std::int64_t>(slot) * heads), info);
      set_tokens(p, begin + chunk * kChunk, min(kChunk, length - chunk * kChunk), info);
      return true;
    }
  }

 private:
  __device__ __forceinline__ void enter(const RecordRows& all, int to) {
    row = to;
    find_tokens(all.a.p, all.row(row), begin, length);
  }
  __device__ __forceinline__ int next_slot(const RecordRows& all) const {
    int next, unused;
    find_tokens(all.a.p, all.row(row + 1), next, unused);
    return all.first_slot(row + 1, next);
  }
};

// Does one of the warp's tokens not hold to 0 <= beta |k|^2 <= 2? |k|^2 is on the diagonal of K K^T,
// whose columns are normalised already.
__device__ __forceinline__ bool grows(const float (&product)[32], const MaskFactors& masks,
                                      int thread) {
  const int lane = thread & 31, warp = thread >> 5, row = lane >> 2;
  if (2 * (lane & 3) != (row & 6)) return false;
  const int i = warp * 16 + row;
  const float b = masks.row_l[i], b8 = masks.row_l[i + 8];
  bool found = false;
#pragma unroll
  for (int J = 0; J < 4; ++J) {
    if (J != warp) continue;
    const float* y = product + 8 * J;
    const float x = b * (row & 1 ? y[1] : y[0]), x8 = b8 * (row & 1 ? y[7] : y[6]);
    found = !(x >= 0.0f && x <= kMostErased && x8 >= 0.0f && x8 <= kMostErased);
  }
  return found;
}

template <class Io>
struct alignas(1024) PrepareGroup {
  KeyTiles<Io> keys;
  alignas(16) Factors factors;
  InverseScratch scratch;
  MaskFactors masks;
  std::uint32_t gates[2][2][64];
  PrepareCursor cursor;
  ChunkInfo info[2];
  std::int64_t item[2];
  arch::Mbarrier keys_full, queries_full;

  __device__ __forceinline__ Io* inverse() { return keys[1]; }
  __device__ __forceinline__ Io* scores() { return keys[3]; }
};

// The blocks above the diagonal of a tile, where T' and P are zero.
template <class Io>
__device__ __forceinline__ void clear_upper(Io* tile, int thread) {
  const BlockAddress to = block_address(tile, thread);
  const std::uint32_t zeros[4] = {};
#pragma unroll
  for (int J = 1; J < 4; ++J) {
    if (J > thread >> 5) arch::store_matrices(to(J), zeros);
  }
}

// Halves: of up to 128 columns each.
template <class Io, int Halves>
class Prepare {
 public:
  __device__ __forceinline__ Prepare(PrepareGroup<Io>& group, const RecordRows& rows,
                                     Record<Io>* to, int number)
      : s(group),
        all(rows),
        a(rows.a),
        records(to),
        barrier(1 + number),
        thread(static_cast<int>(threadIdx.x) & 127) {}

  __device__ __forceinline__ void run(std::int64_t first, std::int64_t stride) {
    if (thread == 0) {
      arch::init(s.keys_full, 1);
      arch::init(s.queries_full, 1);
      arch::fence_mbarrier_init();
      s.cursor.started = false;
      s.cursor.item = first;
      find(0, stride);
      if (s.info[0].rows > 0) {
        ask_keys(0, 0);
        ask_queries(0, 0);
      }
    }
    sync();
    if (s.info[0].rows == 0) return;
    if (thread < 32) {
      load_gates(a.p, s.info[0], s.gates[0], thread);
      scan_gates(a.p, s.info[0], s.gates[0], thread);
    }
#pragma unroll 1
    for (int n = 0; s.info[n & 1].rows > 0; ++n) chunk(n, stride);
    if (thread == 0) arch::wait_for_stores<0>();
  }

 private:
  __device__ __forceinline__ void sync() const { arch::sync_threads(barrier, 128); }

  __device__ __forceinline__ void find(int place, std::int64_t stride) {
    if (s.cursor.find(all, stride, s.info[place])) s.item[place] = s.cursor.item;
    s.cursor.item += stride;
  }

  // Of the chunk in a place.
  __device__ __forceinline__ void ask_keys(int place, int half) {
    const ChunkInfo& info = s.info[place];
    const int column = half * 128;
    arch::arrive_expecting(s.keys_full, 2 * kTileBytes);
    arch::load_tile(s.keys[0], a.maps.k, {column, info.k_head, info.token}, s.keys_full);
    arch::load_tile(s.keys[2], a.maps.k, {column + 64, info.k_head, info.token}, s.keys_full);
  }
  __device__ __forceinline__ void ask_queries(int place, int half) {
    const ChunkInfo& info = s.info[place];
    const int column = half * 128;
    arch::arrive_expecting(s.queries_full, 2 * kTileBytes);
    arch::load_tile(s.keys[1], a.maps.q, {column, info.q_head, info.token}, s.queries_full);
    arch::load_tile(s.keys[3], a.maps.q, {column + 64, info.q_head, info.token}, s.queries_full);
  }

  __device__ __forceinline__ void clear_tail(int place) {
    if (s.info[place].rows == kChunk) return;
    clear_rows(s.keys[0], s.keys[2], s.info[place].rows, thread);
    sync();
  }

  // K K^T and Q K^T over both halves of the columns, and the lengths.
  __device__ __forceinline__ void multiply_halves(int place, float (&product)[32],
                                                  float (&scores)[32]) {
    const bool normalised = a.p.l2norm;
    Squares keys, queries;
#pragma unroll
    for (int half = 0; half < Halves; ++half) {
      arch::wait(s.keys_full, half);
      clear_tail(place);
      multiply_rows(product, s.keys, 0, half > 0);
      arch::wait(s.queries_full, half);
      multiply_rows(scores, s.keys, 1, half > 0);
      if (normalised) {
        keys.add(s.keys, 0, thread);
        queries.add(s.keys, 1, thread);
      }
      arch::wgmma_wait<0>();
      arch::pin(product);
      arch::pin(scores);
      if (half + 1 == Halves) break;
      sync();
      if (thread == 0) {
        ask_keys(place, half + 1);
        ask_queries(place, half + 1);
      }
      __syncwarp();
    }
    if (normalised) {
      keys.store(a, 0, s.masks, thread);
      queries.store(a, 1, s.masks, thread);
    }
  }

  __device__ __forceinline__ void chunk(int n, std::int64_t stride) {
    const int place = n & 1;
    const bool normalised = a.p.l2norm;
    if (thread == 0 && n > 0) {
      arch::wait_for_store_reads<0>();  // the chunk before has left
      ask_queries(place, 0);
    }
    __syncwarp();
    float product[32], scores[32];
    if constexpr (Halves > 1) {
      multiply_halves(place, product, scores);
    } else {
      arch::wait(s.keys_full, place);
      clear_tail(place);
      if (normalised) {
        arch::wait(s.queries_full, place);
        find_lengths(a, s.keys, s.masks, thread);
      }
      multiply_rows(product, s.keys, 0);
    }
    sync();  // gates and lengths are there, the chunk before has left
    const bool mild = is_mild<Io>(s.gates[place]);
    make_factors(a, mild, s.gates[place], s.masks, s.factors, thread);
    if (thread == 96) find(place ^ 1, stride);
    sync();
    const bool more = s.info[place ^ 1].rows > 0;
    if constexpr (Halves > 1) {
      if (thread == 32 && more) ask_keys(place ^ 1, 0);
      __syncwarp();
    } else {
      arch::wgmma_wait<0>();
      arch::pin(product);
    }
    if (normalised) normalise_columns(product, s.masks, thread);
    store_diagonal(product, mild, s.gates[place], s.masks, s.scratch, thread);
    store_lower(product, mild, s.masks, s.scratch, thread);
    const bool own_grows = grows(product, s.masks, thread);
    if constexpr (Halves == 1) {
      arch::wait(s.queries_full, place);
      multiply_rows(scores, s.keys, 1);
    }
    if (thread < 32 && more) load_gates(a.p, s.info[place ^ 1], s.gates[place ^ 1], thread);
    invert_diagonal(s.scratch, thread >> 5, thread & 31);
    if constexpr (Halves == 1) {
      arch::wgmma_wait<0>();
      arch::pin(scores);
    }
    // All have read the keys, all diagonal blocks are inverted.
    const bool chunk_grows = arch::sync_any(barrier, 128, own_grows);
    if (thread == 0) {
      s.factors.decay[2] =
          chunk_grows ? kNeverForgets : __uint_as_float(s.gates[place][0][63]) + kErasedLog2;
    }
    if constexpr (Halves == 1) {
      if (thread == 32 && more) ask_keys(place ^ 1, 0);
      __syncwarp();
    }
    clear_upper(s.scores(), thread);
    clear_upper(s.inverse(), thread);
    store_scores(scores, mild, s.gates[place], s.masks, s.scores(), thread);
    store_inverse(s.scratch, normalised, s.masks, s.inverse(), thread);
    if (thread < 32 && more) scan_gates(a.p, s.info[place ^ 1], s.gates[place ^ 1], thread);
    sync();
    if (thread == 0) {
      Record<Io>& record = records[s.item[place]];
      arch::store_bulk(record.inverse, s.inverse(), kTileBytes);
      arch::store_bulk(record.scores, s.scores(), kTileBytes);
      arch::store_bulk(&record.factors, &s.factors, sizeof(Factors));
      arch::commit_stores();
    }
  }

  PrepareGroup<Io>& s;
  const RecordRows& all;
  const FusedArguments& a;
  Record<Io>* const records;  // [chunk slots, heads]
  const int barrier, thread;
};

// grid: any number of CTAs
template <class Io, int Halves>
__global__ void __launch_bounds__(kPrepareThreads, 1)
    prepare(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int group = static_cast<int>(arch::uniform(threadIdx.x >> 7));
  PrepareGroup<Io>& s = reinterpret_cast<PrepareGroup<Io>*>(memory)[group];
  if (threadIdx.x == 0) {
    arch::prefetch_map(a.maps.k);
    arch::prefetch_map(a.maps.q);
  }
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  __shared__ LongRows longs;
  if (a.long_rows > 0) {
    find_long_rows(a, longs);
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.longs = longs;  // for the kernels behind
    if (longs.count == 0) return;
  }
  const RecordRows all{a, a.long_rows > 0 ? &longs : nullptr};
  const std::int64_t first = static_cast<std::int64_t>(group) * gridDim.x + blockIdx.x;
  Prepare<Io, Halves>(s, all, static_cast<Record<Io>*>(a.records), group)
      .run(first, static_cast<std::int64_t>(gridDim.x) * kPrepareGroups);
}

}  // namespace hyla::gdn
