// What a walk over prepared chunks does where a list says after which tokens states are kept
// (checkpoints.cuh). For a token inside a chunk the first tokens of the chunk are a step of their
// own, for the state only. No record is there for it: which tokens are listed only the device
// knows, so the workspace has none, and the warpgroup that walks makes T' itself.
#pragma once

#include "arch/named_barrier.cuh"
#include "ops/gdn_prefill/checkpoints.cuh"
#include "ops/gdn_prefill/lower_part.cuh"
#include "ops/gdn_prefill/serial_feed.cuh"

namespace hyla::gdn {

// The steps of one row: whoever loads, walks and makes outputs goes through the same ones. Int:
// volatile where there are no registers to spare.
template <class Int>
struct Steps {
  const PrefillProblem& p;
  const int row, length;
  Int chunk = -1;
  Int part = 0;  // tokens, when it is the first part of a chunk; else 0
  Int kept = 0;  // the next checkpoint
  Int stop;      // after how many tokens

  __device__ __forceinline__ Steps(const PrefillProblem& problem, int of_row, int tokens)
      : p(problem), row(of_row), length(tokens) {
    stop = checkpoint_tokens(p, row, kept, length);
  }

  // To the next step. False: there is none. Calls keep(index) for a checkpoint before it.
  template <class Keep>
  __device__ __forceinline__ bool next(Keep&& keep) {
    if (part == 0) chunk = chunk + 1;
    part = 0;
    const int begin = min(chunk * kChunk, length);
#pragma unroll 1
    while (stop <= begin) {
      keep(kept);
      advance();
    }
    if (begin == length) return false;
    if (stop < min(begin + kChunk, length)) {
      part = stop - begin;
      advance();
    }
    return true;
  }
  __device__ __forceinline__ bool next() {
    return next([](int) {});
  }

 private:
  __device__ __forceinline__ void advance() {
    kept = kept + 1;
    stop = checkpoint_tokens(p, row, kept, length);
  }
};
using ListedSteps = Steps<int>;

// By one thread: load(number of a step, chunk, heads of it, record), without a record for a part of
// a chunk.
template <class Io, class Load>
__device__ __forceinline__ void feed_listed(const FusedArguments& a, const SerialTask& task,
                                            Load&& load) {
  const auto* records = static_cast<const Record<Io>*>(a.records);
  ChunkInfo info;
  set_head(a, task.head, info);
  ListedSteps steps(a.p, task.row, task.length);
#pragma unroll 1
  for (int n = 0; steps.next(); ++n) {
    const std::int64_t slot = task.slot + steps.chunk;
    load(n, steps.chunk, info, steps.part == 0 ? records + slot * a.p.heads + task.head : nullptr);
  }
}

struct PartScratch {
  alignas(16) std::uint32_t gates[2][64];
  MaskFactors masks;
  InverseScratch inverse;
  ChunkInfo info;
  int out_of_reach;  // are there keys of very different lengths?
};

// Where K lies: so many tiles of 64 columns, `Apart` tiles from each other.
template <int Tiles, int Apart, class Io>
__device__ __forceinline__ void multiply_keys(float (&product)[32], const Io* keys) {
  const arch::WgmmaDescriptor k = arch::descriptor(arch::uniform(arch::shared_address(keys)));
  arch::pin(product);
  arch::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4 * Tiles; ++i) {
    const std::uint32_t step = (i & 3) * 2 + (i >> 2) * (Apart * kTileBytes >> 4);
    arch::Wgmma<Io, 64>::ss(product, k + step, k + step, i > 0);
  }
  arch::wgmma_commit();
  arch::wgmma_wait<0>();
  arch::pin(product);
}

// T' and the factors of `rows` tokens from `token` on, as kernel_prepare.cuh makes those of a
// sequence that ends there. By the 128 threads of `barrier`; K is there, and zero past the rows.
template <int Tiles, int Apart, class Io>
__device__ __forceinline__ void make_part(const FusedArguments& a, int head, int token, int rows,
                                          const Io* keys, PartScratch& s, Factors& factors,
                                          Io* inverse, int barrier, int thread) {
  const auto sync = [barrier] { arch::sync_threads(barrier, 128); };
  if (thread < 32) {
    if (thread == 0) {
      set_head(a, head, s.info);
      set_tokens(a.p, token, rows, s.info);
      s.out_of_reach = 0;
    }
    __syncwarp();
    load_gates(a.p, s.info, s.gates, thread);
    scan_gates(a.p, s.info, s.gates, thread);
    load_betas(a.p, s.info, s.gates, thread);
    make_betas(a.p, s.info, s.gates, thread);
  }
  float product[32];
  multiply_keys<Tiles, Apart>(product, keys);
  sync();
  const bool mild = is_mild<Io>(s.gates);
  const float held = make_key_factors(mild, s.gates, s.masks, factors, thread);
  sync();
  const auto lower = make_lower_part(a, s.gates, s.masks, factors, s.inverse, thread, sync);
  const bool normalise = Tiles > 2 && a.p.l2norm;  // as there
  if (normalise) {
    lower.store_normalised(product, held, mild);
  } else {
    lower.store(product, held, mild, a.p.l2norm, [&] { s.out_of_reach = 1; });
  }
  __syncwarp();
  invert_diagonal(s.inverse, thread >> 5, thread & 31);
  sync();
  const bool redo = s.out_of_reach != 0;
  clear_upper(inverse, thread);
  if (redo) {
    multiply_keys<Tiles, Apart>(product, keys);
    lower.store_normalised(product, make_key_factors(mild, s.gates, s.masks, factors, thread),
                           mild);
    __syncwarp();
    invert_diagonal(s.inverse, thread >> 5, thread & 31);
    sync();
  }
  if (redo || normalise) {
    store_inverse<true>(s.inverse, s.masks, inverse, thread);
  } else {
    store_inverse<false>(s.inverse, s.masks, inverse, thread);
  }
  sync();
}

}  // namespace hyla::gdn
