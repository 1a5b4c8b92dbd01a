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
  bool dense;      // a line begins K elements behind the one before
  std::int64_t state_bytes;
};

struct DecodeLaunch {
  void (*kernel)(DecodeArguments) = nullptr;
  int values = 0;  // of V that a CTA owns
  int threads = 0;
  unsigned stage_bytes = 0;  // dynamic shared memory
};

template <class State_>
struct VkKernels {
  using State = State_;
  static constexpr DecodeVariants kVariants =
      vk_variants(sizeof(State), std::is_same_v<State, __half>);
  static constexpr GatedVariants kGated = vk_gated_variants(sizeof(State));
  static constexpr DecodeVariant kFallback = kVariants.back();
  template <class Io, Options O, int K, DecodeVariant Variant, bool Gated = false>
  static DecodeLaunch launch() {
    constexpr DecodeVariant kOwn = for_rows(Variant, K, sizeof(State));
    using P =
        DecodeVkPolicy<State, Io, O, K, kOwn.loads, kOwn.lanes, kOwn.warps, kOwn.parts, kOwn.again,
                       Gated, kOwn.staged, kOwn.resident, kOwn.around, kOwn.apart>;
    constexpr int kValues = P::kRowsOfCta;
    static_assert(!Gated || kGatedDim / kValues <= kMaxCluster);
    if constexpr (kOwn.served) {
      return {decode_vk_served<P>, kValues, 32 * (P::kWarps + 1), P::kStageBytes};
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
  static constexpr DecodeVariant kFallback = kv_fallback(sizeof(State));
  template <class Io, Options O, int K, DecodeVariant Variant, bool Gated = false>
  static DecodeLaunch launch() {
    constexpr DecodeVariant kOwn = for_keys(Variant, K, sizeof(State));
    using P = DecodeKvPolicy<State, Io, O, K, kOwn.loads, kOwn.lanes, kOwn.served, kOwn.early,
                             kOwn.spread, kOwn.again, kOwn.resident, Gated, kOwn.staged, kOwn.half,
                             kOwn.dense>;
    static_assert(!Gated || kGatedDim / P::kColumns <= kMaxCluster);
    return {decode_kv<P>, P::kColumns, 32 * (P::kWarps + 1), P::kStageBytes};
  }
};

// Does variant i come behind one that takes all that it would? Then it need not be compiled.
template <std::size_t N>
constexpr bool never_first(const std::array<DecodeVariant, N>& variants, std::size_t i, int K) {
  return std::any_of(variants.begin(), variants.begin() + i, [&](const DecodeVariant& before) {
    return (before.keys == 0 || before.keys == K) && !before.dense &&
           before.most_bytes >= variants[i].most_bytes;
  });
}

// The first variant that is made for so many bytes and for lines that lie so.
template <class Kernels, class Io, int K, auto Variants, bool Gated = false>
DecodeLaunch launch_for(std::int64_t state_bytes, bool dense) {
  const auto take = [&]<std::size_t I>(DecodeLaunch& launch) {
    constexpr DecodeVariant Variant = Variants[I];
    if constexpr ((Variant.keys == 0 || Variant.keys == K) && !never_first(Variants, I, K)) {
      if (state_bytes > Variant.most_bytes || (Variant.dense && !dense)) return false;
      launch = Kernels::template launch<Io, Options::kUsual, K, Variant, Gated>();
      return true;
    }
    return false;
  };
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    DecodeLaunch first;
    (take.template operator()<I>(first) || ...);
    return first;
  }
  (std::make_index_sequence<Variants.size()>());
}

// Calls that are not usual or must be invariant, values that do not fill a CTA of the best variant,
// and 16-bit states beside q, k, v of another type take the one that is right for everything.
template <class Kernels>
DecodeLaunch select_decode(const DecodeChoice& c) {
  return device::with_float_type(c.io, [&]<class Io>() {
    if constexpr (sizeof(Io) == 2) {
      if (c.gated) {
        return launch_for<Kernels, Io, kGatedDim, Kernels::kGated, true>(
            c.invariant ? kAnyBytes : c.state_bytes, c.dense);
      }
    }
    return device::with_key_dim(c.K, [&]<int K>() {
      constexpr DecodeVariant kFallback = Kernels::kFallback;
      if (!c.usual) return Kernels::template launch<Io, Options::kAny, K, kFallback>();
      const auto fallback = Kernels::template launch<Io, Options::kUsual, K, kFallback>();
      using State = typename Kernels::State;
      if constexpr (sizeof(State) == 4 || std::is_same_v<State, Io>) {
        const auto launch = launch_for<Kernels, Io, K, Kernels::kVariants>(c.state_bytes, c.dense);
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
