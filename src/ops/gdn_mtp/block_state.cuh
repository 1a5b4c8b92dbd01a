// A warp's 16 value rows: between the pool and shared memory as the memory likes it, between shared
// memory and registers as the tensor cores do.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/cp_async_if.cuh"
#include "arch/matrix.cuh"
#include "arch/registers.cuh"
#include "arch/shared_address.cuh"
#include "device/dtype.cuh"
#include "ops/gdn_mtp/block_arguments.cuh"
#include "ops/gdn_mtp/block_policy.h"

namespace hyla::gdn {

struct Tf32Pair {
  std::uint32_t high, low;
};

__device__ __forceinline__ Tf32Pair split(float x) {
  const std::uint32_t high = __float_as_uint(x);
  return {high, __float_as_uint(x - __uint_as_float(high & 0xffffe000u))};
}

// A lane's 8 columns c of rows n of its pair, for one step, in the order in which a matrix product
// takes them: s[c / 2][2 n + c % 2].
struct StepRows {
  float s[4][4];

  // The low parts of columns 2 m and 2 m + 1 of row n.
  template <class Io>
  __device__ __forceinline__ std::uint32_t packed_low(int m, int n) const {
    device::Pack<Io, 2> pack;
    const float pair[2] = {__uint_as_float(split(s[m][2 * n]).low),
                           __uint_as_float(split(s[m][2 * n + 1]).low)};
    pack.pack(pair);
    return pack.words[0];
  }
};

// The same of a 16-bit state as it lies in memory: words[m][n] holds columns 2 m and 2 m + 1 of row
// n.
template <class State>
struct PackedStep {
  std::uint32_t words[4][2];

  __device__ __forceinline__ static PackedStep pack(const StepRows& rows) {
    PackedStep packed;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        device::Pack<State, 2> words;
        const float pair[2] = {rows.s[m][2 * n], rows.s[m][2 * n + 1]};
        words.pack(pair);
        packed.words[m][n] = words.words[0];
      }
    }
    return packed;
  }
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

