// Lines of a bfloat16 state [.., K, V], 64 a warp and 32 values of each, and what the two warps
// that share 32 values tell each other: their parts of the dots, and y.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/cp_async_if.cuh"
#include "arch/matrix.cuh"
#include "arch/named_barrier.cuh"
#include "arch/shared_address.cuh"
#include "device/dtype.cuh"
#include "ops/gdn_mtp/block_solve.cuh"
#include "ops/gdn_mtp/block_update.cuh"

namespace hyla::gdn {

// Two sides of 32 values, two warps each. A warp owns half the lines of its side, and solves the
// system of 16 of the values.
struct MtpLinesPolicy
    : MtpBlockPolicy<__nv_bfloat16, __nv_bfloat16, Options::kUsual, StateLayout::kKV> {
  static constexpr int kCtas = 4;
  static constexpr int kSides = 2, kParts = kWarps / kSides;
  static constexpr int kLines = kK / kParts;
  static constexpr int kValues = kRows / kSides;
  static constexpr int kLineBytes = kValues * static_cast<int>(sizeof(State));
  static_assert(kParts == 2 && kLines == 64 && kLineBytes == 64);
  static constexpr bool kSlotFirst = false;  // costs 3 % where there are no slots
};

struct MtpSlotLinesPolicy : MtpLinesPolicy {
  static constexpr bool kSlotFirst = true;  // gains 2 to 7 % where there are
};

// y of all values in three bfloat16 numbers, two and one, as the update wants them: 8 values that
// lanes hold together, a lane's words side by side. The gap spreads those who write over the banks.
struct AddedSums {
  static constexpr int kLanes = 32 + 8;
  uint2 high[8][kLanes];
  std::uint32_t low[8][kLanes];
};

struct LinesShared {
  using P = MtpLinesPolicy;
  // A warp's lines; when they are in registers, its parts of the dots for the other warps.
  alignas(128) unsigned char state[P::kWarps][P::kLines * P::kLineBytes];
  alignas(16) MtpCoefficients coefficients;
  alignas(16) SentProducts products[P::kWarps];
  AddedSums added;
};

struct WarpLines {
  using P = MtpLinesPolicy;
  using State = typename P::State;
  static constexpr int kChunk = 8;  // elements of 16 bytes
  static constexpr int kBlocks = P::kLines / 32;
  LinesShared& shared;
  int warp, lane;
  uint4 words[kBlocks][4];           // read()
  float k[2][4] = {}, q[2][4] = {};  // parts of the dots with own values, with the other warp's

  __device__ __forceinline__ WarpLines(LinesShared& memory, int this_warp, int this_lane)
      : shared(memory), warp(this_warp), lane(this_lane) {}

  __device__ __forceinline__ int part() const { return warp % P::kParts; }
  __device__ __forceinline__ int side() const { return warp / P::kParts; }
  // The two warps of a side.
  __device__ __forceinline__ void sync_side() const {
    arch::sync_threads(kFirstBarrier + side(), 32 * P::kParts);
  }

