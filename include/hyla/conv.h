// Causal depthwise conv1d over a pool of input windows: the step in front of a GDN recurrence.
//
//     y[t, c] = bias[c] + sum_{j<W} weight[c, j] * x[t - (W-1) + j, c],   out = silu(y) or y
//
// Tap W-1 meets the current token. Inputs before the sequence come from the row's window: the last
// W-1 inputs, oldest first, of slot read_slots[b] of the pool `state` [slots, C, L], L >= W-1. Slot
// rules as in gdn.h.
//
// Two arrangements of a pool with more than W-1 columns:
// - window_offsets absent: the newest inputs are the last columns; a call shifts the row left and
//   appends its inputs;
// - window_offsets given (draft tokens): row b reads its window at columns [o, o + W-1), o =
//   window_offsets[b] (clamped). An update of T tokens then leaves the inputs so that column offset
//   a-1 is the window after a accepted tokens (needs L >= W-2+T); a prefill leaves its final window
//   at column 0.
#ifndef HYLA_CONV_H_
#define HYLA_CONV_H_

#include <hyla/context.h>
#include <hyla/tensor.h>

#include <cstdint>

namespace hyla::conv {

enum class Activation { kNone, kSilu };

struct PrefillParams {
  // [total, C] with cu_seqlens or starts and lengths, or [B, T, C]; any strides; float32,
  // bfloat16, float16
  TensorView x;
  TensorView weight;  // [C, W], W = 2, 3, 4; float32, bfloat16, float16
  TensorView out;     // shape and dtype of x; any strides
  // [slots, C, L]; any strides; float32, bfloat16, float16; in place. Absent: windows start at
  // zero and are dropped
  TensorView state;
  TensorView bias;                                   // [C]; float32, bfloat16, float16
  TensorView cu_seqlens;                             // [N + 1]
  TensorView starts, lengths;                        // [N] each: instead of cu_seqlens
  TensorView read_slots, read_columns, write_slots;  // as in gdn::DecodeParams
  std::int64_t first_slot = 0;
  TensorView window_offsets;     // [N]
  TensorView has_initial_state;  // [N] bool or uint8; false: start from a window of zeros
  // [N, C]: token counts in rising order; a negative entry ends the list
  TensorView checkpoint_offsets;
  // [N, C]: pool slot of the window after that many tokens, arranged like a final window
  TensorView checkpoint_slots;
  Activation activation = Activation::kSilu;
  const char* impl = nullptr;
};

struct UpdateParams {
  // [B, C], [B, T, C], or [total, C] with cu_seqlens or starts and lengths; any strides
  TensorView x;
  TensorView weight;           // [C, W]
  TensorView out;              // shape and dtype of x
  TensorView state;            // [slots, C, L]; in place
  TensorView bias;             // [C]
  TensorView cu_seqlens;       // [B + 1]: rows of different lengths
  TensorView starts, lengths;  // [B] each: instead of cu_seqlens
  TensorView read_slots, read_columns, write_slots;
  std::int64_t first_slot = 0;
  TensorView window_offsets;  // [B]
  // [B]: the window written is the one after that many tokens; excludes window_offsets
  TensorView commit_lengths;
  Activation activation = Activation::kSilu;
  const char* impl = nullptr;
};

HYLA_API void prefill(const PrefillParams& params, const Context& context = {});
HYLA_API void update(const UpdateParams& params, const Context& context = {});

}  // namespace hyla::conv

#endif  // HYLA_CONV_H_
