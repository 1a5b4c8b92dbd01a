// The state role of the fused kernel: one warpgroup walks over the tasks of its CTA with 64 value
// rows of the state.
#pragma once

#include "ops/gdn_prefill/checkpoints.cuh"
#include "ops/gdn_prefill/chunk_loads.cuh"
#include "ops/gdn_prefill/fused_shared.cuh"
#include "ops/gdn_prefill/state_chain.cuh"
#include "ops/gdn_prefill/state_pool.cuh"

namespace hyla::gdn {

// How the parts of a chunk come from the auxiliary warpgroups: each with its own barriers, so that
// its place is free as early as it can be.
template <class Io>
struct FusedPipe {
  static constexpr bool kRoomy = false;
  FusedShared<Io>& s;
  const FusedArguments& a;
  const int half;

  static __device__ __forceinline__ int lane() {
    int lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }
  static __device__ __forceinline__ KeyStage stage3(int n) {
    return key_stage(static_cast<std::uint32_t>(n));
  }
  static __device__ __forceinline__ int turn(int n) { return n >> 1 & 1; }

  const __device__ __forceinline__ ChunkInfo& info(int n) const {
    return s.chunks[n & 1][n >> 1 & 3];
  }

  // While products run, each warpgroup its half of the columns: warp 1 the keys and warp 2 the
  // queries of chunk n + 2, whose place chunk n - 1 has left, warp 3 the values of chunk n + 1.
  // Warp 0 is busy with O.
  __device__ __forceinline__ void ask_ahead(int n) const {
    const auto warp = static_cast<int>(arch::uniform(threadIdx.x >> 5 & 3));
    if (warp == 0 || n == 0) return;
    if (warp == 3) {
      const ChunkInfo& next = info(n + 1);
      if (next.rows == 0) return;
      const int stage = (n + 1) & 1;
      arch::wait(s.values_empty[stage], turn(n + 1) ^ 1);
      ask(s.values[stage][half], a.maps.v, next.v_head, next.token, s.values_full[stage],
          2 * kTileBytes);
    } else {
      const ChunkInfo& next = info(n + 2);
      if (next.rows == 0) return;
      const KeyStage k = stage3(n + 2);
      arch::wait(s.keys_empty[k.stage], k.parity ^ 1);
      if (warp == 1) {
        ask(s.keys[k.stage][2 * half], a.maps.k, next.k_head, next.token, s.keys_full[k.stage],
            4 * kTileBytes);
      } else {
        ask(s.keys[k.stage][2 * half + 1], a.maps.q, next.q_head, next.token, s.keys_full[k.stage],
            0);
      }
    }
  }

  // After chunk n - 1, this half's tiles of its keys and queries are free until ask_ahead(n): bytes
  // from those of O. 0: there was no chunk.
  __device__ __forceinline__ int free_tiles(int n) const {
    if (n == 0) return 0;
    const KeyStage k = stage3(n - 1);
    arch::wait(s.keys_empty[k.stage], k.parity);
    return static_cast<int>(offsetof(FusedShared<Io>, keys)) -
           static_cast<int>(offsetof(FusedShared<Io>, out)) +
           static_cast<int>(k.stage * 4 + 2 * half) * kTileBytes - half * 2 * kTileBytes;
  }

  // One tile; whoever of the first warpgroup expects bytes arrives for all.
  __device__ __forceinline__ void ask(Io* to, const CUtensorMap& map, int head, int token,
                                      arch::Mbarrier& full, std::uint32_t bytes) const {
    head = static_cast<int>(arch::uniform(static_cast<std::uint32_t>(head)));
    token = static_cast<int>(arch::uniform(static_cast<std::uint32_t>(token)));
    if (lane() != 0) return;
    if (half == 0 && bytes > 0) arch::arrive_expecting(full, bytes);
    arch::load_tile(to, map, {half * 64, head, token}, full);
  }

  __device__ __forceinline__ std::uint32_t keys(int n) const {
    return arch::shared_address(s.keys[stage3(n).stage]);
  }
  __device__ __forceinline__ std::uint32_t values(int n) const {
    return arch::shared_address(s.values[n & 1][half]);
  }
  __device__ __forceinline__ std::uint32_t inverse(int n) const {
    return arch::shared_address(s.prepared[n & 1][0]);
  }
  __device__ __forceinline__ std::uint32_t scores(int n) const {
    return arch::shared_address(s.prepared[n & 1][1]);
  }
  __device__ __forceinline__ auto& factors(int n) const { return s.factors[n % kFactorStages]; }

  __device__ __forceinline__ void wait_keys(int n) const {
    arch::wait(s.keys_full[stage3(n).stage], stage3(n).parity);
  }
  __device__ __forceinline__ void wait_values(int n) const {
    arch::wait(s.values_full[n & 1], turn(n));
  }
  __device__ __forceinline__ void wait_factors(int n) const {
    arch::wait(s.factors_full[n % kFactorStages], n / kFactorStages & 1);
  }
  __device__ __forceinline__ void wait_inverse(int n) const {
    arch::wait(s.inverse_full[n & 1], turn(n));
  }
  __device__ __forceinline__ void wait_scores(int n) const {
    arch::wait(s.scores_full[n & 1], turn(n));
  }

