// Short sequences: steps of 16 tokens, little code. A CTA has 64 value rows of one head of one
// sequence, 16 a warp, which goes from step to step without waiting for the others (step_state.cuh).
// What the tokens of a step need of each other is made in front of that, a step a warp
// (step_chunk.cuh). All that a task begins with is asked for at once; several CTAs share a
// multiprocessor, so that one waits for memory while another one computes.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/grid_dependency.cuh"
#include "arch/tma.cuh"
#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/step_arguments.cuh"
#include "ops/gdn_prefill/step_chunk.cuh"
#include "ops/gdn_prefill/step_state.cuh"

namespace hyla::gdn {

template <class Io>
struct StepShared {
  StepChunk<Io> chunks[kStageSteps];
  unsigned char values[kStepThreads / 32][kStage * kStepValuePitch];
  float2 gate[kStepThreads / 32];  // rate and bias
};

// Usual: the indices that there are are plain ones, so that slots have 32 bits.
template <bool Usual>
struct StepTask {
  using Slot = std::conditional_t<Usual, std::int32_t, std::int64_t>;
  int begin, length;
  Slot read, write;  // kNullSlot for none
  bool from_pool;
};

template <class Slot>
__device__ __forceinline__ Slot checked_slot(const StepArguments& a, Slot slot,
                                             std::int64_t limit) {
  const bool inside = slot >= a.first_slot && slot >= 0 && slot < limit;
  return inside ? slot : static_cast<Slot>(core::kNullSlot);
}

template <bool Usual>
__device__ __forceinline__ StepTask<Usual> find_step_task(const StepArguments& a, int row) {
  using Slot = typename StepTask<Usual>::Slot;
  StepTask<Usual> task;
  std::int64_t begin, length;
  if constexpr (Usual) {
    const PlainIndices& x = a.indices;
    const auto i = static_cast<std::int64_t>(row);
    const std::int32_t* offsets = x.cu_seqlens + i * x.cu_stride;
    const int first = offsets[0], end = offsets[x.cu_stride];
    const int read = x.read[i * x.read_stride], write = x.write[i * x.write_stride];
    const bool from_pool = x.starts[i * x.starts_stride] != 0;
    begin = first, length = static_cast<std::int64_t>(end) - first;
    task.read = x.has_read ? read : row;
    task.write = x.has_write ? write : task.read;
    task.from_pool = a.initial.present() && (!x.has_starts || from_pool);
  } else {
    const PrefillProblem& p = a.p;
    begin = p.sequences.begin(row), length = p.sequences.length(row);
    task.read = p.slots.raw_read(row), task.write = p.slots.raw_write(row);
    task.from_pool = p.starts_from_pool(row);
  }
  begin = max(std::int64_t{0}, min(begin, a.tokens));
  task.begin = static_cast<int>(begin);
  task.length = static_cast<int>(max(std::int64_t{0}, min(length, a.tokens - begin)));
  if (a.checks_read) task.read = checked_slot(a, task.read, a.read_limit);
  task.write = a.final.present() ? checked_slot(a, task.write, a.write_limit)
                                 : static_cast<Slot>(core::kNullSlot);
  return task;
}

// v of a stage's tokens, the warp's 16 value rows; zero past the end.
__device__ __forceinline__ void ask_values(const char* from, std::int64_t token_bytes, int rows,
                                           std::uint32_t to, int lane) {
  from += 16 * (lane & 1);
  to += 16 * (lane & 1);
#pragma unroll
  for (int i = 0; i < kStageSteps; ++i) {
    const int token = 16 * i + (lane >> 1);
    const int there = token < rows ? token : 0;
    arch::copy_16(to + token * kStepValuePitch, from + there * token_bytes, token < rows ? 16 : 0);
  }
}

__device__ __forceinline__ void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// What the CTA that comes `a.ahead` behind this one begins with, into L2: by the time it runs, a
// multiprocessor has room for it, and its loads take a third of the time.
template <bool Usual>
__device__ __forceinline__ void prefetch_task(const StepArguments& a, int cta) {
  if (a.ahead == 0 || cta >= static_cast<int>(gridDim.x)) return;
  const int pair = a.by_blocks(cta), row = a.by_heads(pair), head = pair - row * a.heads;
  const int value = (cta - pair * a.blocks) * kStepValues, thread = static_cast<int>(threadIdx.x);
  const StepTask<Usual> task = find_step_task<Usual>(a, row);
  if (task.read == core::kNullSlot) return;
  if (a.dense_initial && task.from_pool) {  // 128 bytes a line, all value rows of the CTA
    const char* state = static_cast<const char*>(a.initial.data) +
                        4 * (task.read * a.initial.slot_stride + head * a.initial.head_stride +
                             value * a.initial.v_stride);
    if (thread == 0) arch::prefetch_bulk(state, kStepValues * 128 * 4);
  }
  if (thread >= min(task.length, kStage)) return;
  const char* k = a.k.at(task.begin + thread, a.by_k(head));
  const char* q = a.q.at(task.begin + thread, a.by_q(head));
  prefetch_line(k), prefetch_line(k + 128);
  prefetch_line(q), prefetch_line(q + 128);
  prefetch_line(a.v.at(task.begin + thread, a.by_v(head)) + 2 * value);
}

// grid: blocks of value rows of heads of sequences
template <class Io, bool Usual>
__global__ void __launch_bounds__(kStepThreads, Usual ? kStepCtas : kStepCtas - 1)
    prefill_steps(const __grid_constant__ StepArguments a) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& s = *reinterpret_cast<StepShared<Io>*>(memory);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(arch::uniform(threadIdx.x >> 5));
  const int cta = static_cast<int>(blockIdx.x), pair = a.by_blocks(cta);
  const int row = a.by_heads(pair), head = pair - row * a.heads;
  const int value = (cta - pair * a.blocks) * kStepValues + 16 * warp;
  const bool owns = value < a.values;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  const StepTask<Usual> task = find_step_task<Usual>(a, row);
  if (task.read == core::kNullSlot) return;

