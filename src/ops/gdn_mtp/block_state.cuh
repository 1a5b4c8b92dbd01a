// A warp's 16 value rows: between the pool and shared memory as the memory likes it, between shared
// memory and registers as the tensor cores do.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/registers.cuh"
#include "arch/shared_address.cuh"
#include "device/dtype.cuh"
#include "ops/gdn_mtp/block_policy.h"

namespace hyla::gdn {

// Lane 4 g + t holds columns 32 j + 8 t + c of rows 2 g + n of its warp, in the order in which a
// matrix product takes them: s[j][c / 2][2 (c % 2) + n].
template <class P>
struct BlockRows {
  float s[P::kSteps][4][4];
};

// The same of a 16-bit state as it lies in memory: words[j][m][n] holds columns 32 j + 8 t + 2 m and the
// next of row 2 g + n.
template <class P>
struct PackedRows {
  std::uint32_t words[P::kSteps][4][2];

  __device__ __forceinline__ void unpack(BlockRows<P>& rows) const {
#pragma unroll
    for (int j = 0; j < P::kSteps; ++j) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          device::Pack<typename P::State, 2> pack;
          pack.words[0] = words[j][m][n];
          float pair[2];
          pack.unpack(pair);
          rows.s[j][m][n] = pair[0], rows.s[j][m][2 + n] = pair[1];
        }
      }
    }
  }
};

// States [.., V, K]: rows are contiguous, 16 bytes a lane. `row0` is the warp's first row in the pool,
// its part of the shared memory is the warp's own.
template <class P>
struct VkTransfer {
  using State = typename P::State;
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kLanes = P::kK / kChunk;  // of a row
  static constexpr int kStep = 32 / kLanes;      // rows of one access
  static constexpr int kAccesses = P::kWarpRows / kStep;

  static __device__ __forceinline__ unsigned char* rows_of(MtpBlockShared<P>& shared, int warp) {
    return shared.state + warp * (P::kWarpRows / 2) * P::kPairBytes;
  }
  static __device__ __forceinline__ int place(int row) {
    return (row >> 1) * P::kPairBytes + (row & 1) * P::kRowBytes;
  }
  static __device__ __forceinline__ void start(MtpBlockShared<P>& shared, const State* row0,
                                               std::uint32_t line_stride, int warp, int lane) {
    const std::uint32_t buffer = arch::shared_address(rows_of(shared, warp)) + 16 * (lane % kLanes);
    const State* from =
        row0 + lane / kLanes * static_cast<std::int64_t>(line_stride) + lane % kLanes * kChunk;
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      arch::copy_16(buffer + place(i * kStep + lane / kLanes), from);
      from += kStep * static_cast<std::int64_t>(line_stride);
    }
    arch::commit_copies();
  }
  static __device__ __forceinline__ void wait() {
    arch::wait_copies<0>();
    __syncwarp();
  }
  static __device__ __forceinline__ void read(MtpBlockShared<P>& shared, int warp, int lane,
                                              BlockRows<P>& rows) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const auto* from =
          reinterpret_cast<const State*>(rows_of(shared, warp) + place(2 * (lane >> 2) + n)) +
          8 * (lane & 3);
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) {
        device::Pack<State, 8> pack;
        pack.load(from + 32 * j);
        float values[8];
        pack.unpack(values);
#pragma unroll
        for (int c = 0; c < 8; ++c) rows.s[j][c / 2][2 * (c % 2) + n] = values[c];
      }
    }
  }
  static __device__ __forceinline__ void read(MtpBlockShared<P>& shared, int warp, int lane,
                                              PackedRows<P>& rows) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const unsigned char* from =
          rows_of(shared, warp) + place(2 * (lane >> 2) + n) + 16 * (lane & 3);
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) {
        const uint4 words = *reinterpret_cast<const uint4*>(from + 64 * j);
        rows.words[j][0][n] = words.x, rows.words[j][1][n] = words.y;
        rows.words[j][2][n] = words.z, rows.words[j][3][n] = words.w;
      }
    }
  }
  static __device__ __forceinline__ void write(MtpBlockShared<P>& shared, State* row0,
                                               std::uint32_t line_stride, int warp, int lane,
                                               const BlockRows<P>& rows) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      auto* to = reinterpret_cast<State*>(rows_of(shared, warp) + place(2 * (lane >> 2) + n)) +
                 8 * (lane & 3);
#pragma unroll
      for (int j = 0; j < P::kSteps; ++j) {
        float values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) values[c] = rows.s[j][c / 2][2 * (c % 2) + n];
        device::Pack<State, 8> pack;
        pack.pack(values);
        pack.store(to + 32 * j);
      }
    }
    __syncwarp();
    const unsigned char* buffer = rows_of(shared, warp) + 16 * (lane % kLanes);
    State* to =
        row0 + lane / kLanes * static_cast<std::int64_t>(line_stride) + lane % kLanes * kChunk;
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      *reinterpret_cast<uint4*>(to) =
          *reinterpret_cast<const uint4*>(buffer + place(i * kStep + lane / kLanes));
      to += kStep * static_cast<std::int64_t>(line_stride);
    }
  }
};

