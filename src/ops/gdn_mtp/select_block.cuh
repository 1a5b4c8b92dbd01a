// The block kernels of one state dtype; each is compiled in a file of its own to keep the build
// parallel.
#pragma once

#include "ops/gdn_mtp/kernel_mtp_block.cuh"

namespace hyla::gdn {

using MtpBlockKernel = void (*)(MtpBlockArguments);

struct BlockChoice {
  DType io;
  Options options;
  StateLayout layout;
  int tokens;
};

template <class State, class Io, Options O, StateLayout Layout>
MtpBlockKernel select_block(int tokens) {
  if (tokens == 4) return mtp_block<MtpBlockPolicy<State, Io, O, Layout, 4>>;
  return mtp_block<MtpBlockPolicy<State, Io, O, Layout, 8>>;
}

template <class State, class Io, Options O>
MtpBlockKernel select_block(StateLayout layout, int tokens) {
  if (layout == StateLayout::kVK) return select_block<State, Io, O, StateLayout::kVK>(tokens);
  return select_block<State, Io, O, StateLayout::kKV>(tokens);
}

template <class State, class Io>
MtpBlockKernel select_block(const BlockChoice& c) {
  if (c.options == Options::kUsual) {
    return select_block<State, Io, Options::kUsual>(c.layout, c.tokens);
  }
  return select_block<State, Io, Options::kAny>(c.layout, c.tokens);
}

template <class State>
MtpBlockKernel select_block(const BlockChoice& c) {
  if (c.io == DType::kBFloat16) return select_block<State, __nv_bfloat16>(c);
  return select_block<State, __half>(c);
}

MtpBlockKernel select_block_f32(const BlockChoice& choice);
MtpBlockKernel select_block_bf16(const BlockChoice& choice);
MtpBlockKernel select_block_f16(const BlockChoice& choice);

}  // namespace hyla::gdn
