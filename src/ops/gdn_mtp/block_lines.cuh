// Lines of a bfloat16 state [.., K, V], 32 a warp, and what the four warps that share 64 values
// tell each other: their parts of the dots, and y.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/matrix.cuh"
#include "arch/shared_address.cuh"
#include "device/dtype.cuh"
#include "ops/gdn_mtp/block_solve.cuh"
#include "ops/gdn_mtp/block_update.cuh"

namespace hyla::gdn {

// A warp owns 32 lines of the CTA's 64 values, and solves the system of 16 of the values.
struct MtpLinesPolicy
    : MtpBlockPolicy<__nv_bfloat16, __nv_bfloat16, Options::kUsual, StateLayout::kKV> {
  static constexpr int kCtas = 5;
  static constexpr int kLines = kK / kWarps;
  static constexpr int kLineBytes = kRows * static_cast<int>(sizeof(State));
  static_assert(kLines == 32 && kLineBytes == 128);
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
  LinesShared& shared;
  int warp, lane;
  uint4 words[4][2];                                 // read()
  float k[P::kWarps][4] = {}, q[P::kWarps][4] = {};  // parts of the dots with values of warp + i

  __device__ __forceinline__ WarpLines(LinesShared& memory, int this_warp, int this_lane)
      : shared(memory), warp(this_warp), lane(this_lane) {}

  __device__ __forceinline__ void start(const MtpBlockArguments& a, const State* cta_state) const {
    constexpr int kAtOnce = 4;
    const int first = lane >> 3, chunk = lane & 7;
    const State* from = cta_state + element(a, first) + kChunk * chunk;
    const std::uint32_t to = own() + first * P::kLineBytes + 16 * (chunk ^ turn_of(first));
#pragma unroll
    for (int i = 0; i < P::kLines; i += kAtOnce) {
      arch::copy_16((to ^ 16 * turn_of(i)) + i * P::kLineBytes, from);
      from += kAtOnce * static_cast<std::int64_t>(a.line_stride);
    }
    arch::commit_copies();
  }
  static __device__ __forceinline__ void wait() {
    arch::wait_copies<0>();
    __syncwarp();
  }
  // The state is the first operand: 16 values by 16 lines, transposed on their way.
  __device__ __forceinline__ void make_dots(const uint4& k_words, const uint4& q_words) {
    const int in_matrix = lane & 7, matrix = lane >> 3;
    const int line = 8 * (in_matrix >> 1) + (in_matrix & 1) + 2 * (matrix >> 1);
    const std::uint32_t base = own() + line * P::kLineBytes + 16 * ((matrix & 1) ^ turn_of(line));
#pragma unroll
    for (int i = 0; i < P::kWarps; ++i) {
      const std::uint32_t from = base ^ 32 * ((warp + i) % P::kWarps);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t s[4];
        arch::load_matrices_transposed(s, from + 4 * half * P::kLineBytes);
        arch::mma_16x8x16<State>(k[i], s, word_of(k_words, 2 * half),
                                 word_of(k_words, 2 * half + 1));
        arch::mma_16x8x16<State>(q[i], s, word_of(q_words, 2 * half),
                                 word_of(q_words, 2 * half + 1));
      }
    }
  }
  // words[m][half]: of line 8 (g / 2) + 2 m + g % 2 values 32 half + 8 t + 0..7.
  __device__ __forceinline__ void read() {
    const int t = lane & 3, line = line_of_lane();
    const unsigned char* const base = shared.state[warp] + line * P::kLineBytes;
    const int at = 16 * (t ^ turn_of(line));
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        words[m][half] =
            *reinterpret_cast<const uint4*>(base + 2 * m * P::kLineBytes + (at ^ 64 * half));
      }
    }
  }
  __device__ __forceinline__ void send_dots() const {
    __syncwarp();
    auto* const to = reinterpret_cast<float4*>(shared.state[warp]) + lane;
#pragma unroll
    for (int i = 1; i < P::kWarps; ++i) {
      to[(2 * i - 2) * 32] = make_float4(k[i][0], k[i][1], k[i][2], k[i][3]);
      to[(2 * i - 1) * 32] = make_float4(q[i][0], q[i][1], q[i][2], q[i][3]);
    }
  }
  // Behind a barrier: all of k.S and q.S of the warp's 16 values, rows g and g + 8, tokens 2 t + e.
  __device__ __forceinline__ void receive_dots(float (&k_dots)[2][2], float (&q_dots)[2][2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) k_dots[i / 2][i % 2] = k[0][i], q_dots[i / 2][i % 2] = q[0][i];
#pragma unroll
    for (int i = 1; i < P::kWarps; ++i) {
      const auto* const from =
          reinterpret_cast<const float4*>(shared.state[(warp + P::kWarps - i) % P::kWarps]) + lane;
      add(from[(2 * i - 2) * 32], k_dots);
      add(from[(2 * i - 1) * 32], q_dots);
    }
  }
  // y of the warp's values, for all.
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
  __device__ __forceinline__ void update(const MtpBlockArguments& a, const uint4& keys,
                                         State* cta_state) {
    const float decay = shared.coefficients.decay;
    const std::uint32_t k_words[2][2] = {{keys.x, keys.y}, {keys.z, keys.w}};
    State* const to = cta_state + element(a, line_of_lane()) + kChunk * (lane & 3);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      __syncwarp();  // ptxas would make all products first: registers
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 high = shared.added.high[4 * half + j][lane];
        const std::uint32_t low = shared.added.low[4 * half + j][lane];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float d[4] = {};
          arch::mma_16x8x8_bf16(d, k_words[i][0], k_words[i][1], low);
          arch::mma_16x8x8_bf16(d, k_words[i][0], k_words[i][1], high.y);
          arch::mma_16x8x8_bf16(d, k_words[i][0], k_words[i][1], high.x);
          apply(decay, d[0], d[1], word(2 * i, half, j));
          apply(decay, d[2], d[3], word(2 * i + 1, half, j));
        }
      }
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint4& x = words[m][half];
        store_quad(to + 2 * m * static_cast<std::int64_t>(a.line_stride) + 32 * half,
                   {x.x, x.y, x.z, x.w});
      }
    }
  }

 private:
  // Chunk c of a line lies at c ^ turn_of(line): of the 8 lines of a matrix and of the two lines
  // that 8 lanes read at once no two have the same banks.
  static __device__ __forceinline__ int turn_of(int line) {
    return (line >> 3 & 3) + 4 * (line & 1);
  }
  __device__ __forceinline__ std::uint32_t own() const {
    return arch::shared_address(shared.state[warp]);
  }
  __device__ __forceinline__ int line_of_lane() const { return 8 * (lane >> 3) + (lane >> 2 & 1); }
  __device__ __forceinline__ std::int64_t element(const MtpBlockArguments& a, int line) const {
    return (P::kLines * warp + line) * static_cast<std::int64_t>(a.line_stride);
  }
  __device__ __forceinline__ std::uint32_t& word(int m, int half, int j) {
    uint4& x = words[m][half];
    return j == 0 ? x.x : j == 1 ? x.y : j == 2 ? x.z : x.w;
  }
  static __device__ __forceinline__ void add(const float4& x, float (&to)[2][2]) {
    to[0][0] += x.x, to[0][1] += x.y, to[1][0] += x.z, to[1][1] += x.w;
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
