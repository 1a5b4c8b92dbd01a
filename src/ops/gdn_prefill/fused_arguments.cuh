// What the kernels over tiles receive.
#pragma once

#include <cuda.h>

#include "device/divider.h"
#include "ops/gdn_prefill/long_plan.h"
#include "problem/gdn_prefill.h"

namespace hyla::gdn {

struct LongRows;
struct SegmentRows;

// Tiles of 64 tokens by 64 columns of one head.
struct FusedMaps {
  CUtensorMap q, k, v, out;
  CUtensorMap final;  // 32 keys by 64 value rows of a state; only with final_tiles
};

// Records that are handed over one by one while others are made (handover.cuh).
struct Handover {
  std::uint32_t* ready =
      nullptr;              // [chunk slots, heads], not zero: the record is there. Null: none
  int rounds = 0;           // that all CTAs prepare before some leave
  int lasting = 0;          // CTAs that prepare to the end
  device::Divider by_rows;  // number of a chunk of all sequences to that of its own
  int pace = 0;             // clocks at least between chunks that a CTA begins
};

struct FusedArguments {
  FusedMaps maps;
  PrefillProblem p;
  int tasks = 0;             // sequences times heads
  bool final_tiles = false;  // final states can leave by the copy engine
  // Of p, in the form that costs a kernel least.
  float scale = 0, eps = 0;
  device::Divider by_heads;          // task to its sequence's rank
  device::Divider by_q, by_k, by_v;  // head to that of q, k, v
  // Long sequences among short ones (long_rows.cuh): how many there may be. 0: not looked for.
  int long_rows = 0;
  LongPlan long_plan;
  LongRows* longs = nullptr;  // those that were found
  bool dense_states = false;  // an initial state is one piece of memory
  // Not for the fused kernel.
  void* records = nullptr;  // [chunk slots, heads] Record
  // [rows] of a row's first chunk; null: sequences are back to back, see record.cuh
  const int* row_slots = nullptr;
  float* states = nullptr;  // see segments.cuh
  int parts = 1, cuts = 1;  // of a sequence; pieces of a part
  bool transfers = false;
  bool ordered = false;            // walks start with the longest, see walk_order.cuh
  std::uint32_t* order = nullptr;  // of parts with states in place, see start_order.cuh
  SegmentRows* rows = nullptr;     // outputs of segments are made by a kernel that takes these
  Handover handover;
};

inline void set_constants(FusedArguments& a) {
  const PrefillProblem& p = a.p;
  a.tasks = static_cast<int>(p.sequences.rows * p.heads);
  a.scale = static_cast<float>(p.scale);
  a.eps = static_cast<float>(p.l2norm_eps);
  const auto divider = [](std::int64_t n) {
    return device::Divider(static_cast<std::uint32_t>(n));
  };
  a.by_heads = divider(p.heads);
  a.by_q = divider(p.heads / p.q_heads);
  a.by_k = divider(p.heads / p.k_heads);
  a.by_v = divider(p.heads / p.v_heads);
}

}  // namespace hyla::gdn
