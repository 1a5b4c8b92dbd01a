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
  bool gated;      // the fused norm; usual, K = V = kGatedDim, q, k, v in 16 bits
  std::int64_t state_bytes;
};

struct DecodeLaunch {
  void (*kernel)(DecodeArguments) = nullptr;
  int values = 0;  // of V that a CTA owns
  int threads = 0;
};

template <class State_>
struct VkKernels {
  using State = State_;
  static constexpr DecodeVariants kVariants = vk_variants(sizeof(State));
  static constexpr GatedVariants kGated = vk_gated_variants(sizeof(State));
  static constexpr int kFallback = 4;
  template <class Io, Options O, int K, DecodeVariant Variant, bool Gated = false>
  static DecodeLaunch launch() {
    using P = DecodeVkPolicy<State, Io, O, K, Variant.loads, Variant.lanes, Variant.warps,
                             Variant.parts, Variant.again, Gated>;
    constexpr int kValues = P::kRowsOfCta;
    static_assert(!Gated || kGatedDim / kValues <= kMaxCluster);
    if constexpr (Variant.served) {
      return {decode_vk_served<P>, kValues, 32 * (P::kWarps + 1)};
    } else {
      return {decode_vk<P>, kValues, 32 * P::kWarps};
    }
  }
};

template <class State_>
struct KvKernels {
  using State = State_;
  static constexpr DecodeVariants kVariants = kv_variants(sizeof(State));
  static constexpr GatedVariants kGated = kv_gated_variants(sizeof(State));
  static constexpr int kFallback = sizeof(State) == 4 ? 4 : 2;
  template <class Io, Options O, int K, DecodeVariant Variant, bool Gated = false>
  static DecodeLaunch launch() {
    constexpr DecodeVariant kOwn = for_keys(Variant, K);
    using P = DecodeKvPolicy<State, Io, O, K, kOwn.loads, kOwn.lanes, kOwn.served, kOwn.early,
                             kOwn.spread, kOwn.again, kOwn.resident, Gated>;
    static_assert(!Gated || kGatedDim / P::kColumns <= kMaxCluster);
    return {decode_kv<P>, P::kColumns, 32 * (P::kWarps + 1)};
  }
};

// The fused norm: a head is a cluster.
template <class Kernels, class Io>
DecodeLaunch select_gated(const DecodeChoice& c) {
  constexpr int kDim = kGatedDim;
  constexpr GatedVariants kGated = Kernels::kGated;
  if (!c.invariant && c.state_bytes <= kGated[0].most_bytes) {
    return Kernels::template launch<Io, Options::kUsual, kDim, kGated[0], true>();
  }
  return Kernels::template launch<Io, Options::kUsual, kDim, kGated[1], true>();
}

// Calls that are not usual or must be invariant, values that do not fill a CTA of the best variant,
// and 16-bit states beside q, k, v of another type take the one that is right for everything.
template <class Kernels>
DecodeLaunch select_decode(const DecodeChoice& c) {
  return device::with_float_type(c.io, [&]<class Io>() {
    if constexpr (sizeof(Io) == 2) {
      if (c.gated) return select_gated<Kernels, Io>(c);
    }
    return device::with_key_dim(c.K, [&]<int K>() {
      constexpr DecodeVariants kVariants = Kernels::kVariants;
      constexpr DecodeVariant kFallback = kVariants[Kernels::kFallback];
      if (!c.usual) return Kernels::template launch<Io, Options::kAny, K, kFallback>();
      const auto fallback = Kernels::template launch<Io, Options::kUsual, K, kFallback>();
      using State = typename Kernels::State;
      if constexpr (sizeof(State) == 4 || std::is_same_v<State, Io>) {
        const DecodeLaunch launch = [&]<std::size_t... I>(std::index_sequence<I...>) {
          DecodeLaunch first;
          ((c.state_bytes <= kVariants[I].most_bytes &&
            (first = Kernels::template launch<Io, Options::kUsual, K, kVariants[I]>(), true)) ||
           ...);
          return first;
        }
        (std::make_index_sequence<kVariants.size()>());
        if (!c.invariant && c.V % launch.values == 0) return launch;
      }
      return fallback;
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
