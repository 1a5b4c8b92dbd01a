// What a token of one head is besides its vectors: alpha, beta, the factors of the norms, q.k.
// Either every warp makes it for itself, or a warp of the CTA that owns no part of the state makes
// it for the others while they wait for theirs.
#pragma once

#include "device/reduce.cuh"
#include "ops/gdn_decode/arguments.cuh"

namespace hyla::gdn {

struct alignas(16) TokenScalars {
  float alpha, beta, k_factor, q_factor;  // q_factor: with the scale
  float qk;                               // of the raw vectors
};

// What a value and a row's dots become: step = from_v v - from_k k.S makes S' = alpha S + step k.
struct StepFactors {
  float alpha, from_v, from_k;

  explicit __device__ __forceinline__ StepFactors(const TokenScalars& token)
      : alpha(token.alpha),
        from_v(token.k_factor * token.beta),
        from_k(from_v * (token.k_factor * token.alpha)) {}
};

// k and q are spread over groups of `Width` lanes.
template <Options O, class Io, int Width, int N>
__device__ __forceinline__ TokenScalars make_scalars(const DecodeArguments& a, const GateBits& bits,
                                                     const float (&k)[N], const float (&q)[N]) {
  float kk = 0, qq = 0, qk = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    kk += k[i] * k[i];
    qq += q[i] * q[i];
    qk += q[i] * k[i];
  }
  TokenScalars token;
  token.k_factor = 1.0f, token.q_factor = a.scale;
  if (O == Options::kUsual || a.l2norm) {
    token.k_factor = rsqrtf(device::sum_lanes<Width>(kk) + a.l2norm_eps);
    token.q_factor *= rsqrtf(device::sum_lanes<Width>(qq) + a.l2norm_eps);
  }
  token.qk = device::sum_lanes<Width>(qk);
  token.alpha = alpha_of<O, Io>(a.gates, bits);
  token.beta = beta_of<O, Io>(a.gates, bits);
  return token;
}

// N elements of q or k side by side.
template <Options O, class Io, int N>
__device__ __forceinline__ void load_keys(const Io* from, bool wide, device::Pack<Io, N>& bits) {
  if (O == Options::kUsual || wide) {
    bits.load(from);
  } else {
    bits.load_unaligned(from);
  }
}

template <Options O, class Io>
__device__ __forceinline__ GateBits load_gates(const DecodeArguments& a, std::uint32_t row,
                                               std::uint32_t head) {
  return load_gates<O, Io>(a.gates, at<O>(a.gate_stride, row, head),
                           at<O>(a.beta_stride, row, head), head);
}

// The same by a whole warp from memory. GatesFirst: theirs is the longest way to go; kVK, where
// that was measured to help. `more` asks for what is needed later.
template <Options O, class Io, int K, bool GatesFirst, class More>
__device__ __forceinline__ TokenScalars make_scalars(const DecodeArguments& a, std::uint32_t row,
                                                     std::uint32_t head, std::uint32_t key_head,
                                                     int lane, More more) {
  constexpr int kOwn = K / 32;
  GateBits gates;
  if constexpr (GatesFirst) gates = load_gates<O, Io>(a, row, head);
  device::Pack<Io, kOwn> k_bits, q_bits;
  load_keys<O>(static_cast<const Io*>(a.k) + at<O>(a.k_stride, row, key_head) + lane * kOwn,
               a.wide_keys, k_bits);
  load_keys<O>(static_cast<const Io*>(a.q) + at<O>(a.q_stride, row, key_head) + lane * kOwn,
               a.wide_keys, q_bits);
  if constexpr (!GatesFirst) gates = load_gates<O, Io>(a, row, head);
  more();
  float k[kOwn], q[kOwn];
  k_bits.unpack(k);
  q_bits.unpack(q);
  return make_scalars<O, Io, 32>(a, gates, k, q);
}

}  // namespace hyla::gdn
