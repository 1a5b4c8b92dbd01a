// The block kernels of one state dtype; each is compiled in a file of its own to keep the build
// parallel.
#pragma once

#include "ops/gdn_mtp/kernel_mtp_block.cuh"
#include "ops/gdn_mtp/kernel_mtp_blocks.cuh"

namespace hyla::gdn {

using MtpBlockKernel = void (*)(MtpBlockArguments);

struct BlockChoice {
  DType io;
  Options options;
  StateLayout layout;
};

template <class State, class Io, StateLayout L>
MtpBlockKernel select_block(Options options) {
  if (options == Options::kUsual) return mtp_block<MtpBlockPolicy<State, Io, Options::kUsual, L>>;
  return mtp_blocks<MtpBlockPolicy<State, Io, Options::kAny, L>>;
}

template <class State, class Io>
MtpBlockKernel select_block(const BlockChoice& c) {
  if (c.layout == StateLayout::kVK) return select_block<State, Io, StateLayout::kVK>(c.options);
  return select_block<State, Io, StateLayout::kKV>(c.options);
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
