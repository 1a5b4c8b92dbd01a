// After how many tokens of a sequence its state is kept: every n, or as a list says. A list may
// name any token. Chunks stay where they are all the same, so outputs and states have the bits of a
// call without the list: for a token inside a chunk, the chunk's first tokens are walked over as a
// chunk of their own, and then the whole chunk from the state before it.
#pragma once

#include "ops/gdn_prefill/chunk.cuh"
#include "problem/gdn_prefill.h"

namespace hyla::gdn {

inline constexpr int kNoCheckpoint = 0x7fffffff;

// The index-th of a row; kNoCheckpoint: there is none. A list ends where it does not rise.
__device__ __forceinline__ int checkpoint_tokens(const PrefillProblem& p, int row, int index,
                                                 int length) {
  if (p.checkpoint_every > 0) {
    const std::int64_t tokens = (index + 1) * p.checkpoint_every;
    return tokens <= length ? static_cast<int>(tokens) : kNoCheckpoint;
  }
  const core::IndexView& list = p.checkpoint_offsets;
  if (!list.present() || index >= list.columns) return kNoCheckpoint;
  const std::int64_t tokens = list.at(row, index);
  const std::int64_t before = index > 0 ? list.at(row, index - 1) : -1;
  return tokens > before && tokens <= length ? static_cast<int>(tokens) : kNoCheckpoint;
}

}  // namespace hyla::gdn
