// T', P and the factors of all chunks of all heads, for kernels that then walk over the chunks. The
// four warpgroups of a CTA work on their own, each on a chunk of a head; the next one's keys come
// while the inverse of this one is made. T' and P take the place of the queries, and the next
// queries come when they have left. Of K above 128 the halves take turns in the same tiles; then
// both products are there before anything is made of them.
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/named_barrier.cuh"
#include "ops/gdn_prefill/chunk_gates.cuh"
#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/chunk_loads.cuh"
#include "ops/gdn_prefill/chunk_matrices.cuh"
#include "ops/gdn_prefill/handover.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"
#include "ops/gdn_prefill/long_rows.cuh"
#include "ops/gdn_prefill/lower_part.cuh"
#include "ops/gdn_prefill/record.cuh"
#include "ops/gdn_prefill/segments.cuh"
#include "ops/gdn_prefill/start_order.cuh"

namespace hyla::gdn {

inline constexpr int kPrepareThreads = kPrepareGroups * 128;

// Walks over (chunk, head) pairs, `stride` apart; the heads of a chunk are neighbours.
struct PrepareCursor {
  std::int64_t item;
  // Of the item's chunk: its row as RecordRows numbers them, and tokens, none of padding.
  int row, begin, length;
  bool started;

  // The next pair that is there. False: there is none.
  __device__ __forceinline__ bool find(const RecordRows& all, std::int64_t stride,
                                       ChunkInfo& info) {
    const FusedArguments& a = all.a;
    const PrefillProblem& p = a.p;
    const int heads = static_cast<int>(p.heads);
    const std::int64_t items = all.slots() * heads;
    if (!started) enter(all, 0);
    started = true;
    for (;; item += stride) {
      info.rows = 0;
      if (item >= items) return false;
      const int slot = static_cast<int>(item / heads);
      advance(all, slot);
      const int chunk = slot - all.first_slot(row, begin);
      if (chunk * kChunk >= length) continue;
      set_head(a, static_cast<int>(item - static_cast<std::int64_t>(slot) * heads), info);
      set_tokens(p, begin + chunk * kChunk, min(kChunk, length - chunk * kChunk), info);
      return true;
    }
  }

 private:
  __device__ __forceinline__ void enter(const RecordRows& all, int to) {
    row = to;
    find_tokens(all.a.p, all.row(row), begin, length);
    if (all.a.p.slots.read_slot(all.row(row)) == core::kNullSlot) length = 0;
  }
  // To the last row that begins at or before a slot: this one, the next, and then by halves, as
  // each look is a wait for memory.
  __device__ __forceinline__ void advance(const RecordRows& all, int slot) {
    int low = row, high = all.count();
    for (int look = row + 1; high - low > 1; look = (low + high) / 2) {
      int first, unused;
      find_tokens(all.a.p, all.row(look), first, unused);
      (slot >= all.first_slot(look, first) ? low : high) = look;
    }
    if (low != row) enter(all, low);
  }
};

template <class Io>
struct alignas(1024) PrepareGroup {
  KeyTiles<Io> keys;
  alignas(16) Factors factors;
  InverseScratch scratch;
  MaskFactors masks;
  std::uint32_t gates[2][2][64];
  PrepareCursor cursor;
  HandoverCursor handed;
  ChunkInfo info[4];  // of this chunk, the next two and the one before
  std::int64_t item[4];
  int out_of_reach;  // the last chunk with keys of very different lengths
  arch::Mbarrier keys_full, queries_full;

