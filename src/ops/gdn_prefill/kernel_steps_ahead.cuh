// Steps of 16 tokens (kernel_steps.cuh) where there are few tasks: a CTA has a multiprocessor for
// itself. Four warps make what the tokens of a step need of each other and run ahead, others own 16
// value rows each and walk. Both begin at once, each with its own part of the code.
#pragma once

#include "arch/barrier_arrival.cuh"
#include "arch/mbarrier.cuh"
#include "arch/named_barrier.cuh"
#include "ops/gdn_prefill/kernel_steps.cuh"

namespace hyla::gdn {

inline constexpr int kAheadMakers = 4;
inline constexpr int kAheadSteps = 8;  // places

template <class Io, int Walkers>
struct AheadShared {
  StepChunk<Io> chunks[kAheadSteps];
  unsigned char values[Walkers][kAheadSteps][kStep * kStepValuePitch];
  arch::Mbarrier full[kAheadSteps], empty[kAheadSteps];
};

template <class Io, int Walkers>
class AheadWalk {
 public:
  __device__ __forceinline__ AheadWalk(AheadShared<Io, Walkers>& shared, const StepArguments& of,
                                       int begin, int its_length, int its_head, int its_value,
                                       int warp, int its_lane)
      : s(shared),
        a(of),
        length(its_length),
        lane(its_lane),
        values(arch::shared_address(shared.values[warp][0])),
        v(of.v.at(begin + (its_lane >> 1), of.by_v(its_head)) + column(its_value)),
        out(of.out.at(begin + (its_lane >> 1), its_head) + column(its_value)) {}

  // v of a step; an empty group past the end.
  __device__ __forceinline__ void ask(int step) {
    const int token = kStep * step + (lane >> 1);
    if (kStep * step < length) {
      const bool there = token < length;
      arch::copy_16(place(step) + own_row(), there ? v + kStep * step * a.v.token : v,
                    there ? 16 : 0);
    }
    arch::commit_copies();
  }

  __device__ __forceinline__ void take(int step, StepState& S) {
    arch::wait_copies<kAheadSteps - 1>();
    __syncwarp();
    const int at = step % kAheadSteps;
    arch::wait(s.full[at], step / kAheadSteps & 1);
    take_step(s.chunks[at], place(step) + static_cast<std::uint32_t>(step_block(lane)), S, lane);
    arch::arrive_warp(s.empty[at], lane);
    if (kStep * step + (lane >> 1) < length) {
      *reinterpret_cast<uint4*>(out + kStep * step * a.out.token) =
          shared_words(place(step) + own_row());
    }
    __syncwarp();
    ask(step + kAheadSteps);
  }

 private:
  __device__ __forceinline__ int column(int value) const { return 2 * value + 16 * (lane & 1); }
  __device__ __forceinline__ std::uint32_t own_row() const {
    return static_cast<std::uint32_t>((lane >> 1) * kStepValuePitch + 16 * (lane & 1));
  }
  __device__ __forceinline__ std::uint32_t place(int step) const {
    return values + static_cast<std::uint32_t>(step % kAheadSteps * kStep * kStepValuePitch);
  }

  AheadShared<Io, Walkers>& s;
  const StepArguments& a;
  const int length;
  const int lane;
  const std::uint32_t values;
  const char* const v;
  char* const out;
};

// grid: blocks of 16 Walkers value rows of heads of sequences
template <class Io, bool Usual, int Walkers>
__global__ void __launch_bounds__((Walkers + kAheadMakers) * 32, 1)
    prefill_steps_ahead(const __grid_constant__ StepArguments a) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& s = *reinterpret_cast<AheadShared<Io, Walkers>*>(memory);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(arch::uniform(threadIdx.x >> 5));
  const int cta = static_cast<int>(blockIdx.x), pair = a.by_blocks(cta);
  const int row = a.by_heads(pair), head = pair - row * a.heads;
  const int first_value = (cta - pair * a.blocks) * 16 * Walkers;
  if (threadIdx.x < kAheadSteps) {
    arch::init(s.full[threadIdx.x], 1);
    arch::init(s.empty[threadIdx.x],
               static_cast<std::uint32_t>(min(Walkers, (a.values - first_value) / 16)));
    arch::fence_mbarrier_init();
  }
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  const StepTask<Usual> task = find_step_task<Usual>(a, row);
  if (task.read == core::kNullSlot) return;
  // Warp 0 tells every other one that the barriers are there, which these wait for behind their
  // requests to memory: a barrier of the block in front of them costs half a microsecond.
  if (warp == 0) {
    __syncwarp();
#pragma unroll
    for (int other = 1; other < Walkers + kAheadMakers; ++other) arch::arrive_threads(other, 64);
  }
  const auto wait_for_barriers = [&] {
    if (warp > 0) arch::sync_threads(warp, 64);
  };

  if (warp >= Walkers) {
    const int maker = warp - Walkers;
    StepWords words, next;
    const auto ask = [&](int step, StepWords& to) {
      const int rows = task.length - kStep * step;
      if (rows > 0) ask_step(a, task.begin + kStep * step, head, rows, to, lane);
    };
    ask(maker, words);
    ask(maker + kAheadMakers, next);
    ChunkInfo info;
    set_step_head(a.p, head, info);
    wait_for_barriers();
#pragma unroll 1
    for (int step = maker; kStep * step < task.length; step += kAheadMakers) {
      const int at = step % kAheadSteps;
      if (step >= kAheadSteps) arch::wait(s.empty[at], (step / kAheadSteps & 1) ^ 1);
      make_step(a, info, words, task.length - kStep * step, s.chunks[at], lane);
      arch::arrive_warp(s.full[at], lane);
      words = next;
      ask(step + 2 * kAheadMakers, next);
    }
    return;
  }
  const int value = first_value + 16 * warp;
  const bool owns = value < a.values;
  StepState S;
  begin_state<Usual>(a.initial, task.from_pool && owns, a.wide_initial, task.read, head, value,
                     lane, S);
  AheadWalk<Io, Walkers> walk(s, a, task.begin, task.length, head, value, warp, lane);
  if (owns) {
#pragma unroll 1
    for (int step = 0; step < kAheadSteps; ++step) walk.ask(step);
  }
  wait_for_barriers();
  if (!owns) return;
#pragma unroll 1
  for (int step = 0; kStep * step < task.length; ++step) walk.take(step, S);
  end_state<Io, Usual>(a, task.begin, task.length, task.write, head, value, lane, S);
}

}  // namespace hyla::gdn
