// The one-token kernels of one layout and state dtype; each is compiled in a file of its own to
// keep the build parallel.
#pragma once

#include "device/select.h"
#include "ops/gdn_decode/kernel_kv.cuh"
#include "ops/gdn_decode/kernel_vk.cuh"
#include "ops/gdn_decode/policy.h"

namespace hyla::gdn {

struct DecodeChoice {
  DType io;
  std::int64_t K, V;
  bool usual;      // Options::kUsual applies
  bool invariant;  // the choice must not depend on the rows
  std::int64_t state_bytes;
};

struct DecodeLaunch {
  void (*kernel)(DecodeArguments) = nullptr;
  int values = 0;  // of V that a CTA owns
  int threads = 0;
};

template <class State>
struct VkKernels {
  static constexpr DecodeVariants kVariants = vk_variants(sizeof(State));
  static constexpr int kFallback = 2;
  template <class Io, Options O, int K, int I>
  static DecodeLaunch launch() {
    constexpr DecodeVariant kVariant = kVariants[I];
    using P = DecodeVkPolicy<State, Io, O, K, kVariant.loads, kVariant.lanes, kVariant.warps>;
    constexpr int kValues = P::kRows * P::kWarps;
    if constexpr (kVariant.served) {
      return {decode_vk_served<P>, kValues, 32 * (P::kWarps + 1)};
    } else {
      return {decode_vk<P>, kValues, 32 * P::kWarps};
    }
  }
};

template <class State>
struct KvKernels {
  static constexpr DecodeVariants kVariants = kv_variants(sizeof(State));
  static constexpr int kFallback = sizeof(State) == 4 ? 2 : 1;
  template <class Io, Options O, int K, int I>
  static DecodeLaunch launch() {
    constexpr DecodeVariant kVariant = kVariants[I];
    using P = DecodeKvPolicy<State, Io, O, K, kVariant.loads, kVariant.lanes, kVariant.served>;
    return {decode_kv<P>, P::kColumns, 32 * (P::kWarps + 1)};
  }
};

// Calls that are not usual or must be invariant, and values that do not fill a CTA of the best
// variant, take the one that is right for everything.
template <class Kernels>
DecodeLaunch select_decode(const DecodeChoice& c) {
  return device::with_float_type(c.io, [&]<class Io>() {
    return device::with_key_dim(c.K, [&]<int K>() {
      constexpr DecodeVariants kVariants = Kernels::kVariants;
      if (!c.usual) return Kernels::template launch<Io, Options::kAny, K, Kernels::kFallback>();
      DecodeLaunch launch;
      if (c.state_bytes <= kVariants[0].most_bytes) {
        launch = Kernels::template launch<Io, Options::kUsual, K, 0>();
      } else if (c.state_bytes <= kVariants[1].most_bytes) {
        launch = Kernels::template launch<Io, Options::kUsual, K, 1>();
      } else {
        launch = Kernels::template launch<Io, Options::kUsual, K, 2>();
      }
      if (!c.invariant && c.V % launch.values == 0) return launch;
      return Kernels::template launch<Io, Options::kUsual, K, Kernels::kFallback>();
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
