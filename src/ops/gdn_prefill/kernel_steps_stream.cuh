// Steps of 16 tokens (kernel_steps.cuh) of many short sequences, at the memory's rate: a CTA has a
// multiprocessor for itself and goes through tasks, 128 value rows of one head of a sequence each.
// Four warps make steps, up to six ahead. Eight walk, with 16 value rows each: they ask for their
// part of the states two tasks ahead, and store one while the next ones arrive.
#pragma once

#include "arch/mbarrier.cuh"
#include "arch/tma.cuh"
#include "ops/gdn_prefill/kernel_steps.cuh"

namespace hyla::gdn {

inline constexpr int kStreamWalkers = 8;
inline constexpr int kStreamMakers = 4;
inline constexpr int kStreamThreads = 32 * (kStreamWalkers + kStreamMakers);
inline constexpr int kStreamRows = 16 * kStreamWalkers;  // value rows of a task
// Places.
inline constexpr int kStreamStates = 2;
inline constexpr int kStreamSteps = 6;
inline constexpr int kStreamValues = 4;

struct StreamTask {
  int begin, length;  // tokens; length -1: nothing is to be done
  int read, write;    // slots, kNullSlot for none
  int head, value;    // the first value row

  __device__ __forceinline__ bool starts_from_pool() const {
    return length >= 0 && read != core::kNullSlot;
  }
};

template <class Io>
struct StreamShared {
  alignas(128) float states[kStreamWalkers][kStreamStates][16 * 128];
  StepChunk<Io> chunks[kStreamSteps];
  unsigned char values[kStreamWalkers][kStreamValues][kStep * kStepValuePitch];
  StreamTask tasks[kStreamTasks];
  arch::Mbarrier state_full[kStreamWalkers][kStreamStates];
  arch::Mbarrier step_full[kStreamSteps], step_empty[kStreamSteps];
};

// A place of a ring, and which time it is used.
template <int Places>
struct Place {
  int at = 0;
  std::uint32_t round = 0;

  __device__ __forceinline__ void advance(int by = 1) {
    at += by;
    if (at >= Places) at -= Places, ++round;
  }
  __device__ __forceinline__ void wait_full(arch::Mbarrier* full) const {
    arch::wait(full[at], round & 1);
  }
  __device__ __forceinline__ void wait_empty(arch::Mbarrier* empty) const {
    if (round > 0) arch::wait(empty[at], (round & 1) ^ 1);
  }
};

// `ranked`: rows in the order of their lengths; null: as they come.
__device__ __forceinline__ StreamTask find_stream_task(const StepArguments& a, int index,
                                                       const int* ranked = nullptr) {
  const int pair = a.by_blocks(index), rank = a.by_heads(pair);
  const StepTask<true> found = find_step_task<true>(a, ranked != nullptr ? ranked[rank] : rank);
  StreamTask task;
  task.begin = found.begin;
  task.length = found.read == core::kNullSlot ? -1 : found.length;
  task.read = found.from_pool ? found.read : static_cast<int>(core::kNullSlot);
  task.write = found.write;
  task.head = pair - rank * a.heads;
  task.value = (index - pair * a.blocks) * kStreamRows;
  return task;
}

__device__ __forceinline__ int steps_of_row(const StepArguments& a, int row) {
  const PlainIndices& x = a.indices;
  const std::int32_t* offsets = x.cu_seqlens + static_cast<std::int64_t>(row) * x.cu_stride;
  return (offsets[x.cu_stride] - offsets[0] + kStep - 1) / kStep;
}

// The tasks of a CTA, by all of its threads, with a barrier after it; returns how many. Rows of
// different lengths are ranked, and the CTAs take turns from alternating ends, as in
// fused_tasks.cuh: by number, several long ones would go to the same CTA. `scratch`: two numbers a
// thread.
__device__ __forceinline__ int find_stream_tasks(const StepArguments& a, StreamTask* to,
                                                 int* scratch) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int by_number = (a.tasks - cta + ctas - 1) / ctas;
  const int rows = a.ranks ? a.by_heads(a.by_blocks(a.tasks)) : 0;
  const bool own = rows <= threads && thread < rows;
  const int steps = own ? steps_of_row(a, thread) : 0;
  const bool differs = own && steps != steps_of_row(a, 0);
  if (thread < by_number) to[thread] = find_stream_task(a, cta + thread * ctas);
  if (!a.ranks) return by_number;
  if (own) scratch[thread] = steps;
  if (__syncthreads_or(differs) == 0) return by_number;
  int* const ranked = scratch + threads;
  if (own) {
    int rank = 0;
#pragma unroll 4
    for (int other = 0; other < rows; ++other) {
      rank += scratch[other] > steps || (scratch[other] == steps && other < thread);
    }
    ranked[rank] = thread;
  }
  __syncthreads();
  const int index = thread * ctas + (thread & 1 ? ctas - 1 - cta : cta);
  const int full = a.tasks / ctas;
  if (thread <= full && index < a.tasks) to[thread] = find_stream_task(a, index, ranked);
  return full + ((full & 1 ? ctas - 1 - cta : cta) < a.tasks - full * ctas);
}

