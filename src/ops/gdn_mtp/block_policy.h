// The shape of the block kernel and where things lie in its shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/gdn_decode/gate_arguments.cuh"

namespace hyla::gdn {

inline constexpr int kMtpBlockWarps = 2;  // of a CTA: they share its keys and coefficients
inline constexpr int kMtpBlockWarpRows = 16;

template <class State_, class Io_, Options O_, StateLayout Layout_, int Tokens_>
struct MtpBlockPolicy {
  using State = State_;
  using Io = Io_;
  static constexpr Options kOptions = O_;
  static constexpr StateLayout kLayout = Layout_;
  static constexpr int kTokens = Tokens_;       // of a block: 4 or 8
  static constexpr int kPerLane = kTokens / 4;  // tokens whose sums a lane holds
  static constexpr int kK = 128;
  static constexpr int kSteps = kK / 32;  // lane 4 g + t holds columns 32 j + 8 t + 0..7 of a row
  static constexpr int kWarps = kMtpBlockWarps;
  static constexpr int kWarpRows = kMtpBlockWarpRows;  // rows 2 g and 2 g + 1 of lane 4 g + t
  static constexpr int kRows = kWarps * kWarpRows;
  // Of an SM: 128 registers a thread for the usual call, 96 where they are enough, 168 for all others
  // and for 16-bit states of another dtype than q.
  static constexpr bool kSame = std::is_same_v<State, Io>;
  static constexpr int kCtas = kOptions == Options::kAny || (sizeof(State) == 2 && !kSame) ? 6
                               : kSame && kTokens == 4                                     ? 10
                                                                                           : 8;
  static constexpr int kParts = kTokens == 8 ? 2 : 1;  // k and q apart, or k0 q0 k1 q1 .. together

  // kVK: a warp's 8 pairs of rows. The gap between pairs spreads the lanes' accesses over the
  // banks.
  static constexpr int kRowBytes = kK * static_cast<int>(sizeof(State));
  static constexpr int kPairBytes = 2 * kRowBytes + (sizeof(State) == 4 ? 16 : 64);
  // kKV: kK lines of kRows values, their 16-byte chunks permuted against bank conflicts.
  static constexpr int kLineBytes = kRows * static_cast<int>(sizeof(State));
  static constexpr int kStateBytes =
      kLayout == StateLayout::kVK ? kWarps * kWarpRows / 2 * kPairBytes : kK * kLineBytes;
};

// How a block's tokens combine, made once a CTA. With r the factor of the L2 norm, E(i) the decay up
// to token i and G(i, j) that after token j up to i, y(i) what token i adds along its key:
//   y(i) = value(i) v(i) - key(i) k(i).S - sum over j < i of mix(i, j) y(j)
//   o(i) = query(i) q(i).S + sum over j <= i of read(i, j) y(j)
//   S'   = decay S + sum over j of keep(j) y(j) k(j)
template <int Tokens>
struct MtpCoefficients {
  float mix[Tokens][Tokens];
  float read[Tokens][Tokens];
  struct Token {
    float value, key, query, keep;
  } token[Tokens];
  float decay;
};

template <class P>
struct MtpBlockShared {
  alignas(128) unsigned char state[P::kStateBytes];
  uint4 keys[P::kSteps][P::kParts][32];  // q and k as the lanes want them for the dots
  uint4 turned[P::kSteps][32];           // k as the lanes want it for the update
  alignas(16) MtpCoefficients<P::kTokens> coefficients;
  float squares[P::kWarps][P::kTokens];  // fused norm: sums of o^2 over a warp's rows
};

}  // namespace hyla::gdn