  __device__ __forceinline__ void start(const MtpBlockArguments& a, const State* cta_state) const {
    constexpr int kAtOnce = 8;
    const int first = lane >> 2, chunk = lane & 3;
    const State* from = cta_state + element(a, first) + kChunk * chunk;
#pragma unroll
    for (int i = 0; i < P::kLines; i += kAtOnce) {
      arch::copy_16_if<256>(true, place(first + i, chunk), from);
      from += kAtOnce * static_cast<std::int64_t>(a.line_stride);
    }
    arch::commit_copies();
  }
  static __device__ __forceinline__ void wait() {
    arch::wait_copies<0>();
    __syncwarp();
  }
  // The state is the first operand: 16 values by 16 lines, transposed on their way.
  __device__ __forceinline__ void make_dots(const uint4 (&k_words)[kBlocks],
                                            const uint4 (&q_words)[kBlocks]) {
    const int in_matrix = lane & 7, matrix = lane >> 3;
    const int line = 8 * (in_matrix >> 1) + (in_matrix & 1) + 2 * (matrix >> 1);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          std::uint32_t s[4];
          arch::load_matrices_transposed(
              s, place(line + 32 * block + 4 * half, 2 * (part() ^ i) + (matrix & 1)));
          arch::mma_16x8x16<State>(k[i], s, word_of(k_words[block], 2 * half),
                                   word_of(k_words[block], 2 * half + 1));
          arch::mma_16x8x16<State>(q[i], s, word_of(q_words[block], 2 * half),
                                   word_of(q_words[block], 2 * half + 1));
        }
      }
    }
  }
  // words[block][m]: of line 32 block + 8 (g / 2) + 2 m + g % 2 values 8 t + 0..7.
  __device__ __forceinline__ void read() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int line = line_of_lane() + 32 * block + 2 * m;
        words[block][m] =
            *reinterpret_cast<const uint4*>(shared.state[warp] + offset(line, lane & 3));
      }
    }
  }
  __device__ __forceinline__ void send_dots() const {
    __syncwarp();
    auto* const to = reinterpret_cast<float4*>(shared.state[warp]) + lane;
    to[0] = make_float4(k[1][0], k[1][1], k[1][2], k[1][3]);
    to[32] = make_float4(q[1][0], q[1][1], q[1][2], q[1][3]);
  }
  // Behind a barrier: all of k.S of the warp's 16 values, rows g and g + 8, tokens 2 t + e.
  __device__ __forceinline__ void receive_k(float (&dots)[2][2]) const { receive(k[0], 0, dots); }
  // And of q.S.
  __device__ __forceinline__ void receive_q(float (&dots)[2][2]) const { receive(q[0], 32, dots); }
  // y of the warp's values, for its side.
  __device__ __forceinline__ void share(const BlockSums& sums) const {
    const int g = lane >> 2, t = lane & 3;
    const KeptSums<State> y(kept(shared.coefficients, sums, lane).y);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int i = 2 * warp + n;  // values 8 i + g
      const int tile = 4 * (i >> 2) + (g >> 1), at = 4 * (2 * (i & 3) + (g & 1)) + t;
      shared.added.high[tile][at] = make_uint2(y.high[n], y.high[2 + n]);
      shared.added.low[tile][at] = y.low[n];
    }
  }
  // Behind a barrier: S' = decay S + k y, and away with it. keys: turned.
  __device__ __forceinline__ void update(const MtpBlockArguments& a, const uint4 (&keys)[kBlocks],
                                         State* cta_state) {
    const float decay = shared.coefficients.decay;
    State* const to = cta_state + element(a, line_of_lane()) + kChunk * (lane & 3);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint4& x = keys[block];
      const std::uint32_t k_words[2][2] = {{x.x, x.y}, {x.z, x.w}};
      __syncwarp();  // ptxas would make all products first: registers
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 high = shared.added.high[4 * side() + j][lane];
        const std::uint32_t low = shared.added.low[4 * side() + j][lane];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float d[4] = {};
          arch::mma_16x8x8_bf16(d, k_words[i][0], k_words[i][1], low);
          arch::mma_16x8x8_bf16(d, k_words[i][0], k_words[i][1], high.y);
          arch::mma_16x8x8_bf16(d, k_words[i][0], k_words[i][1], high.x);
          apply(decay, d[0], d[1], word(block, 2 * i, j));
          apply(decay, d[2], d[3], word(block, 2 * i + 1, j));
        }
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint4& piece = words[block][m];
        store_quad(to + (32 * block + 2 * m) * static_cast<std::int64_t>(a.line_stride),
                   {piece.x, piece.y, piece.z, piece.w});
      }
    }
  }

 private:
  static constexpr int kFirstBarrier = 1;

  // Chunk c of a line. Of the 8 lines of a matrix and of the two lines that 8 lanes read at once no
  // two have the same banks.
  static __device__ __forceinline__ int offset(int line, int c) {
    return line * P::kLineBytes + 16 * (c ^ (line >> 3 & 3));
  }
  __device__ __forceinline__ std::uint32_t place(int line, int c) const {
    return arch::shared_address(shared.state[warp]) + offset(line, c);
  }
  __device__ __forceinline__ int line_of_lane() const { return 8 * (lane >> 3) + (lane >> 2 & 1); }
  // The side's first value of the warp's line.
  __device__ __forceinline__ std::int64_t element(const MtpBlockArguments& a, int line) const {
    return (P::kLines * part() + line) * static_cast<std::int64_t>(a.line_stride) +
           P::kValues * side();
  }
  __device__ __forceinline__ std::uint32_t& word(int block, int m, int j) {
    uint4& x = words[block][m];
    return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
  }
  __device__ __forceinline__ void receive(const float (&own)[4], int from,
                                          float (&to)[2][2]) const {
    const float4 x = reinterpret_cast<const float4*>(shared.state[warp ^ 1])[from + lane];
    to[0][0] = own[0] + x.x, to[0][1] = own[1] + x.y;
    to[1][0] = own[2] + x.z, to[1][1] = own[3] + x.w;
  }
  static __device__ __forceinline__ void apply(float decay, float x, float y, std::uint32_t& word) {
    device::Pack<State, 2> pack;
    pack.words[0] = word;
    float pair[2];
    pack.unpack(pair);
    pair[0] = fmaf(decay, pair[0], x), pair[1] = fmaf(decay, pair[1], y);
    pack.pack(pair);
    word = pack.words[0];
  }
};

}  // namespace hyla::gdn
