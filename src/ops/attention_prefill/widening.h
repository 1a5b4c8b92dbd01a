// What the widening kernel is called with.
#pragma once

#include "ops/attention_prefill/byte_rows.h"
#include "ops/attention_prefill/schedule.cuh"

namespace hyla::attention {

inline constexpr int kWideningWarps = 8;
inline constexpr int kWideningTokens = 16;  // of a warp, and one KV head

// Keys or values: where they come from and go to.
struct WideningHalf {
  ByteRows from;
  void* to = nullptr;       // [KV heads, room, dim]
  float* scales = nullptr;  // [KV heads, room], or null: the numbers have theirs, or there are none
  int eights = 0;           // of a row
  device::Divider by_eights;  // of the eights of a warp's tokens
};

struct Widening {
  WideningHalf keys, values;
  const Region* regions = nullptr;
  const Schedule::Counters* counters = nullptr;
  int rows = 0;  // of the batch
  int kv_heads = 0;
  int room = 0;
};

}  // namespace hyla::attention