  int left = task.length, token = task.begin;  // of the stage
  StepWords words;
  if (left > kStep * warp) {
    ask_step(a, token + kStep * warp, head, left - kStep * warp, words, lane);
  }
  const std::uint32_t values = arch::shared_address(s.values[warp]);
  if (owns && left > 0) {
    ask_values(a.v.at(token, a.by_v(head)) + 2 * value, a.v.token, left, values, lane);
  }
  StepState S;
  if (task.from_pool && owns) {
    load_step_state<Usual>(a.initial, step_state_offset(a.initial, task.read, head, value, lane),
                           a.wide_initial, S);
  } else {
#pragma unroll
    for (int i = 0; i < 64; ++i) S[i / 4][i % 4] = 0.0f;
  }
  prefetch_task<Usual>(a, cta + a.ahead);
  ChunkInfo info;
  info.rate = info.bias = 0.0f;
  set_step_head(a.p, head, info);
  s.gate[warp] = make_float2(info.rate, info.bias);  // registers are scarce
  __syncwarp();

#pragma unroll 1
  while (left > 0) {
    const int own = left - kStep * warp;
    if (own > 0) {
      info.rate = s.gate[warp].x, info.bias = s.gate[warp].y;
      make_step(a, info, words, own, s.chunks[warp], lane);
    }
    arch::wait_all_copies();
    __syncthreads();
    if (owns) {
      const int tokens = min(left, kStage);
      char* out = a.out.at(token + (lane >> 1), head) + 2 * value + 16 * (lane & 1);
      std::uint32_t at = values;
#pragma unroll 1
      for (int i = 0; kStep * i < tokens; ++i) {
        take_step(s.chunks[i], at + static_cast<std::uint32_t>(step_block(lane)), S, lane);
        if (kStep * i + (lane >> 1) < tokens) {
          uint4 o;
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(o.x), "=r"(o.y), "=r"(o.z), "=r"(o.w)
                       : "r"(at + (lane >> 1) * kStepValuePitch + 16 * (lane & 1))
                       : "memory");
          *reinterpret_cast<uint4*>(out) = o;
        }
        at += kStep * kStepValuePitch;
        out += kStep * a.out.token;
      }
    }
    left -= kStage, token += kStage;
    if (left <= 0) break;
    __syncthreads();  // all have read the chunks
    if (left > kStep * warp) {
      ask_step(a, token + kStep * warp, head, left - kStep * warp, words, lane);
    }
    if (owns) ask_values(a.v.at(token, a.by_v(head)) + 2 * value, a.v.token, left, values, lane);
  }
  if (task.write != core::kNullSlot && owns) {
    store_step_state<Usual>(a.final, step_state_offset(a.final, task.write, head, value, lane),
                            a.wide_final, S);
  }
}

}  // namespace hyla::gdn
