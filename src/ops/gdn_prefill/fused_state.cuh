// The state role of the fused kernel: one warpgroup walks over the tasks of its CTA with 64 value
// rows of the state.
#pragma once

#include "ops/gdn_prefill/checkpoints.cuh"
#include "ops/gdn_prefill/chunk_loads.cuh"
#include "ops/gdn_prefill/fused_chain.cuh"
#include "ops/gdn_prefill/fused_shared.cuh"
#include "ops/gdn_prefill/state_pool.cuh"

namespace hyla::gdn {

// How the parts of a chunk come from the auxiliary warpgroups: each with its own barriers, so that
// its place is free as early as it can be.
template <class Io, class Shared = FusedShared<Io>>
struct FusedPipe {
  Shared& s;
  const FusedArguments& a;
  const int half;

  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) & 31; }
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
      if (!Shared::kOutputs && next.v_head < 0) {  // there are none
        if (half == 0 && lane() == 0) arch::arrive(s.values_full[stage]);
        return;
      }
      ask(s.values[stage][half], a.maps.v, next.v_head, next.token, s.values_full[stage],
          2 * kTileBytes);
    } else if (Shared::kOutputs || warp == 1) {
      const ChunkInfo& next = info(n + 2);
      if (next.rows == 0) return;
      const KeyStage k = stage3(n + 2);
      arch::wait(s.keys_empty[k.stage], k.empty_parity() ^ 1);
      arch::Mbarrier& full = s.keys_full[k.full()];
      if (warp == 1) {
        ask(s.keys[k.stage][2 * half], a.maps.k, next.k_head, next.token, full,
            (Shared::kOutputs ? 4 : 2) * kTileBytes);
      } else {
        ask(s.keys[k.stage][2 * half + 1], a.maps.q, next.q_head, next.token, full, 0);
      }
    }
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
    arch::wait(s.keys_full[stage3(n).full()], stage3(n).full_parity());
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

  __device__ __forceinline__ bool mild(int n) const {
    wait_factors(n);
    return factors(n).decay[1] != 0.0f;
  }

  __device__ __forceinline__ void release_keys(int n) const {
    arch::arrive_warp(s.keys_empty[stage3(n).stage], lane());
  }
  __device__ __forceinline__ void release_values(int n) const {
    arch::arrive_warp(s.values_empty[n & 1], lane());
  }
  __device__ __forceinline__ void release_inverse(int n) const {
    arch::arrive_warp(s.inverse_empty[n & 1], lane());
  }
  __device__ __forceinline__ void release_scores(int n) const {
    arch::arrive_warp(s.scores_empty[n & 1], lane());
  }
};

