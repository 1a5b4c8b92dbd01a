// Short sequences: steps of 16 tokens, little code. A CTA has 64 value rows of one head of one
// sequence, 16 a warp, which goes from step to step without waiting for the others
// (step_state.cuh). What the tokens of a step need of each other is made in front of that, a step a
// warp (step_chunk.cuh). All that a task begins with is asked for at once; several CTAs share a
// multiprocessor, so that one waits for memory while another one computes.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/grid_dependency.cuh"
#include "arch/tma.cuh"
#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/step_arguments.cuh"
#include "ops/gdn_prefill/step_chunk.cuh"
#include "ops/gdn_prefill/step_state.cuh"
#include "ops/gdn_prefill/step_task.cuh"

namespace hyla::gdn {

template <class Io>
struct StepShared {
  StepChunk<Io> chunks[kStageSteps];
  unsigned char values[kStepThreads / 32][kStage * kStepValuePitch];
  float2 gate[kStepThreads / 32];  // rate and bias
};

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
  begin_state<Usual>(a.initial, task.from_pool && owns, a.wide_initial, task.read, head, value,
                     lane, S);
  prefetch_task<Usual>(a, cta + a.ahead);
  ChunkInfo info;
  info.rate = info.bias = 0.0f;
  set_step_head(a.p, head, info);
  if (lane == 0) s.gate[warp] = make_float2(info.rate, info.bias);  // registers are scarce
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
          *reinterpret_cast<uint4*>(out) =
              shared_words(at + (lane >> 1) * kStepValuePitch + 16 * (lane & 1));
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
  if (owns) end_state<Io, Usual>(a, task.begin, task.length, task.write, head, value, lane, S);
}

}  // namespace hyla::gdn
