// The KV kernels of one state dtype; each is compiled in a file of its own to keep the build
// parallel.
#pragma once

#include "device/launch.h"
#include "ops/gdn_decode/arguments.h"
#include "ops/gdn_decode/kernel_kv.cuh"
#include "ops/gdn_decode/policy.h"

namespace hyla::gdn {

struct KvLaunch {
  void (*kernel)(DecodeArguments) = nullptr;
  int columns_per_cta = 0, threads = 0;
};

template <class P>
KvLaunch kv_launch() {
  return {decode_kv<P>, P::kColumns, P::kWarps * 32};
}

template <class State, class Io, int K>
KvLaunch select_kv(bool usual, bool small) {
  if (!usual) return kv_launch<DecodeKvPolicy<State, Io, Options::kAny, K, kSmallKv>>();
  if (small) return kv_launch<DecodeKvPolicy<State, Io, Options::kUsual, K, kSmallKv>>();
  return kv_launch<DecodeKvPolicy<State, Io, Options::kUsual, K, kLargeKv>>();
}

template <class State, class Io>
KvLaunch select_kv(std::int64_t K, bool usual, bool small) {
  if (K == 64) return select_kv<State, Io, 64>(usual, small);
  return K == 128 ? select_kv<State, Io, 128>(usual, small)
                  : select_kv<State, Io, 256>(usual, small);
}

template <class State>
KvLaunch select_kv(DType io, std::int64_t K, bool usual, bool small) {
  if (io == DType::kFloat32) return select_kv<State, float>(K, usual, small);
  if (io == DType::kBFloat16) return select_kv<State, __nv_bfloat16>(K, usual, small);
  return select_kv<State, __half>(K, usual, small);
}

KvLaunch select_kv_f32(DType io, std::int64_t K, bool usual, bool small);
KvLaunch select_kv_bf16(DType io, std::int64_t K, bool usual, bool small);
KvLaunch select_kv_f16(DType io, std::int64_t K, bool usual, bool small);

}  // namespace hyla::gdn