// States [.., K, V]: the CTA's 32 values of all K lines, 16 bytes a thread and access. A line is shared
// by the warps, so both directions cross a barrier of the CTA.
template <class P>
struct KvTransfer {
  using State = typename P::State;
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kChunks = P::kRows / kChunk;  // of a line
  static constexpr int kAccesses = P::kK * kChunks / (P::kWarps * 32);

  // Chunk c of line k: lines 8 apart, which the lanes of a quad read together, fall on other banks.
  static __device__ __forceinline__ int place(int k, int c) {
    return (k * kChunks + c) ^ (2 * ((k >> 3) & 3));
  }
  // A thread takes chunk thread % kChunks of lines thread / kChunks + i kStep. The same as place() of
  // that chunk, of which there are only a few up to constants.
  static constexpr int kStep = P::kWarps * 32 / kChunks;
  static __device__ __forceinline__ int place_of(int thread, int i) {
    const int eight = thread / kChunks >> 3;  // lines of the thread's first access
    return (thread ^ (2 * ((i * kStep / 8 + eight) & 3))) + i * kStep * kChunks;
  }
  static __device__ __forceinline__ void start(MtpBlockShared<P>& shared, const State* row0,
                                               std::uint32_t line_stride, int warp, int lane) {
    const int thread = warp * 32 + lane, c = thread % kChunks;
    const std::uint32_t state = arch::shared_address(shared.state);
    const State* from = row0 - warp * P::kWarpRows + c * kChunk +
                        thread / kChunks * static_cast<std::int64_t>(line_stride);
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      arch::copy_16(state + 16 * place_of(thread, i), from);
      from += kStep * static_cast<std::int64_t>(line_stride);
    }
    arch::commit_copies();
  }
  // The barrier that hands over the keys hands over the lines, too.
  static __device__ __forceinline__ void wait() { arch::wait_copies<0>(); }
  // The pair of values of the lane in lines 8 t + (0 or 1); lines further on lie at fixed distances.
  static __device__ __forceinline__ unsigned char* pair(unsigned char* state, int warp, int lane,
                                                        int odd) {
    const int first = warp * P::kWarpRows + 2 * (lane >> 2);
    return state + 16 * place(8 * (lane & 3) + odd, first / kChunk) +
           first % kChunk * static_cast<int>(sizeof(State));
  }
  static __device__ __forceinline__ void read(MtpBlockShared<P>& shared, int warp, int lane,
                                              BlockRows<P>& rows) {
    unsigned char* from[2] = {pair(shared.state, warp, lane, 0), pair(shared.state, warp, lane, 1)};
#pragma unroll
    for (int j = 0; j < P::kSteps; ++j) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        device::Pack<State, 2> pack;
        pack.load(from[c & 1] + (32 * j + (c & 6)) * P::kLineBytes);
        float values[2];
        pack.unpack(values);
        rows.s[j][c / 2][2 * (c % 2)] = values[0], rows.s[j][c / 2][2 * (c % 2) + 1] = values[1];
      }
    }
  }
  static __device__ __forceinline__ void read(MtpBlockShared<P>& shared, int warp, int lane,
                                              PackedRows<P>& rows) {
    unsigned char* from[2] = {pair(shared.state, warp, lane, 0), pair(shared.state, warp, lane, 1)};
#pragma unroll
    for (int j = 0; j < P::kSteps; ++j) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int line = (32 * j + 2 * m) * P::kLineBytes;
        const auto even = *reinterpret_cast<const std::uint32_t*>(from[0] + line);
        const auto odd = *reinterpret_cast<const std::uint32_t*>(from[1] + line);
        rows.words[j][m][0] = __byte_perm(even, odd, 0x5410);
        rows.words[j][m][1] = __byte_perm(even, odd, 0x7632);
      }
    }
  }
  static __device__ __forceinline__ void write(MtpBlockShared<P>& shared, State* row0,
                                               std::uint32_t line_stride, int warp, int lane,
                                               const BlockRows<P>& rows) {
    lane = arch::opaque(lane);  // so that places are computed again, not kept
    unsigned char* into[2] = {pair(shared.state, warp, lane, 0), pair(shared.state, warp, lane, 1)};
#pragma unroll
    for (int j = 0; j < P::kSteps; ++j) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        device::Pack<State, 2> pack;
        const float values[2] = {rows.s[j][c / 2][2 * (c % 2)], rows.s[j][c / 2][2 * (c % 2) + 1]};
        pack.pack(values);
        pack.store(into[c & 1] + (32 * j + (c & 6)) * P::kLineBytes);
      }
    }
    __syncthreads();
    const int thread = warp * 32 + lane, c = thread % kChunks;
    State* to = row0 - warp * P::kWarpRows + c * kChunk +
                thread / kChunks * static_cast<std::int64_t>(line_stride);
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      *reinterpret_cast<uint4*>(to) =
          *reinterpret_cast<const uint4*>(shared.state + 16 * place_of(thread, i));
      to += kStep * static_cast<std::int64_t>(line_stride);
    }
  }
};

template <class P>
using BlockTransfer =
    std::conditional_t<P::kLayout == StateLayout::kVK, VkTransfer<P>, KvTransfer<P>>;

}  // namespace hyla::gdn
