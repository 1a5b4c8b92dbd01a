// Outputs of chunks on their way to memory: O^T of 64 value rows in the registers of a warpgroup,
// through two tiles of its own in turns.
#pragma once

#include "arch/matrix.cuh"
#include "arch/named_barrier.cuh"
#include "arch/registers.cuh"
#include "arch/tma_once.cuh"
#include "arch/tma_states.cuh"
#include "ops/gdn_prefill/chunk.cuh"
#include "ops/gdn_prefill/spoilt_rows.cuh"
#include "problem/gdn_prefill.h"

namespace hyla::gdn {

// Where the outputs of a task go.
struct OutTarget {
  const CUtensorMap& map;
  const core::TokenView& view;
  int head, token;  // of the task's first chunk
  int values = 128;
};

// Where the lane's row of a 16 x 16 block of tokens by values lies in a tile of a warpgroup's
// values, for transposing accesses.
__device__ __forceinline__ std::uint32_t token_block(int thread) {
  const int lane = thread & 31;
  return arch::swizzled(static_cast<std::uint32_t>((lane & 7) + (lane >> 4) * 8),
                        static_cast<std::uint32_t>((thread >> 5) * 2 + (lane >> 3 & 1)));
}

// By every lane, when these outputs are in memory.
__device__ __forceinline__ void mark_last(const SpoiltRows& spoilt, int end, int value_row,
                                          int lane, const OutTarget& target) {
  const std::int64_t at = target.view.offset(0, target.token + end - 1, target.head, value_row);
  mark_rows(static_cast<std::uint16_t*>(target.view.data) + at, spoilt, lane,
            value_row < target.values, value_row + 8 < target.values);
}

template <class Io>
class OutTiles {
 public:
  static constexpr int kThreads = 128;

  // `value_block`: of 64 value rows; `own_barrier`: a number that nobody else uses.
  __device__ __forceinline__ OutTiles(Io (*of_two)[kTile], int value_block, int own_barrier)
      : tiles(of_two), half(value_block), barrier(own_barrier) {}

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x) & 127; }
  __device__ __forceinline__ void sync() const { arch::sync_threads(barrier, kThreads); }

  // First row of the thread's fragment.
  __device__ __forceinline__ int value_row() const {
    return half * 64 + (thread() >> 5) * 16 + (thread() >> 2 & 7);
  }

  // O of a whole chunk, the n-th of the warpgroup and chunk c of its task, to memory.
  __device__ __forceinline__ void leave(int n, int c, const std::uint32_t (&out)[16],
                                        const OutTarget& target) const {
    write(n, out);
    send(n, c, target);
  }

  // The same in two steps: into the tile of chunk n, and from there to memory.
  __device__ __forceinline__ void write(int n, const std::uint32_t (&out)[16]) const {
    put(n, out);
    arch::fence_async_proxy();
  }
  // Without the fence that is due before it is sent.
  __device__ __forceinline__ void put(int n, const std::uint32_t (&out)[16]) const {
    const std::uint32_t to = arch::shared_address(tiles[n & 1]) + token_block(thread());
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      arch::store_matrices_transposed(to + j * 2048,
                                      reinterpret_cast<const std::uint32_t(&)[4]>(out[4 * j]));
    }
  }
  // Once: L2 has better use for its memory.
  template <bool Once = false>
  __device__ __forceinline__ void send(int n, int c, const OutTarget& target) const {
    meet();
    if (thread() != 0) return;
    const arch::Coordinates3 at{half * 64, target.head, target.token + c * kChunk};
    if constexpr (Once) {
      arch::store_tile_once(target.map, at, tiles[n & 1]);
    } else {
      arch::store_tile(target.map, at, tiles[n & 1]);
    }
    arch::commit_stores();
  }

  // The same of `rows` tokens; where the chunk is not whole, only its own rows.
  __device__ __forceinline__ void leave_last(int n, int c, int rows, const std::uint32_t (&out)[16],
                                             const OutTarget& target) const {
    write(n, out);
    send_last(n, c, rows, target);
  }
  __device__ __forceinline__ void send_last(int n, int c, int rows, const OutTarget& target) const {
    if (rows == kChunk) return send(n, c, target);
    meet();
    const char* tile = reinterpret_cast<const char*>(tiles[n & 1]);
    for (int i = arch::opaque(thread()); i < rows * 8; i += kThreads) {
      const int row = i >> 3, part = i & 7;
      if (half * 64 + part * 8 >= target.values) continue;
      const std::int64_t to =
          target.view.offset(0, target.token + c * kChunk + row, target.head, half * 64 + part * 8);
      *reinterpret_cast<uint4*>(static_cast<Io*>(target.view.data) + to) =
          *reinterpret_cast<const uint4*>(tile + arch::swizzled(static_cast<std::uint32_t>(row),
                                                                static_cast<std::uint32_t>(part)));
    }
  }

  // Whether a thread of the warpgroup says so.
  __device__ __forceinline__ bool any(bool mine) const {
    return arch::sync_any(barrier, kThreads, mine);
  }

  // Behind the outputs of the walk, which ends with the task's `end`-th token.
  __device__ __forceinline__ void mark(const SpoiltRows& spoilt, int end,
                                       const OutTarget& target) const {
    finish();
    sync();
    mark_last(spoilt, end, value_row(), thread() & 31, target);
  }

  // Nothing that was stored from the tiles is still to be read.
  __device__ __forceinline__ void free_tiles() const {
    if (thread() == 0) arch::wait_for_store_reads<0>();
    sync();
  }

  // The state S after chunk n - 1, by the copy engine: four tiles of 32 keys, in turns through the two that
  // are there for O. Whoever uses these next calls free_tiles before. `left`: called with the
  // number of 32 keys whose part of S is not needed any more.
  template <class Left>
  __device__ __forceinline__ void store_state(const float (&S)[64], int n, const CUtensorMap& map,
                                              int head, int slot, Left left) const {
    const auto row = static_cast<std::uint32_t>((thread() >> 5) * 16 + (thread() >> 2 & 7));
    const auto pair = static_cast<std::uint32_t>(thread() & 3);
    // Rows r and r + 8 have the same swizzle.
    const std::uint32_t at = row * 128 + (pair & 1) * 8, chunk = (pair >> 1) ^ (row & 7);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      Io* tile = tiles[(n + part) & 1];
      if (thread() == 0) arch::wait_for_store_reads<1>();
      sync();
      char* to = reinterpret_cast<char*>(tile) + at;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* x = &S[16 * part + 4 * i];
        const std::uint32_t offset = (chunk ^ static_cast<std::uint32_t>(2 * i)) << 4;
        *reinterpret_cast<float2*>(to + offset) = make_float2(x[0], x[1]);
        *reinterpret_cast<float2*>(to + offset + 1024) = make_float2(x[2], x[3]);
      }
      left(part);
      arch::fence_async_proxy();
      sync();
      if (thread() == 0) {
        arch::store_tile_4d(map, {32 * part, half * 64, head, slot}, tile);
        arch::commit_stores();
      }
    }
  }

  // Before the warpgroup ends.
  __device__ __forceinline__ void finish() const {
    if (thread() == 0) arch::wait_for_stores<0>();
  }

 protected:
  Io (*const tiles)[kTile];
  const int half;  // block of 64 value rows

 private:
  // All have written. The store that reads the other tile is done when all have passed the barrier,
  // so that one is free for the next chunk.
  __device__ __forceinline__ void meet() const {
    if (thread() == 0) arch::wait_for_store_reads<0>();
    sync();
  }

  const int barrier;
};

}  // namespace hyla::gdn