template <class Io>
__device__ __forceinline__ void make_steps(const StepArguments& a, StreamShared<Io>& s, int tasks,
                                           int maker, int lane) {
  Place<kStreamSteps> place;
  place.at = maker;
  int next = maker;  // its next step, counted from the task's first one
  ChunkInfo info;
  info.rate = info.bias = 0.0f;
#pragma unroll 1
  for (int n = 0; n < tasks; ++n) {
    const StreamTask& task = s.tasks[n];
    if (task.length <= 0) continue;
    const int steps = (task.length + kStep - 1) / kStep;
#pragma unroll 1
    for (; next < steps; next += kStreamMakers) {
      const int rows = task.length - kStep * next;
      StepWords words;
      ask_step(a, task.begin + kStep * next, task.head, rows, words, lane);
      set_step_head(a.p, task.head, info);
      place.wait_empty(s.step_empty);
      make_step(a, info, words, rows, s.chunks[place.at], lane);
      arch::arrive_warp(s.step_full[place.at], lane);
      place.advance(kStreamMakers);
    }
    next -= steps;
  }
}

// A warp with its value rows of every task.
template <class Io>
class StreamWalk {
 public:
  __device__ __forceinline__ StreamWalk(const StepArguments& of, StreamShared<Io>& shared,
                                        int its_tasks, int its_warp, int its_lane)
      : a(of), s(shared), tasks(its_tasks), warp(its_warp), lane(its_lane) {}

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (int i = 0; i < kStreamStates; ++i) ask_state(i);
#pragma unroll 1
    for (int i = 0; i < kStreamValues; ++i) ask_values();
#pragma unroll 1
    for (int n = 0; n < tasks; ++n) {
      const StreamTask& task = s.tasks[n];
      if (task.length < 0) continue;
      StepState S;
      begin(task, S);
      char* out = a.out.at(task.begin + (lane >> 1), task.head) + column(task);
#pragma unroll 1
      for (int left = task.length; left > 0; left -= kStep) {
        take(left, out, S);
        out += kStep * a.out.token;
      }
      end_state<Io, true>(a, task.begin, task.length, task.write, task.head, value(task), lane, S);
    }
  }

 private:
  __device__ __forceinline__ int value(const StreamTask& task) const {
    return task.value + 16 * warp;
  }
  // Of a lane's 8 value rows in a row of v or out, bytes.
  __device__ __forceinline__ int column(const StreamTask& task) const {
    return 2 * value(task) + 16 * (lane & 1);
  }
  __device__ __forceinline__ std::uint32_t values(const Place<kStreamValues>& of) const {
    return arch::shared_address(s.values[warp][of.at]);
  }
  __device__ __forceinline__ std::uint32_t own_row() const {
    return static_cast<std::uint32_t>((lane >> 1) * kStepValuePitch + 16 * (lane & 1));
  }

  // The next state that has not been asked for, by lane 0, into a place that is free.
  __device__ __forceinline__ void ask_state(int to) {
    while (asked_state < tasks && !s.tasks[asked_state].starts_from_pool()) ++asked_state;
    if (asked_state >= tasks) return;
    const StreamTask& task = s.tasks[asked_state++];
    if (lane != 0) return;
    constexpr std::uint32_t kBytes = sizeof(s.states[0][0]);
    arch::arrive_expecting(s.state_full[warp][to], kBytes);
    arch::load_bulk(s.states[warp][to],
                    static_cast<const char*>(a.initial.data) +
                        4 * (task.read * a.initial.slot_stride + task.head * a.initial.head_stride +
                             value(task) * a.initial.v_stride),
                    kBytes, s.state_full[warp][to]);
  }

  // v of the next step that has not been asked for; an empty group if there is none.
  __device__ __forceinline__ void ask_values() {
    while (asked_task < tasks && asked >= s.tasks[asked_task].length) ++asked_task, asked = 0;
    if (asked_task < tasks) {
      const StreamTask& task = s.tasks[asked_task];
      const int token = asked + (lane >> 1);
      const bool there = token < task.length;
      const char* from = a.v.at(task.begin + (there ? token : 0), a.by_v(task.head)) + column(task);
      arch::copy_16(values(next_values) + own_row(), from, there ? 16 : 0);
      asked += kStep;
    }
    arch::commit_copies();
    next_values.advance();
  }

  // Of what each load brought.
  static __device__ __forceinline__ int any_bits(const StepState& S) {
    int bits = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) bits |= __float_as_int(S[i >> 1][2 * (i & 1)]);
    return bits;
  }

  __device__ __forceinline__ void begin(const StreamTask& task, StepState& S) {
    const bool from_pool = task.read != core::kNullSlot;
    if (from_pool) state.wait_full(s.state_full[warp]);
    // Places are pools of the warp's value rows.
    PoolView places;
    places.data = s.states[warp], places.slot_stride = 16 * 128;
    places.k_stride = 1, places.v_stride = 128;
    begin_state<true>(places, from_pool, true, state.at, 0, 0, lane, S);
    if (!from_pool) return;
    __syncwarp();
    // The copy engine does not queue behind loads that have been issued: they must have come.
    ask_state(state.at + (any_bits(S) & task.length >> 31));
    state.advance();
  }

  __device__ __forceinline__ void take(int left, char* out, StepState& S) {
    arch::wait_copies<kStreamValues - 1>();
    __syncwarp();
    const std::uint32_t at = values(own_values);
    place.wait_full(s.step_full);
    take_step(s.chunks[place.at], at + static_cast<std::uint32_t>(step_block(lane)), S, lane);
    arch::arrive_warp(s.step_empty[place.at], lane);
    if (lane >> 1 < left) *reinterpret_cast<uint4*>(out) = shared_words(at + own_row());
    __syncwarp();
    ask_values();
    place.advance();
    own_values.advance();
  }

  const StepArguments& a;
  StreamShared<Io>& s;
  const int tasks, warp, lane;
  Place<kStreamStates> state;
  Place<kStreamSteps> place;
  Place<kStreamValues> own_values, next_values;
  int asked_state = 0;
  int asked_task = 0, asked = 0;  // tokens
};

// grid: any number of CTAs that leaves at most kStreamTasks tasks for each
template <class Io>
__global__ void __launch_bounds__(kStreamThreads, 1)
    prefill_steps_stream(const __grid_constant__ StepArguments a) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& s = *reinterpret_cast<StreamShared<Io>*>(memory);
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  const int warp = static_cast<int>(arch::uniform(threadIdx.x >> 5));
  if (thread == kStreamThreads - 1) {
    for (auto& full : s.state_full) {
      for (arch::Mbarrier& barrier : full) arch::init(barrier, 1);
    }
    for (int i = 0; i < kStreamSteps; ++i) {
      arch::init(s.step_full[i], 1);
      arch::init(s.step_empty[i], kStreamWalkers);
    }
    arch::fence_mbarrier_init();
  }
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  // No step has been asked for: values are not there yet.
  const int tasks = find_stream_tasks(a, s.tasks, reinterpret_cast<int*>(s.values));
  __syncthreads();
  if (warp < kStreamWalkers) {
    StreamWalk<Io>(a, s, tasks, warp, lane).run();
  } else {
    make_steps(a, s, tasks, warp - kStreamWalkers, lane);
  }
}

}  // namespace hyla::gdn
