// Causal depthwise conv1d over a pool of input windows: the step in front of a GDN recurrence.
//
//     y[t, c] = bias[c] + sum_{j<W} weight[c, j] * x[t - (W-1) + j, c],   out = silu(y) or y
//
// Tap W-1 meets the current token. Inputs before the call come from the row's window: its last W-1
// inputs, oldest first, in slot read_slots[b] of the pool `state` [slots, C, L], L >= W-1. Slot
// rules as in gdn.h. An input is rounded to the pool's dtype when it enters a window and used
// unrounded in its own call; so with a float32 pool, or one of x's dtype, a sequence may be cut
// into calls anywhere and keeps its bits.
//
// Two arrangements of the L columns of a row:
// - rolling (window_offsets absent): the newest input is the last column. A call of T tokens
//   shifts all columns left by T and appends its inputs.
// - at an offset (window_offsets given, for draft tokens): the window is columns [o, o + W-1), o =
//   window_offsets[b] clamped to 0 .. L-(W-1). An update of T >= 1 tokens puts the window's last
//   W-2 inputs and its T new ones into columns [0, W-2+T): then offset a-1 is the window after a
//   accepted tokens, 1 <= a <= T. It needs L >= W-2+T: an error where the host sees the lengths,
//   and on a GPU inputs past the last column are dropped. A prefill puts its final window at
//   offset 0. Columns not mentioned are left alone.
//
// A row of no tokens has no output and passes its window on: a prefill as its final window, an
// update as the row of L columns it was, to be read at the same offset. Drawn in docs/conv.md.
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
  TensorView weight;  // [C, W], W = 2, 3, 4; any strides; float32, bfloat16, float16
  TensorView out;     // shape and dtype of x; any strides; or x itself
  // [slots, C, L]; any strides; float32, bfloat16, float16; in place. Absent: windows start at
  // zero and are dropped, and no argument below may speak of slots or windows
  TensorView state{};
  TensorView bias{};                                       // [C]; float32, bfloat16, float16
  TensorView cu_seqlens{};                                 // [N + 1]
  TensorView starts{}, lengths{};                          // [N] each: instead of cu_seqlens
  TensorView read_slots{}, read_columns{}, write_slots{};  // as in gdn::DecodeParams
  std::int64_t first_slot = 0;
  TensorView window_offsets{};  // [N]
  // [N] bool or uint8; false: all columns before the call are zeros, whatever the pool holds
  TensorView has_initial_state{};
  // [N, M]: token counts in rising order, up to the sequence's; a negative entry ends the list
  TensorView checkpoint_offsets{};
  // [N, M]: pool slot of the window after that many tokens, arranged like a final window; a null
  // slot skips that write
  TensorView checkpoint_slots{};
  Activation activation = Activation::kSilu;
  const char* impl = nullptr;
};

struct UpdateParams {
  // [B, C], [B, T, C], or [total, C] with cu_seqlens or starts and lengths; any strides; float32,
  // bfloat16, float16
  TensorView x;
  TensorView weight;               // [C, W], as in PrefillParams
  TensorView out;                  // shape and dtype of x; any strides; or x itself
  TensorView state;                // [slots, C, L], as in PrefillParams, but required
  TensorView bias{};               // [C]; float32, bfloat16, float16
  TensorView cu_seqlens{};         // [B + 1]: rows of different lengths
  TensorView starts{}, lengths{};  // [B] each: instead of cu_seqlens
  TensorView read_slots{}, read_columns{}, write_slots{};
  std::int64_t first_slot = 0;
  TensorView window_offsets{};  // [B]
  // [B]: the window written is the one after that many tokens, 0: as it was; excludes
  // window_offsets
  TensorView commit_lengths{};
  Activation activation = Activation::kSilu;
  const char* impl = nullptr;
};

HYLA_API void prefill(const PrefillParams& params, const Context& context = {});
HYLA_API void update(const UpdateParams& params, const Context& context = {});

}  // namespace hyla::conv

#endif  // HYLA_CONV_H_
