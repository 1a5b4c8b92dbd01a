// The block kernels of one state dtype; each is compiled in a file of its own to keep the build
// parallel.
#pragma once

#include "ops/gdn_mtp/kernel_mtp_block.cuh"
#include "ops/gdn_mtp/kernel_mtp_blocks.cuh"
#include "ops/gdn_mtp/kernel_mtp_lines.cuh"

namespace hyla::gdn {

using MtpBlockKernel = void (*)(MtpBlockArguments);

// Of a CTA, for rows of one block: four warps with 16 values each; the same with more registers
// and fewer CTAs an SM; with lines each (kernel_mtp_lines.cuh), in two ways; kMtpWideWarps.
enum class BlockShape { kValues, kFew, kLines, kSlotLines, kWide };

struct BlockChoice {
  DType io;
  Options options;
  StateLayout layout;
  BlockShape shape;  // kValues, unless has_shapes()
};

// kVK: kFew too; kKV: the others.
constexpr bool has_shapes(DType state, DType io) {
  return state == io && state == DType::kBFloat16;
}

struct MtpFewPolicy
    : MtpBlockPolicy<__nv_bfloat16, __nv_bfloat16, Options::kUsual, StateLayout::kVK> {
  static constexpr int kCtas = 4;
};

template <class State, class Io, StateLayout L>
MtpBlockKernel select_block(const BlockChoice& c) {
  if (c.options == Options::kAny) return mtp_blocks<MtpBlockPolicy<State, Io, Options::kAny, L>>;
  if constexpr (has_shapes(device::kDTypeOf<State>, device::kDTypeOf<Io>)) {
    if constexpr (L == StateLayout::kVK) {
      if (c.shape == BlockShape::kFew) return mtp_block<MtpFewPolicy>;
    } else {
      using Wide = MtpBlockPolicy<State, Io, Options::kUsual, L, kMtpWideWarps>;
      if (c.shape == BlockShape::kLines) return mtp_lines<MtpLinesPolicy>;
      if (c.shape == BlockShape::kSlotLines) return mtp_lines<MtpSlotLinesPolicy>;
      if (c.shape == BlockShape::kWide) return mtp_block<Wide>;
    }
  }
  return mtp_block<MtpBlockPolicy<State, Io, Options::kUsual, L>>;
}

template <class State, class Io>
MtpBlockKernel select_block(const BlockChoice& c) {
  if (c.layout == StateLayout::kVK) return select_block<State, Io, StateLayout::kVK>(c);
  return select_block<State, Io, StateLayout::kKV>(c);
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
