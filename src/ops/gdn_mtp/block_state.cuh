// A warp's 16 value rows: between the pool and shared memory as the memory likes it, between shared
// memory and registers as the tensor cores do.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/registers.cuh"
#include "arch/shared_address.cuh"
#include "device/dtype.cuh"
#include "ops/gdn_mtp/block_policy.h"

namespace hyla::gdn {

// Columns 32 j + 8 t + c of rows 2 g + n of a warp, for one j, in lane 4 g + t and in the order in
// which a matrix product takes them: s[c / 2][2 n + c % 2].
struct StepRows {
  float s[4][4];
};

// The same of a 16-bit state as it lies in memory: words[m][n] holds columns 2 m and 2 m + 1 of row
// n.
template <class State>
struct PackedStep {
  std::uint32_t words[4][2];

  __device__ __forceinline__ StepRows unpack() const {
    StepRows rows;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        device::Pack<State, 2> pack;
        pack.words[0] = words[m][n];
        float pair[2];
        pack.unpack(pair);
        rows.s[m][2 * n] = pair[0], rows.s[m][2 * n + 1] = pair[1];
      }
    }
    return rows;
  }
};

// States [.., V, K]: rows are contiguous, 16 bytes a lane. `row0` is the warp's first row in the
// pool, its part of the shared memory is the warp's own.
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
  // The lane's 8 columns of row 2 g + n in step j.
  static __device__ __forceinline__ State* columns(MtpBlockShared<P>& shared, int warp, int lane,
                                                   int n, int j) {
    return reinterpret_cast<State*>(rows_of(shared, warp) + place(2 * (lane >> 2) + n)) +
           8 * (lane & 3) + 32 * j;
  }
  static __device__ __forceinline__ StepRows read(MtpBlockShared<P>& shared, int warp, int lane,
                                                  int j) {
    StepRows rows;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      device::Pack<State, 8> pack;
      pack.load(columns(shared, warp, lane, n, j));
      float values[8];
      pack.unpack(values);
#pragma unroll
      for (int c = 0; c < 8; ++c) rows.s[c / 2][2 * n + c % 2] = values[c];
    }
    return rows;
  }
  static __device__ __forceinline__ PackedStep<State> read_packed(MtpBlockShared<P>& shared,
                                                                  int warp, int lane, int j) {
    PackedStep<State> rows;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint4 words = *reinterpret_cast<const uint4*>(columns(shared, warp, lane, n, j));
      rows.words[0][n] = words.x, rows.words[1][n] = words.y;
      rows.words[2][n] = words.z, rows.words[3][n] = words.w;
    }
    return rows;
  }
  static __device__ __forceinline__ void write(MtpBlockShared<P>& shared, int warp, int lane, int j,
                                               const StepRows& rows) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float values[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) values[c] = rows.s[c / 2][2 * n + c % 2];
      device::Pack<State, 8> pack;
      pack.pack(values);
      pack.store(columns(shared, warp, lane, n, j));
    }
  }
  static __device__ __forceinline__ void finish(MtpBlockShared<P>& shared, State* row0,
                                                std::uint32_t line_stride, int warp, int lane) {
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

// States [.., K, V]: the CTA's values of all K lines, 16 bytes a thread and access. A line is
// shared by the warps, so both directions cross a barrier of the CTA.
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
  // A thread takes chunk thread % kChunks of lines thread / kChunks + i kStep. The same as place()
  // of that chunk, of which there are only a few up to constants.
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
  static __device__ __forceinline__ void wait() {
    arch::wait_copies<0>();
    __syncthreads();
  }
  // The pair of values of the lane in lines 8 t + (0 or 1); lines further on lie at fixed
  // distances.
  static __device__ __forceinline__ unsigned char* pair(unsigned char* state, int warp, int lane,
                                                        int odd) {
    const int first = warp * P::kWarpRows + 2 * (lane >> 2);
    return state + 16 * place(8 * (lane & 3) + odd, first / kChunk) +
           first % kChunk * static_cast<int>(sizeof(State));
  }
  static __device__ __forceinline__ StepRows read(MtpBlockShared<P>& shared, int warp, int lane,
                                                  int j) {
    unsigned char* from[2] = {pair(shared.state, warp, lane, 0) + 32 * j * P::kLineBytes,
                              pair(shared.state, warp, lane, 1) + 32 * j * P::kLineBytes};
    StepRows rows;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      device::Pack<State, 2> pack;
      pack.load(from[c & 1] + (c & 6) * P::kLineBytes);
      float values[2];
      pack.unpack(values);
      rows.s[c / 2][c % 2] = values[0], rows.s[c / 2][2 + c % 2] = values[1];
    }
    return rows;
  }
  static __device__ __forceinline__ PackedStep<State> read_packed(MtpBlockShared<P>& shared,
                                                                  int warp, int lane, int j) {
    unsigned char* from[2] = {pair(shared.state, warp, lane, 0) + 32 * j * P::kLineBytes,
                              pair(shared.state, warp, lane, 1) + 32 * j * P::kLineBytes};
    PackedStep<State> rows;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const auto even = *reinterpret_cast<const std::uint32_t*>(from[0] + 2 * m * P::kLineBytes);
      const auto odd = *reinterpret_cast<const std::uint32_t*>(from[1] + 2 * m * P::kLineBytes);
      rows.words[m][0] = __byte_perm(even, odd, 0x5410);
      rows.words[m][1] = __byte_perm(even, odd, 0x7632);
    }
    return rows;
  }
  static __device__ __forceinline__ void write(MtpBlockShared<P>& shared, int warp, int lane, int j,
                                               const StepRows& rows) {
    lane = arch::opaque(lane);  // so that places are computed again, not kept
    unsigned char* into[2] = {pair(shared.state, warp, lane, 0) + 32 * j * P::kLineBytes,
                              pair(shared.state, warp, lane, 1) + 32 * j * P::kLineBytes};
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      device::Pack<State, 2> pack;
      const float values[2] = {rows.s[c / 2][c % 2], rows.s[c / 2][2 + c % 2]};
      pack.pack(values);
      pack.store(into[c & 1] + (c & 6) * P::kLineBytes);
    }
  }
  static __device__ __forceinline__ void finish(MtpBlockShared<P>& shared, State* row0,
                                                std::uint32_t line_stride, int warp, int lane) {
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
