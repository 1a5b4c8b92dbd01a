// What a block needs besides keys and state, and where its outputs go.
#pragma once

#include "arch/matrix.cuh"
#include "device/dtype.cuh"
#include "ops/gdn_mtp/block_coefficients.cuh"
#include "ops/gdn_mtp/block_gates.cuh"
#include "ops/gdn_mtp/block_policy.h"

namespace hyla::gdn {

// A lane's words of v and o, two 16-bit numbers each. Rows of a pair side by side: word e is both
// rows of token 2 t + e. Rows 8 apart: word n is rows 8 n + 2 t and 8 n + 2 t + 1 of token g, and a
// transpose makes row 8 n + g of tokens 2 t and 2 t + 1 of it.
template <class P>
struct ValuePlace {
  static __device__ __forceinline__ std::uint32_t token(int i, int lane) {
    return P::kRowStep == 1 ? 2 * (lane & 3) + i : lane >> 2;
  }
  static __device__ __forceinline__ int value(int i, int warp_value, int first_row, int lane) {
    return P::kRowStep == 1 ? first_row : warp_value + P::kRowStep * i + 2 * (lane & 3);
  }
  static __device__ __forceinline__ void unpack(const std::uint32_t (&words)[2],
                                                float (&to)[2][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      device::Pack<typename P::Io, 2> pack;
      pack.words[0] = P::kRowStep == 1 ? words[i] : arch::transpose_matrix(words[i]);
      float pair[2];
      pack.unpack(pair);
#pragma unroll
      for (int j = 0; j < 2; ++j) (P::kRowStep == 1 ? to[j][i] : to[i][j]) = pair[j];
    }
  }
  static __device__ __forceinline__ std::uint32_t packed(const float (&from)[2][2], int i) {
    device::Pack<typename P::Io, 2> pack;
    const float by_row[2] = {from[i][0], from[i][1]}, by_token[2] = {from[0][i], from[1][i]};
    pack.pack(P::kRowStep == 1 ? by_token : by_row);
    return P::kRowStep == 1 ? pack.words[0] : arch::transpose_matrix(pack.words[0]);
  }
};

// v of a block of tokens first .. first + tokens of the batch.
template <class P>
__device__ __forceinline__ void load_values(const MtpBlockArguments& a, std::uint32_t row,
                                            std::uint32_t first, std::uint32_t tokens,
                                            std::uint32_t head, int warp_value, int first_row,
                                            int lane, std::uint32_t (&v)[2]) {
  using Io = typename P::Io;
  using Place = ValuePlace<P>;
  const bool owns = owns_rows<P>(a, warp_value);
  const Io* from =
      static_cast<const Io*>(a.v) + at(a.v_stride, row, first + Place::token(0, lane), head);
  v[0] = load_word_if(owns && Place::token(0, lane) < tokens,
                      from + Place::value(0, warp_value, first_row, lane));
  if (P::kRowStep == 1) from += a.v_stride.token;
  v[1] = load_word_if(owns && Place::token(1, lane) < tokens,
                      from + Place::value(1, warp_value, first_row, lane));
}

// The gates of its token lane % kTokens, for a warp that makes its coefficients.
template <class P>
struct BlockGates {
  AskedGates<P::kOptions, typename P::Io> asked;

  __device__ __forceinline__ void load_if(bool makes, const MtpBlockArguments& a, std::uint32_t row,
                                          std::uint32_t first, std::uint32_t tokens,
                                          std::uint32_t head, int lane) {
    const std::uint32_t own = lane % P::kTokens;
    asked.ask_if(makes && own < tokens, a.gates, at(a.gate_stride, row, first + own, head),
                 at(a.beta_stride, row, first + own, head));
  }
  __device__ __forceinline__ void load_head_if(bool makes, const MtpBlockArguments& a,
                                               std::uint32_t head) {
    asked.ask_head_if(makes, a.gates, head);
  }
  // The coefficients, `applied` of the tokens being kept. What was asked for is read here, where it
  // is needed: the compiler moves no wait across a barrier, and no state then waits for it.
  template <class Products>
  __device__ __forceinline__ void make(const MtpBlockArguments& a, Products products,
                                       std::uint32_t tokens, std::uint32_t applied,
                                       const HeadBits& head, int lane, MtpCoefficients& to) const {
    using Io = typename P::Io;
    float alpha = 1.0f, beta = 0.0f;
    if (lane % P::kTokens < tokens) {
      const GateBits bits = asked.bits(head);
      alpha = alpha_of<P::kOptions, Io>(a.gates, bits);
      beta = beta_of<P::kOptions, Io>(a.gates, bits);
    }
    make_coefficients<P>(a, products(), alpha, beta, static_cast<int>(tokens),
                         static_cast<int>(applied), lane, to);
  }
};

// o: rows of the lane's pair, tokens 2 t + e of a block that begins with token `first`.
template <class P>
__device__ __forceinline__ void store_outputs(const MtpBlockArguments& a, std::uint32_t row,
                                              std::uint32_t first, std::uint32_t tokens,
                                              std::uint32_t head, int warp_value, int first_row,
                                              int lane, const float (&o)[2][2]) {
  using Io = typename P::Io;
  using Place = ValuePlace<P>;
  const bool owns = owns_rows<P>(a, warp_value);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t token = Place::token(i, lane), word = Place::packed(o, i);
    if (owns && token < tokens) {
      *reinterpret_cast<std::uint32_t*>(static_cast<Io*>(a.out) +
                                        at(a.out_stride, row, first + token, head) +
                                        Place::value(i, warp_value, first_row, lane)) = word;
    }
  }
}

}  // namespace hyla::gdn