  __device__ __forceinline__ void release_keys(int n) const {
    arch::arrive_warp(s.keys_empty[stage3(n).stage], lane());
  }
  __device__ __forceinline__ void release_values(int n) const {
    arch::arrive_warp(s.values_empty[n & 1], lane());
  }
  __device__ __forceinline__ void release_factors(int) const {}  // with the scores
  __device__ __forceinline__ void release_inverse(int n) const {
    arch::arrive_warp(s.inverse_empty[n & 1], lane());
  }
  __device__ __forceinline__ void release_scores(int n) const {
    arch::arrive_warp(s.scores_empty[n & 1], lane());
  }
};

template <class Io>
class FusedState {
 public:
  __device__ __forceinline__ FusedState(FusedShared<Io>& shared, const FusedArguments& arguments,
                                        int value_half)
      : s(shared),
        a(arguments),
        half(value_half),
        pipe{shared, arguments, value_half},
        chain(pipe, shared.out[value_half], value_half, 3 + value_half) {}

  __device__ __forceinline__ void run() {
    int n = 0;  // chunk, counted over all tasks
    for (int round = 0; enter_task(round, n); round = task().next) {
      load_initial(a.p, task().row, place(), chain.S);
      if (a.dense_states && chain.thread() == 96) prefetch_next();
      for (;;) {
        const int stop = checkpoint_tokens(a.p, task().row, task().kept, task().length);
        if (stop == min(chunk(n) * kChunk, task().length)) {
          store_checkpoint(a.p, task().row, task().kept, place(), chain.S);
          change_task([](Task& t) { ++t.kept; });
          continue;
        }
        if (chunk(n) == task().chunks()) break;
        volatile float before[64];  // the state, while a part of the next chunk is walked over
        change_task([&](Task& t) { t.set_end(n, stop); });
        if (task().part >= 0) {
#pragma unroll
          for (int i = 0; i < 64; ++i) before[i] = chain.S[i];
        }
        // An inner loop, so that its code is in one piece: jumps over other code cost fetches.
#pragma unroll 1
        for (; n < task().end; ++n) {
          // Whoever makes T' has cleared the rows past the end before.
          if (chunk(n) == task().cleared) pipe.wait_inverse(n);
          chain.template chunk<Walk::kOutputs>(n, chunk(n), chunk(n) == task().first, target());
        }
        if (task().part >= 0) {
          store_checkpoint(a.p, task().row, task().kept, place(), chain.S);
#pragma unroll
          for (int i = 0; i < 64; ++i) chain.S[i] = before[i];
          change_task([](Task& t) { t.leave_part(); });
        }
      }
      if (const int last = chunk(n) - 1; last >= 0) {
        chain.store_last_out(n - 1, last, task().length - last * kChunk, target());
      }
      if (a.final_tiles) {
        const std::int64_t slot = a.p.slots.write_slot(task().row);
        if (slot != core::kNullSlot) {
          chain.store_final_tiles(n, a.maps.final, task().head, static_cast<int>(slot),
                                  pipe.free_tiles(n));
        }
      } else {
        store_final(a.p, task().row, place(), chain.S);
      }
    }
    chain.finish();
  }

 private:
  __device__ __forceinline__ Task& task() const { return s.tasks[half]; }

  __device__ __forceinline__ OutTarget target() const {
    return {a.maps.out, a.p.out, task().head, task().begin};
  }

  // Of its task: in memory, registers are few.
  __device__ __forceinline__ int chunk(int n) const { return n - task().start; }

  __device__ __forceinline__ FragmentPlace place() const {
    return {task().head, chain.value_row(), chain.column()};
  }

  __device__ __forceinline__ bool enter_task(int round, int n) {
    chain.sync();
    if (chain.thread() == 0) {
      if (!find_task(a, s.ranked, round, task())) task().row = -1;
      task().enter(n);
    }
    chain.sync();
    return task().row >= 0;
  }

  template <class F>
  __device__ __forceinline__ void change_task(F&& f) {
    chain.sync();
    if (chain.thread() == 0) f(task());
    chain.sync();
  }

  // The state of the next task comes to L2 while this one is walked over.
  __device__ __forceinline__ void prefetch_next() const {
    Task next;
    if (find_task(a, s.ranked, task().next, next)) prefetch_initial(a.p, next.row, next.head, half);
  }

  FusedShared<Io>& s;
  const FusedArguments& a;
  const int half;  // which 64 value rows
  const FusedPipe<Io> pipe;
  StateChain<Io, FusedPipe<Io>> chain;
};

}  // namespace hyla::gdn
