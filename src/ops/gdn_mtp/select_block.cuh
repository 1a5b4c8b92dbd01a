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
};

template <class State, class Io, Options O>
MtpBlockKernel select_block(StateLayout layout) {
  if (layout == StateLayout::kVK) return mtp_block<MtpBlockPolicy<State, Io, O, StateLayout::kVK>>;
  return mtp_block<MtpBlockPolicy<State, Io, O, StateLayout::kKV>>;
}

template <class State, class Io>
MtpBlockKernel select_block(const BlockChoice& c) {
  if (c.options == Options::kUsual) return select_block<State, Io, Options::kUsual>(c.layout);
  return select_block<State, Io, Options::kAny>(c.layout);
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
