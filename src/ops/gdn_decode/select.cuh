// The one-token kernels of one layout and state dtype; each is compiled in a file of its own to keep
// the build parallel.
#pragma once

#include "device/select.h"
#include "ops/gdn_decode/kernel_kv.cuh"
#include "ops/gdn_decode/kernel_vk.cuh"
#include "ops/gdn_decode/policy.h"

namespace hyla::gdn {

struct DecodeChoice {
  DType io;
  std::int64_t K;
  bool usual;  // Options::kUsual applies
  std::int64_t state_bytes;
};

struct DecodeLaunch {
  void (*kernel)(DecodeArguments) = nullptr;
  int values = 0;  // of V that a CTA owns
  int threads = 0;
};

template <class State>
struct VkKernels {
  template <class Io>
  static constexpr DecodeVariants kVariants = vk_variants(sizeof(State), sizeof(Io));
  template <class Io, Options O, int K, DecodeVariant V>
  static DecodeLaunch launch() {
    using P = DecodeVkPolicy<State, Io, O, K, V.loads, V.width>;
    return {decode_vk<P>, P::kRows * P::kWarps, P::kWarps * 32};
  }
};

template <class State>
struct KvKernels {
  template <class Io>
  static constexpr DecodeVariants kVariants = kv_variants(sizeof(State), sizeof(Io));
  template <class Io, Options O, int K, DecodeVariant V>
  static DecodeLaunch launch() {
    using P = DecodeKvPolicy<State, Io, O, K, V.loads, V.width>;
    return {decode_kv<P>, P::kColumns, P::kWarps * 32};
  }
};

// The large variants take the calls that are not usual.
template <class Kernels>
DecodeLaunch select_decode(const DecodeChoice& c) {
  return device::with_float_type(c.io, [&]<class Io>() {
    return device::with_key_dim(c.K, [&]<int K>() {
      constexpr DecodeVariants kVariants = Kernels::template kVariants<Io>;
      if (!c.usual) return Kernels::template launch<Io, Options::kAny, K, kVariants.large>();
      if (kVariants.of(c.state_bytes) == kVariants.large) {
        return Kernels::template launch<Io, Options::kUsual, K, kVariants.large>();
      }
      return Kernels::template launch<Io, Options::kUsual, K, kVariants.small>();
    });
  });
}

DecodeLaunch select_vk_f32(const DecodeChoice& choice);
DecodeLaunch select_vk_bf16(const DecodeChoice& choice);
DecodeLaunch select_vk_f16(const DecodeChoice& choice);
DecodeLaunch select_kv_f32(const DecodeChoice& choice);
DecodeLaunch select_kv_bf16(const DecodeChoice& choice);
DecodeLaunch select_kv_f16(const DecodeChoice& choice);

}  // namespace hyla::gdn