// Stores as assembly: ptxas breaks one in two where it finds no two registers side by side, and
// moves one behind the math of the outputs, unless it is written so.
__device__ __forceinline__ void store_pair(float* to, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void store_quad(void* to, const std::uint32_t (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

// What the transfers share: a thread's place in the CTA.
template <class P>
struct TransferPlace {
  MtpBlockShared<P>& shared;
  int warp, lane;

  __device__ __forceinline__ TransferPlace(MtpBlockShared<P>& memory, int this_warp, int this_lane)
      : shared(memory), warp(this_warp), lane(this_lane) {}
};

// States [.., V, K]: every warp copies its own rows, 8 lanes 128 bytes of one; ordinary stores take
// them away as registers hold them. `row0` is the CTA's first row in the pool.
template <class P>
struct VkTransfer : TransferPlace<P> {
  using State = typename P::State;
  using TransferPlace<P>::TransferPlace, TransferPlace<P>::shared, TransferPlace<P>::warp,
      TransferPlace<P>::lane;
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kLine = 8 * kChunk;  // 128 bytes
  static constexpr int kCopyGroups = 1;     // of cp.async that bring the state

  static __device__ __forceinline__ int first_row(int g) { return 2 * g; }
  static __device__ __forceinline__ std::int64_t stride(const MtpBlockArguments& a) {
    return P::kOptions == Options::kUsual ? P::kK : static_cast<std::int64_t>(a.line_stride);
  }
  __device__ __forceinline__ bool owns(const MtpBlockArguments& a) const {
    return owns_rows<P>(a, static_cast<int>(blockIdx.x) * P::kRows + warp * P::kWarpRows);
  }
  // A 16-byte chunk of a row. Lanes that read together have 64 bytes of two neighbouring pairs of
  // rows: every other pair has the halves of its lines exchanged.
  __device__ __forceinline__ unsigned char* place(int row, int chunk) const {
    return shared.state + (warp * P::kWarpRows + row) * P::kRowBytes + 16 * (chunk ^ 2 * (row & 2));
  }
  __device__ __forceinline__ void start(const MtpBlockArguments& a, const State* row0) const {
    constexpr int kAtOnce = 4;  // rows
    const int row = lane >> 3, chunk = lane & 7;
    const State* from = row0 + (warp * P::kWarpRows + row) * stride(a) + kChunk * chunk;
    const std::uint32_t to = arch::shared_address(place(row, chunk));
    if (owns(a)) {
#pragma unroll
      for (int i = 0; i < P::kWarpRows; i += kAtOnce) {
#pragma unroll
        for (int column = 0; column < P::kK; column += kLine) {
          arch::copy_16(to + i * P::kRowBytes + column * static_cast<int>(sizeof(State)),
                        from + column);
        }
        from += kAtOnce * stride(a);
      }
    }
    arch::commit_copies();
  }
  // Before the first step; none of the later ones waits.
  template <int Step>
  __device__ __forceinline__ void wait(const MtpBlockArguments&) const {
    if constexpr (Step == 0) {
      arch::wait_copies<0>();
      __syncwarp();
    }
  }
  static constexpr int kPieces = P::kApart ? 2 : 1;  // of 16 bytes
  static constexpr int kPiece = 8 / kPieces;
  // Piece i of the lane's columns in step j.
  __device__ __forceinline__ int column(int j, int i) const {
    return 32 * j + 16 * i + kPiece * (lane & 3);
  }
  // The same of row n of its pair, in shared memory.
  __device__ __forceinline__ const unsigned char* piece(int j, int i, int n) const {
    const int before = (32 * j + 16 * i) / kChunk;  // chunks
    return place(2 * (lane >> 2), before % 8 + (lane & 3)) + before / 8 * 128 + n * P::kRowBytes;
  }
  __device__ __forceinline__ StepRows read(int j) const {
    StepRows rows;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        device::Pack<State, kPiece> pack;
        pack.load(piece(j, i, n));
        float values[kPiece];
        pack.unpack(values);
#pragma unroll
        for (int c = 0; c < kPiece; ++c) {
          rows.s[(kPiece * i + c) / 2][2 * n + c % 2] = values[c];
        }
      }
    }
    return rows;
  }
  __device__ __forceinline__ PackedStep<State> read_packed(int j) const {
    PackedStep<State> rows;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint4 words = *reinterpret_cast<const uint4*>(piece(j, 0, n));
      rows.words[0][n] = words.x, rows.words[1][n] = words.y;
      rows.words[2][n] = words.z, rows.words[3][n] = words.w;
    }
    return rows;
  }
  __device__ __forceinline__ void write(const MtpBlockArguments& a, int j, const StepRows& rows,
                                        State* row0) const {
    if (!owns(a)) return;
    State* const row = row0 + (warp * P::kWarpRows + first_row(lane >> 2)) * stride(a);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        float values[kPiece];
#pragma unroll
        for (int c = 0; c < kPiece; ++c) values[c] = rows.s[(kPiece * i + c) / 2][2 * n + c % 2];
        device::Pack<State, kPiece> pack;
        pack.pack(values);
        // Measured at B = 8: 16 bits gain 0.2 us by assembly, float32 loses as much.
        State* const to = row + n * stride(a) + column(j, i);
        if constexpr (sizeof(State) == 2) {
          store_quad(to, pack.words);
        } else {
          pack.store(to);
        }
      }
    }
  }
  __device__ __forceinline__ void finish(const MtpBlockArguments&, State*) const {}
};

// States [.., K, V]: the CTA's values of all K lines, 16 bytes a thread and access. A line is
// shared by the warps, so both directions cross a barrier of the CTA.
template <class P>
struct KvTransfer : TransferPlace<P> {
  using State = typename P::State;
  using TransferPlace<P>::TransferPlace, TransferPlace<P>::shared, TransferPlace<P>::warp,
      TransferPlace<P>::lane;
  static constexpr int kChunk = device::kPerChunk<State>;
  static constexpr int kChunks = P::kRows / kChunk;  // of a line
  static constexpr int kAccesses = P::kK * kChunks / (P::kWarps * 32);
  // Measured: rows of one block gain 0.4 us by four parts (B = 8), longer ones nothing.
  static constexpr int kParts = P::kOptions == Options::kUsual ? 4 : 1;
  static constexpr int kCopyGroups = kParts;
  static_assert(kAccesses % kParts == 0 && P::kSteps % kParts == 0);
  // The CTA beside this one takes the other 128 bytes of 256: 1.5 % of the time of a call
  // (bfloat16, B = 32, 128), nothing for those that take all of them.
  static constexpr bool kHalfLines = P::kOptions == Options::kUsual && P::kLineBytes == 128;

