// The shape of the block kernel and where things lie in its shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/gdn_decode/gate_arguments.cuh"

namespace hyla::gdn {

// Warps of a CTA: they share its keys and coefficients.
constexpr int mtp_block_warps(Options options) { return options == Options::kUsual ? 4 : 2; }
inline constexpr int kMtpBlockWarpRows = 16;
inline constexpr int kMtpBlockTokens = 8;  // of a block

template <class State_, class Io_, Options O_, StateLayout Layout_>
struct MtpBlockPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr Options kOptions = O_;
  static constexpr StateLayout kLayout = Layout_;
  static constexpr int kTokens = kMtpBlockTokens;
  static constexpr int kK = 128;
  static constexpr int kSteps = kK / 32;  // lane 4 g + t holds columns 32 j + 8 t + 0..7 of a row
  static constexpr int kWarps = mtp_block_warps(kOptions);
  static constexpr int kWarpRows = kMtpBlockWarpRows;  // rows 2 g and 2 g + 1 of lane 4 g + t
  static constexpr int kRows = kWarps * kWarpRows;
  // The tensor cores take a state in the dtype of q and k as it is.
  static constexpr bool kSame = std::is_same_v<State, Io>;
  // Usual: the state does not stay in registers between the dots and the update. Without it more
  // CTAs fit, and 16-bit states need many to have enough bytes on their way.
  static constexpr bool kReadsTwice =
      kOptions == Options::kUsual && (kLayout == StateLayout::kKV || sizeof(State) == 2);
  // A row of several blocks: its state waits in shared memory, as float32.
  static constexpr bool kCarries = kOptions == Options::kAny && sizeof(State) == 2;
  // Warps of an SM: 128 registers a thread for the usual call, 96 where they are enough; 168 for
  // others.
  static constexpr int kSmWarps = kOptions == Options::kAny ? 12 : kSame ? 20 : 16;
  static constexpr int kCtas = kSmWarps / kWarps;
  // Of the dots' products, to hide their latency: half of each for the high and the low part.
  static constexpr int kChains = kOptions == Options::kAny ? 2 : 4;

  // kVK: a warp's 8 pairs of rows. The gap between pairs spreads the lanes' accesses over the
  // banks.
  static constexpr int kRowBytes = kK * static_cast<int>(sizeof(State));
  static constexpr int kPairBytes = 2 * kRowBytes + (sizeof(State) == 4 ? 16 : 64);
  // kKV: kK lines of kRows values, their 16-byte chunks permuted against bank conflicts.
  static constexpr int kLineBytes = kRows * static_cast<int>(sizeof(State));
  static constexpr int kStateBytes =
      kLayout == StateLayout::kVK ? kWarps * kWarpRows / 2 * kPairBytes : kK * kLineBytes;
};

// How a block's tokens combine, made once a CTA. With b(j) = value(j) v(j) - key(j) k(j).S:
//   y(i) = sum over j <= i of solved(i, j) b(j)               what token i adds along its key
//   o(i) = query(i) q(i).S + sum over j <= i of output(i, j) b(j)
//   S'   = decay S + sum over j of keep(j) y(j) k(j)
struct MtpCoefficients {
  float solved[kMtpBlockTokens][kMtpBlockTokens];
  float output[kMtpBlockTokens][kMtpBlockTokens];
  struct alignas(16) Token {
    float value, key, query, keep;
  } token[kMtpBlockTokens];
  float decay;
};

// A number for each of a warp's rows and tokens, written by token and read by row without bank
// conflicts, the tokens of a row side by side.
struct MtpTurn {
  float numbers[kMtpBlockWarpRows * 12 + 8];

  static __device__ __forceinline__ int place(int row, int token) {
    return row * 12 + (row >> 3) * 8 + token;
  }
};

template <class P>
struct MtpBlockShared {
  alignas(128) unsigned char state[P::kStateBytes];
  // q and k as the dots want them: lane 4 g + t has words 2 half and 2 half + 1 of its columns 32 j
  // + 8 t of token g, as k, q, k, q.
  uint4 keys[P::kSteps][2][32];
  // k as the update wants it: word m is tokens 2 t and 2 t + 1 at column 32 j + 8 (g / 2) + 2 m + g
  // % 2.
  uint4 turned[P::kSteps][32];
  alignas(16) MtpCoefficients coefficients;
  alignas(16) MtpTurn b[P::kWarps], queries[P::kWarps];
  float4 carried[P::kCarries ? P::kWarps * P::kSteps * 4 : 1][32];
  float squares[P::kWarps][P::kTokens];  // fused norm: sums of o^2 over a warp's rows
};

}  // namespace hyla::gdn