// Longs: see find_task.
template <class Io, bool Longs>
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
    if constexpr (!Longs) step_aside();
    if (chain.thread() == 0) find_task<Longs>(a, s.ranked, 0, task());
    chain.sync();
    bool loaded = false;                 // is the initial state there?
    for (int n = 0; task().row >= 0;) {  // chunk, counted over all tasks
      if (!loaded) load_initial(a.p, task().row, place(task()), chain.S);
      if (chain.thread() == 0) look_ahead();
      n = walk(n);
      chain.sync();  // all know the next task
      loaded = change_states(n);
      chain.sync();  // nobody needs this one any more
      turn ^= 1;
    }
    chain.finish();
  }

 private:
  __device__ __forceinline__ StateTask& task() const { return s.tasks[half][arch::opaque(turn)]; }
  __device__ __forceinline__ StateTask& next() const {
    return s.tasks[half][arch::opaque(turn) ^ 1];
  }

  __device__ __forceinline__ FragmentPlace place(const Task& of) const {
    return {of.head, chain.value_row(), chain.column()};
  }

  // A CTA that has a task less than others begins half a task later: not all of them read and write
  // states at the same time then.
  __device__ __forceinline__ void step_aside() const {
    const int rows = static_cast<int>(a.p.sequences.rows), ctas = static_cast<int>(gridDim.x);
    const int cta = static_cast<int>(blockIdx.x), last = (a.tasks - 1) / ctas;  // round
    const bool has_last = last * ctas + (last & 1 ? ctas - 1 - cta : cta) < a.tasks;
    if (has_last || last < 3 || rows > kKeptRows || s.ranked.length[rows - 1] <= 0) return;
    constexpr int kHalfChunk = 2150, kHalfTask = 4500;  // clocks, of the shortest sequence
    const int chunks = (s.ranked.length[rows - 1] + kChunk - 1) / kChunk;
    // Unsigned: after a switch between processes it may count less than before.
    const auto clock = [] { return static_cast<unsigned long long>(clock64()); };
    const unsigned long long begin = clock();
    while (clock() - begin < static_cast<unsigned>(chunks * kHalfChunk + kHalfTask)) {
      __nanosleep(200);
    }
  }

  // The next task, and its initial state to L2: the change of tasks waits for no memory then.
  __device__ __forceinline__ void look_ahead() {
    find_task<Longs>(a, s.ranked, task().next, next());
    if (a.dense_states && next().row >= 0 && next().from >= 0) {
      prefetch_initial(a.p, next().from, next().head, half);
    }
  }

  // Mild chunks have an order of products of their own. With Longs there are no registers for it.
  static constexpr bool kOrdersMild = kMayBeMild<Io> && !Longs;

  // All chunks of the task, the first of which is the n-th of all. The number of the next task's.
  __device__ __forceinline__ int walk(int n) {
    const int chunks = task().chunks();
    const int rows = task().length - (chunks - 1) * kChunk;  // of the last chunk
    const OutTarget target{a.maps.out, a.p.out, task().head, task().begin};
    int c = 0, kept = 0;  // chunks, checkpoints
    bool first = true;    // no outputs of a chunk before have still to leave
    for (;;) {
      const int stop = checkpoint_tokens(a.p, task().row, kept, task().length);
      if (stop == (c == chunks ? task().length : c * kChunk)) {
        if constexpr (kMaySpoil<Io>) spoil_rows(chain.S);
        store_checkpoint(a.p, task().row, kept++, place(task()), chain.S);
        continue;
      }
      if (c == chunks) break;
      int end = stop >= task().length ? chunks : stop / kChunk;
      const bool inside = !Longs && end == c;  // only of a list, see ChunkCursor
      volatile float before[64];  // the state, while a part of the next chunk is walked over
      if (inside) {
        ++end;
#pragma unroll
        for (int i = 0; i < 64; ++i) before[i] = chain.S[i];
      }
      // Whoever makes T' has cleared the rows past the end before.
      const int cleared = inside ? c : rows < kChunk ? chunks - 1 : -1;
      // Is the chunk whole, and of this walk?
      const auto whole = [&](int chunk) { return chunk < end && chunk != cleared; };
      bool usual = kOrdersMild && whole(c) && pipe.mild(n);
      while (c < end) {
        if (usual) {
          chain.pack_state();
          // An inner loop, so that its code is in one piece: jumps over other code cost fetches.
#pragma unroll 1
          do {
            usual = chain.chunk_mild(n, c, first, target, whole(c + 1));
            first = false;
            ++c, ++n;
          } while (usual);
        } else {
          const bool more = kOrdersMild && whole(c + 1);
          if constexpr (kMayBeMild<Io> && !kOrdersMild) {
            if (c == cleared) pipe.wait_inverse(n);
            usual = chain.template chunk<false>(n, c, first, target, more);
          } else if (c == cleared) {
            pipe.wait_inverse(n);
            usual = chain.template chunk<false>(n, c, first, target, more);
          } else {
            usual = chain.template chunk<true>(n, c, first, target, more);
          }
          first = false;
          ++c, ++n;
        }
      }
      if (inside) {
        if constexpr (kMaySpoil<Io>) spoil_rows(chain.S);
        store_checkpoint(a.p, task().row, kept++, place(task()), chain.S);
#pragma unroll
        for (int i = 0; i < 64; ++i) chain.S[i] = before[i];
        --c;
        first = true;  // the part's outputs are nobody's
      }
    }
    if (chunks > 0) chain.store_last_out(n - 1, chunks - 1, rows, target);
    return n;
  }

  // The final state leaves and, where that is simple, the next task's comes into its registers
  // meanwhile. Has it?
  __device__ __forceinline__ bool change_states(int n) {
    if constexpr (kMaySpoil<Io>) {
      const SpoiltRows spoilt = spoil_rows(chain.S);
      if (chain.any(spoilt.any() && task().length > 0)) [[unlikely]] {
        chain.mark(spoilt, task().length, {a.maps.out, a.p.out, task().head, task().begin});
        if (task().to >= 0) {
          store_state<true>(a.p, a.p.final, task().to, place(task()), chain.S, spoilt);
        }
        return false;
      }
    }
    if (!a.final_tiles) {
      if (task().to >= 0) store_state(a.p, a.p.final, task().to, place(task()), chain.S);
      return false;
    }
    const bool simple =
        next().row >= 0 && (next().from < 0 || (a.dense_states && a.p.initial.k_stride == 1 &&
                                                a.p.initial.dtype == DType::kFloat32));
    if (!simple) {
      if (task().to >= 0) chain.store_final_tiles(n, a.maps.final, task().head, task().to);
      return false;
    }
    const DenseInitial initial(a.p.initial, next().from, place(next()));
    if (task().to >= 0) {
      chain.store_final_tiles(n, a.maps.final, task().head, task().to,
                              [&](int part) { initial.load(part, chain.S); });
    } else {
#pragma unroll
      for (int part = 0; part < 4; ++part) initial.load(part, chain.S);
    }
    return true;
  }

  FusedShared<Io>& s;
  const FusedArguments& a;
  const int half;  // which 64 value rows
  int turn = 0;    // which of the two tasks is the current one
  const FusedPipe<Io> pipe;
  FusedChain<Io, FusedPipe<Io>> chain;
};

}  // namespace hyla::gdn