  static __device__ __forceinline__ int first_row(int g) { return P::kMatrices ? g : 2 * g; }
  // Chunk c of line k. What is read together falls on other banks: by the lanes of a quad lines 8
  // apart, as matrices two neighbouring lines of each, too.
  static __device__ __forceinline__ int turn_of(int k) {
    return 2 * ((k >> 3) & 3) + (P::kMatrices ? k & 1 : 0);
  }
  static __device__ __forceinline__ int place(int k, int c) {
    return (k * kChunks + c) ^ turn_of(k);
  }
  // A thread takes chunk thread % kChunks of lines thread / kChunks + i kStep. The same as place()
  // of that chunk, of which there are only a few up to constants.
  static constexpr int kStep = P::kWarps * 32 / kChunks;
  static_assert(kStep % 8 == 0);
  static __device__ __forceinline__ int place_of(int thread, int i) {
    const int line = thread / kChunks;  // of the thread's first access
    return (thread ^ turn_of(line + i * kStep)) + i * kStep * kChunks;
  }
  __device__ __forceinline__ bool owns(const MtpBlockArguments& a) const {
    const int thread = warp * 32 + lane;
    return owns_rows<P>(a, static_cast<int>(blockIdx.x) * P::kRows + thread % kChunks * kChunk);
  }
  // Of the thread's first access, in elements; `row0` is the CTA's first value in the first line.
  __device__ __forceinline__ std::int64_t first(std::uint32_t line_stride) const {
    const int thread = warp * 32 + lane;
    return thread % kChunks * kChunk + thread / kChunks * static_cast<std::int64_t>(line_stride);
  }
  __device__ __forceinline__ void start(const MtpBlockArguments& a, const State* row0) const {
    const bool mine = owns(a);
    const std::uint32_t state = arch::shared_address(shared.state);
    const State* from = row0 + first(a.line_stride);
#pragma unroll
    for (int i = 0; i < kAccesses; ++i) {
      const std::uint32_t to = state + 16 * place_of(warp * 32 + lane, i);
      if (mine) arch::copy_16_if<kHalfLines ? 256 : 0>(true, to, from);
      from += kStep * static_cast<std::int64_t>(a.line_stride);
      if ((i + 1) % (kAccesses / kParts) == 0) arch::commit_copies();
    }
  }
  // The lines of the steps from this one on, if a part begins with it: a CTA's first steps compute
  // while the lines of the others come.
  template <int Step>
  __device__ __forceinline__ void wait(const MtpBlockArguments&) const {
    if constexpr (Step % (P::kSteps / kParts) == 0) {
      arch::wait_copies<kParts - 1 - Step / (P::kSteps / kParts)>();
      __syncthreads();
    }
  }
  // Float32: the pair of values of the lane in lines 8 t + (0 or 1); lines further on lie at fixed
  // distances.
  __device__ __forceinline__ unsigned char* pair(int odd) const {
    const int value = warp * P::kWarpRows + 2 * (lane >> 2);
    return shared.state + 16 * place(8 * (lane & 3) + odd, value / kChunk) +
           value % kChunk * static_cast<int>(sizeof(State));
  }
  // 16 bits: the row of an 8 x 8 matrix whose address this lane gives, for words 2 half and 2 half
  // + 1 of step j; matrix i is word 2 half + i / 2, rows 8 (i % 2) + 0..7 of the warp.
  __device__ __forceinline__ std::uint32_t matrix_row(int this_lane, int j, int half) const {
    const int in_matrix = this_lane & 7, i = this_lane >> 3;
    const int line = 8 * (in_matrix >> 1) + (in_matrix & 1) + 2 * (i >> 1);
    return arch::shared_address(shared.state) +
           16 * place(line, warp * P::kWarpRows / kChunk + (i & 1)) +
           (32 * j + 4 * half) * P::kLineBytes;
  }
  __device__ __forceinline__ StepRows read(int j) const {
    if constexpr (P::kMatrices) {
      return read_packed(j).unpack();
    } else {
      const unsigned char* from[2] = {pair(0) + 32 * j * P::kLineBytes,
                                      pair(1) + 32 * j * P::kLineBytes};
      StepRows rows;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float2 values =
            *reinterpret_cast<const float2*>(from[c & 1] + (c & 6) * P::kLineBytes);
        rows.s[c / 2][c % 2] = values.x, rows.s[c / 2][2 + c % 2] = values.y;
      }
      return rows;
    }
  }
  __device__ __forceinline__ PackedStep<State> read_packed(int j) const {
    PackedStep<State> rows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t r[4];
      arch::load_matrices_transposed(r, matrix_row(lane, j, half));
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.words[2 * half + i / 2][i % 2] = r[i];
    }
    return rows;
  }
  // Float32: a warp's 16 values of a line are 64 bytes, stored as registers hold them.
  static constexpr bool kDirect = !P::kMatrices;
  __device__ __forceinline__ void write(const MtpBlockArguments& a, int j, const StepRows& rows,
                                        State* row0) const {
    const int same = arch::opaque(lane);  // so that places are computed again, not kept
    if constexpr (kDirect) {
      const int value = warp * P::kWarpRows + 2 * (same >> 2);
      if (!owns_rows<P>(a, static_cast<int>(blockIdx.x) * P::kRows + value)) return;
      State* to =
          row0 + (32 * j + 8 * (same & 3)) * static_cast<std::int64_t>(a.line_stride) + value;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        store_pair(to, rows.s[c / 2][c % 2], rows.s[c / 2][2 + c % 2]);
        to += a.line_stride;
      }
    } else {
      const PackedStep<State> packed = PackedStep<State>::pack(rows);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t r[4] = {packed.words[2 * half][0], packed.words[2 * half][1],
                                    packed.words[2 * half + 1][0], packed.words[2 * half + 1][1]};
        arch::store_matrices_transposed(matrix_row(same, j, half), r);
      }
      if constexpr (kByStep) {
        __syncthreads();
        store_lines(a, kStepAccesses * j, kStepAccesses, row0);
      }
    }
  }
  __device__ __forceinline__ void finish(const MtpBlockArguments& a, State* row0) const {
    if constexpr (kDirect || kByStep) return;
    __syncthreads();
    store_lines(a, 0, kAccesses, row0);
  }

 private:
  // Rows of one block: the lines of a step are stored while the next one is worked on.
  static constexpr bool kByStep = P::kOptions == Options::kUsual;
  static constexpr int kStepAccesses = kAccesses / P::kSteps;

  __device__ __forceinline__ void store_lines(const MtpBlockArguments& a, int begin, int count,
                                              State* row0) const {
    if (!owns(a)) return;
    State* to =
        row0 + first(a.line_stride) + begin * kStep * static_cast<std::int64_t>(a.line_stride);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(
          shared.state + 16 * place_of(warp * 32 + lane, begin + i));
      to += kStep * static_cast<std::int64_t>(a.line_stride);
    }
  }
};

// A CTA's first value in a slot.
template <class P>
__device__ __forceinline__ typename P::State* place_in_slot(const MtpBlockArguments& a,
                                                            std::int64_t slot, std::uint32_t head) {
  const std::uint32_t first_value = blockIdx.x * P::kRows;
  return static_cast<typename P::State*>(a.state) + slot * a.slot_stride +
         head * static_cast<std::int64_t>(a.head_stride) +
         (P::kLayout == StateLayout::kVK ? first_value * static_cast<std::int64_t>(a.line_stride)
                                         : first_value);
}

template <class P>
using BlockTransfer =
    std::conditional_t<P::kLayout == StateLayout::kKV, KvTransfer<P>, VkTransfer<P>>;

}  // namespace hyla::gdn
