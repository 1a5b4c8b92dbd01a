// The shape of the block kernel and where things lie in its shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/gdn_decode/gate_arguments.cuh"

namespace hyla::gdn {

inline constexpr int kMtpBlockWarps = 4;  // of a CTA: they share its keys and coefficients
inline constexpr int kMtpWideWarps = 8;   // bfloat16 states [.., K, V] in lines of 256 bytes
inline constexpr int kMtpBlockWarpRows = 16;
inline constexpr int kMtpBlockTokens = 8;  // of a block

template <class State_, class Io_, Options O_, StateLayout Layout_, int Warps_ = kMtpBlockWarps>
struct MtpBlockPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr Options kOptions = O_;
  static constexpr StateLayout kLayout = Layout_;
  static constexpr int kTokens = kMtpBlockTokens;
  static constexpr int kK = 128;
  static constexpr int kSteps = kK / 32;  // of 32 columns; lane 4 g + t holds 8 of them
  static constexpr int kWarps = Warps_;
  static constexpr int kWarpRows = kMtpBlockWarpRows;  // a pair a lane, the same of four lanes
  static constexpr int kRows = kWarps * kWarpRows;
  // The tensor cores take a state in the dtype of q and k as it is.
  static constexpr bool kSame = std::is_same_v<State, Io>;
  // kVK: of 32 columns a lane holds two pieces of 16 bytes, 16 columns apart, or one. Four lanes
  // then hold 64 bytes side by side, and registers are stored as they are.
  static constexpr bool kApart = kLayout == StateLayout::kVK && sizeof(State) == 4;
  // The state is the first operand of the dots (block_dots.cuh).
  static constexpr bool kStateFirst = kLayout == StateLayout::kKV;
  // A lane's two rows lie side by side, or 8 apart: 16-bit states [.., K, V] pass between shared
  // memory and registers as transposed 8 x 8 matrices.
  static constexpr bool kMatrices = kStateFirst && sizeof(State) == 2;
  static constexpr int kRowStep = kMatrices ? 8 : 1;
  // Measured: bfloat16 KV gains 0.5 us by it (B = 32), float32 VK loses 0.1 (B = 8).
  static constexpr bool kGatesFirst = kLayout == StateLayout::kKV;
  // Measured: bfloat16 VK gains 0.5 us at B = 8 by roles in code of their own, the others lose up
  // to 0.8 us at B = 32. It also gains 0.2 us by keeping its state in registers, as it lies in
  // memory.
  static constexpr bool kRolesApart =
      kOptions == Options::kUsual && kSame && kLayout == StateLayout::kVK;
  static constexpr bool kKeepsPacked = kRolesApart;
  // Measured, with slots: asking for the slot before everything else gains 1 to 8 % from B = 8 on,
  // and without them costs nothing; only float32 VK loses 3 % at B = 8.
  static constexpr bool kSlotFirst = kStateFirst || sizeof(State) == 2;
  // The state does not stay in registers between the dots and the update. Without it more CTAs fit,
  // and 16-bit states need many to have enough bytes on their way; float32 beside half precision
  // has more products, which need registers too.
  static constexpr bool kReadsTwice = kOptions == Options::kUsual && !kKeepsPacked &&
                                      (sizeof(State) == 2 || std::is_same_v<Io, __half>);
  static_assert(sizeof(Io) == 2);
  // Warps of an SM: as many as fit without a spill. 16 have 128 registers a thread, 20 have 96, 24
  // have 80.
  static constexpr bool kShort = std::is_same_v<Io, __nv_bfloat16>;  // block_update.cuh
  static constexpr int kManyBlocksWarps = kApart && kShort ? 16 : 12;
  static constexpr int kSameWarps = kShort && kStateFirst ? 24 : 20;
  static constexpr int kSmWarps = kOptions == Options::kAny ? kManyBlocksWarps
                                  : kSame                   ? kSameWarps
                                                            : 16;
  static constexpr int kCtas = kSmWarps / kWarps;

  // A token's k or q in shared memory; the gap spreads the lanes' accesses over the banks.
  static constexpr int kKeyBytes = kK * static_cast<int>(sizeof(Io)) + (kApart ? 32 : 64);
  static constexpr int kBlocks = kOptions == Options::kAny ? 2 : 1;  // prepared at a time
  // Longer rows: the keys of every other pair of blocks lie where the state was, which is in
  // registers by then. A 16-bit state is small, and one of layout kKV passes there on its way out.
  static constexpr bool kKeysInState = sizeof(State) == 4;

  // kVK: the rows of all warps.
  static constexpr int kRowBytes = kK * static_cast<int>(sizeof(State));
  // kKV: kK lines of kRows values, their 16-byte chunks permuted against bank conflicts.
  static constexpr int kLineBytes = kRows * static_cast<int>(sizeof(State));
  static constexpr int kStateBytes =
      kLayout == StateLayout::kVK ? kRows * kRowBytes : kK * kLineBytes;
};

// What the gates of all tokens of a head share, as it lies in memory.
struct HeadBits {
  std::uint32_t A_log, dt_bias;
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

// k and q of a block's tokens. A row of one block: as the lanes of a warp want them, k and q by
// themselves, or words of both in turns where they are the first operand of the dots. Longer rows:
// as they lie in memory, so that they come without passing through registers.
template <class P, bool OneBlock = P::kOptions == Options::kUsual>
struct BlockKeys {
  uint4 words[2][P::kSteps][32];
};
template <class P>
struct BlockKeys<P, false> {
  unsigned char bytes[2][P::kTokens][P::kKeyBytes];
};

// The dots of a warp's rows, written by token and read by row without bank conflicts.
struct alignas(16) MtpTurn {
  float k[kMtpBlockTokens][kMtpBlockWarpRows + 4], q[kMtpBlockTokens][kMtpBlockWarpRows + 4];
};

struct NoTurn {};  // they come by row

struct NoKeys {};

// Of the warps that each multiply a part of the keys one adds up what the others send.
struct SentProducts {
  float4 words[2][32];
};

template <class P>
struct MtpBlockShared {
  alignas(128) unsigned char state[P::kStateBytes];
  alignas(16) BlockKeys<P> keys[P::kBlocks];
  using Keys = BlockKeys<P>[P::kBlocks];
  // Longer rows fetch the keys of the next blocks.
  std::conditional_t<P::kBlocks == 1 || P::kKeysInState, NoKeys, Keys> other_keys;
  // k as the update wants it: word m is tokens 2 t and 2 t + 1 at column 2 m + g % 2 of the 8 that
  // lanes with t = g / 2 hold.
  alignas(16) uint4 turned[P::kBlocks][P::kSteps][32];
  alignas(16) MtpCoefficients coefficients[P::kBlocks];
  std::conditional_t<P::kStateFirst, NoTurn, MtpTurn[P::kWarps]> turn;
  std::int64_t write;                    // slot, of a longer row
  HeadBits head[P::kBlocks];             // of a longer row, for those who make its coefficients
  float squares[P::kWarps][P::kTokens];  // fused norm: sums of o^2 over a warp's rows
};

}  // namespace hyla::gdn
