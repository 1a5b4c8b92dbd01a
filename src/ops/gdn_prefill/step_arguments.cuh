// What the kernel over steps of 16 tokens receives.
#pragma once

#include "device/divider.h"
#include "problem/gdn_prefill.h"

namespace hyla::gdn {

inline constexpr int kStep = 16;       // tokens
inline constexpr int kStageSteps = 4;  // steps whose keys are in shared memory at once
inline constexpr int kStage = kStep * kStageSteps;
inline constexpr int kStepValues = 64;  // value rows of a CTA, 16 a warp
inline constexpr int kStepThreads = 128;
inline constexpr int kStepCtas = 3;       // a multiprocessor
inline constexpr int kStreamTasks = 128;  // at most, of a CTA that goes through several

// [tokens, heads, ..], strides in bytes.
struct TokenBytes {
  char* data = nullptr;
  std::int64_t token = 0, head = 0;

  __device__ __forceinline__ char* at(int t, int h) const { return data + t * token + h * head; }
};

// Indices of rows that need no look at their dtypes, asked for at once: what is not there is a
// pointer that can be read all the same.
struct PlainIndices {
  const std::int32_t *cu_seqlens = nullptr, *read = nullptr, *write = nullptr;
  const unsigned char* starts = nullptr;  // has_initial_state
  int cu_stride = 0, read_stride = 0, write_stride = 0, starts_stride = 0;
  bool has_read = false, has_write = false, has_starts = false;
};

// In the order in which a CTA needs them: a grid that starts finds none of it in the constant
// cache.
struct StepArguments {
  device::Divider by_blocks, by_heads;  // of CTAs: of value rows, then heads
  int blocks = 1, heads = 1;
  PlainIndices indices;
  std::int64_t tokens = 0, first_slot = 0, read_limit = 0, write_limit = 0;
  device::Divider by_q, by_k, by_v;  // head to that of q, k, v
  TokenBytes k, q, v, gate, beta, out;
  PoolView initial, final;
  int values = 0;            // V
  bool checks_read = false;  // slots that are read can be null
  float scale = 0, eps = 0;
  bool wide_initial = false, wide_final = false;  // four keys at a time can be accessed
  int ahead = 0;               // CTAs between one and that which it prefetches for; 0: none
  bool dense_initial = false;  // float32 whose value rows are one piece of memory
  int tasks = 0;               // blocks of value rows of heads of sequences
  bool ranks = false;          // sequences may differ: see find_stream_tasks
  PrefillProblem p;
};

}  // namespace hyla::gdn