  __device__ __forceinline__ Io* inverse() { return keys[1]; }
  __device__ __forceinline__ Io* scores() { return keys[3]; }
};

// Halves: of up to 128 columns each.
// Normalised: with the L2 norm, if the problem says so. Hands: records are handed over one by one.
template <class Io, int Halves, bool Normalised, bool Hands = false>
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
    if constexpr (Hands) begun = clock64();
    if (thread == 0) {
      arch::init(s.keys_full, 1);
      arch::init(s.queries_full, 1);
      arch::fence_mbarrier_init();
      s.cursor.started = false;
      s.out_of_reach = -1;
      if constexpr (Hands) {
        s.handed.begin(a.handover, barrier - 1, kPrepareGroups);
      } else {
        s.cursor.item = first;
      }
      find(0, stride);
      if (s.info[0].rows > 0) {
        ask_keys(0, 0);
        ask_queries(0, 0);
        if constexpr (Hands) keep_pace(0);
      }
    }
    sync();
    if (s.info[0].rows == 0) return;
    if (thread == 64) find(1, stride);
    if (thread < 32) {
      load_gates(a.p, s.info[0], s.gates[0], thread);
      scan_gates(a.p, s.info[0], s.gates[0], thread);
    } else if (thread < 64) {
      load_betas(a.p, s.info[0], s.gates[0], thread & 31);
      make_betas(a.p, s.info[0], s.gates[0], thread & 31);
    }
    __syncwarp();
    int n = 0;
#pragma unroll 1
    for (; s.info[n & 3].rows > 0; ++n) chunk(n, stride);
    if (thread == 0) {
      arch::wait_for_stores<0>();
      if constexpr (Hands) hand_over(n - 1);
    }
  }

 private:
  __device__ __forceinline__ void sync() const { arch::sync_threads(barrier, 128); }
  __device__ __forceinline__ bool normalises() const { return Normalised && a.p.l2norm; }

  // Chunk n is in memory.
  __device__ __forceinline__ void hand_over(int n) {
    arch::raise_flag(a.handover.ready + s.item[n & 3]);
  }

  // Before chunk n is made: see Handover::pace. A CTA that was preempted may go on at a
  // multiprocessor whose clock is behind: no sign, so that it does not wait for that one.
  __device__ __forceinline__ void keep_pace(int n) const {
    const auto due = static_cast<unsigned long long>(kPrepareGroups * n + barrier - 1) *
                     static_cast<unsigned long long>(a.handover.pace);
    while (static_cast<unsigned long long>(clock64() - begun) < due) __nanosleep(64);
  }

  __device__ __forceinline__ void find(int place, std::int64_t stride) {
    if constexpr (Hands) {
      s.handed.find(a, handover_rows(), barrier - 1, kPrepareGroups, s.info[place], s.item[place]);
      return;
    }
    if (s.cursor.find(all, stride, s.info[place])) {
      s.item[place] = s.cursor.item;
    }
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

  // K K^T and Q K^T over both halves of the columns, and |q|^2 with the L2 norm.
  __device__ __forceinline__ void multiply_halves(int place, float (&product)[32],
                                                  float (&scores)[32], QuerySquares& squares) {
#pragma unroll
    for (int half = 0; half < Halves; ++half) {
      arch::wait(s.keys_full, half);
      clear_tail(place);
      multiply_rows(product, s.keys, 0, half > 0);
      arch::wait(s.queries_full, half);
      multiply_rows(scores, s.keys, 1, half > 0);
      if (normalises()) squares.add(s.keys, thread);
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
  }

  // 1 / |q| of the token that the thread makes factors of.
  __device__ __forceinline__ float over_length(const QuerySquares& squares) const {
    const float2 sums = squares.sums(thread);
    return over_root((thread & 1 ? sums.y : sums.x) + a.eps);
  }

  __device__ __forceinline__ void chunk(int n, std::int64_t stride) {
    const int place = n & 3, next = (n + 1) & 3;
    if (thread == 0 && n > 0) {
      arch::wait_for_store_reads<0>();  // the chunk before has left
      ask_queries(place, 0);
    }
    __syncwarp();
    float product[32];
    float scores[32];
    float query = a.scale;
    if constexpr (Halves > 1) {
      QuerySquares squares;
      multiply_halves(place, product, scores, squares);
      if (normalises()) query *= over_length(squares);
    } else {
      arch::wait(s.keys_full, n & 1);
      clear_tail(place);
      multiply_rows(product, s.keys, 0);
    }
    if constexpr (Hands) {
      if (thread == 0 && n > 0) {
        arch::wait_for_stores<0>();
        hand_over(n - 1);
        keep_pace(n);
      }
      __syncwarp();
    }
    sync();  // gates are there, the chunk before has left
    const auto& gates = s.gates[n & 1];
    auto& next_gates = s.gates[(n & 1) ^ 1];
    const bool mild = is_mild<Io>(gates);
    const float held = make_key_factors(mild, gates, s.masks, s.factors, thread);
    sync();
    const bool more = s.info[next].rows > 0;
    if constexpr (Halves > 1) {
      if (thread == 32 && more) ask_keys(next, 0);
      __syncwarp();
    } else {
      arch::wgmma_wait<0>();
      arch::pin(product);
    }
    // With both products in registers there are none to keep K K^T in, so columns are always
    // normalised.
    const bool normalise = Halves > 1 && normalises();
    const bool own_grows = normalise ? lower(n).store_normalised(product, held, mild)
                                     : lower(n).store(product, held, mild, normalises(), reach(n));
    __syncwarp();
    if constexpr (Halves == 1) {
      arch::wait(s.queries_full, n & 1);
      multiply_rows(scores, s.keys, 1);
      if (normalises()) {
        QuerySquares squares;
        squares.add(s.keys, thread);
        query *= over_length(squares);
      }
    }
    put_query_factors(mild, query, gates, s.masks, s.factors, thread);
    if (thread < 32 && more) load_gates(a.p, s.info[next], next_gates, thread);
    if (thread >= 32 && thread < 64 && more) {
      load_betas(a.p, s.info[next], next_gates, thread & 31);
    }
    invert_diagonal(s.scratch, thread >> 5, thread & 31);
    if constexpr (Halves == 1) {
      arch::wgmma_wait<0>();
      arch::pin(scores);
    }
    // All have read the keys, all diagonal blocks are inverted.
    const bool chunk_grows = arch::sync_any(barrier, 128, own_grows);
    if (thread == 0) {
      s.factors.decay[2] =
          chunk_grows ? kNeverForgets : __uint_as_float(gates[0][63]) + kErasedLog2;
    }
    const bool redo = Normalised && Halves == 1 && s.out_of_reach == n;
    if constexpr (Halves == 1) {
      if (thread == 32 && more && !redo) ask_keys(next, 0);
      __syncwarp();
    }
    clear_upper(s.inverse(), thread);
    clear_upper(s.scores(), thread);
    store_scores(scores, mild, gates, s.masks, s.scores(), thread);
    if (redo) {  // K K^T is made again: nothing else needs its registers for so long
      multiply_rows(product, s.keys, 0);
      arch::wgmma_wait<0>();
      arch::pin(product);
      lower(n).store_normalised(product, make_key_factors(mild, gates, s.masks, s.factors, thread),
                                mild);
      __syncwarp();
      invert_diagonal(s.scratch, thread >> 5, thread & 31);
      sync();
      if (thread == 32 && more) ask_keys(next, 0);
      __syncwarp();
    }
    if (redo || normalise) {
      store_inverse<true>(s.scratch, s.masks, s.inverse(), thread);
    } else {
      store_inverse<false>(s.scratch, s.masks, s.inverse(), thread);
    }
    if (thread < 32 && more) scan_gates(a.p, s.info[next], next_gates, thread);
    if (thread >= 32 && thread < 64 && more) {
      make_betas(a.p, s.info[next], next_gates, thread & 31);
    }
    if (thread == 64) find((n + 2) & 3, stride);  // a wait for memory
    sync();
    if (thread == 0) {
      Record<Io>& record = records[s.item[place]];
      arch::store_bulk(record.inverse, s.inverse(), kTileBytes);
      arch::store_bulk(record.scores, s.scores(), kTileBytes);
      arch::store_bulk(&record.factors, &s.factors, sizeof(Factors));
      arch::commit_stores();
    }
  }

  __device__ __forceinline__ auto lower(int n) {
    return make_lower_part(a, s.gates[n & 1], s.masks, s.factors, s.scratch, thread,
                           [this] { sync(); });
  }
  // Notes that chunk n has such keys.
  __device__ __forceinline__ auto reach(int n) {
    return [this, n] { s.out_of_reach = n; };
  }

  PrepareGroup<Io>& s;
  const RecordRows& all;
  const FusedArguments& a;
  Record<Io>* const records;  // [chunk slots, heads]
  const int barrier, thread;
  long long begun = 0;  // only with Hands
};

// grid: any number of CTAs. Longs: of the sequences that turn out to be long only (long_rows.cuh).
// Code that a call does not need costs it time all the same.
template <class Io, int Halves, bool Longs, bool Normalised>
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
  lower_order(a);
  arch::let_next_grid_start();
  const std::int64_t first = static_cast<std::int64_t>(group) * gridDim.x + blockIdx.x;
  const auto run = [&](const LongRows* longs) {
    const RecordRows all{a, longs};
    Prepare<Io, Halves, Normalised>(s, all, static_cast<Record<Io>*>(a.records), group)
        .run(first, static_cast<std::int64_t>(gridDim.x) * kPrepareGroups);
  };
  if constexpr (Longs) {
    __shared__ LongRows longs;
    find_long_rows(a, longs, reinterpret_cast<int*>(memory));
    arch::fence_async_proxy();
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.longs = longs;  // for the kernels behind
    if (longs.count > 0) run(&longs);
  } else {
    run(nullptr);
  }
}

// The same beside the kernel that walks over the chunks (handover.cuh).
template <class Io, bool Normalised>
__global__ void __launch_bounds__(kPrepareThreads, 1)
    prepare_beside(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  HandoverRows& rows = handover_rows();
  const int group = static_cast<int>(arch::uniform(threadIdx.x >> 7));
  PrepareGroup<Io>& s = reinterpret_cast<PrepareGroup<Io>*>(memory)[group];
  if (threadIdx.x == 0) {
    arch::prefetch_map(a.maps.k);
    arch::prefetch_map(a.maps.q);
    rows.most = 0;
  }
  __syncthreads();
  arch::wait_for_previous_grid();
  const RecordRows all{a, nullptr};
  lower_flags(all, rows);
  __syncthreads();
  arch::let_next_grid_start();
  Prepare<Io, 1, Normalised, true>(s, all, static_cast<Record<Io>*>(a.records), group).run(0, 0);
}

}  // namespace hyla::gdn
