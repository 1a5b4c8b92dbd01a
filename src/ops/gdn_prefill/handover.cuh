// Chunks prepared beside the kernel that walks over them. That one's CTAs start on multiprocessors
// that `prepare` leaves free, at once or after some rounds, and each waits for the record it needs
// next by a flag in the workspace:
//
//     all CTAs of prepare    | flags lowered | rounds of chunks | leave
//     those that last        | flags lowered | rounds of chunks | the rest of the chunks          |
//     serial                                                    | chunk 0 | 1 | 2 | ...
//
// A CTA of the next grid starts when all CTAs of this one have lowered their flags, those that they
// will raise, and said so: no flag is left from a call before, and whoever is waited for has its
// multiprocessor, waits for nobody, and ends. So it does not matter how few multiprocessors there
// are, who else holds them, or whether another such call runs beside: of that one, too, nobody
// waits before all it waits for are there. The order of chunks is that of the walks: first chunks
// of all sequences, then the second ones. They are made at the pace of the walks (Handover::pace):
// what is far ahead is not in L2 any more when its turn comes, and all at once is in the walks' way.
#pragma once

#include "arch/flags.cuh"
#include "ops/gdn_prefill/launch_fused.cuh"
#include "ops/gdn_prefill/long_rows.cuh"
#include "ops/gdn_prefill/start_order.cuh"

namespace hyla::gdn {

inline constexpr int kHandoverRows = 128;
// Chunks of heads, if all sequences were as long as the longest.
inline constexpr int kMostHandedOver = 1 << 30;

// Of a call's rows, in shared memory.
struct HandoverRows {
  int most;  // chunks of a row
  int begin[kHandoverRows], length[kHandoverRows], slot[kHandoverRows];
};

// At a place that is known: a pointer would take a register where there are none to spare.
__device__ __forceinline__ HandoverRows& handover_rows() {
  __shared__ HandoverRows rows;
  return rows;
}

// By all threads of all CTAs, behind the grid before, with a barrier in front of it and after it:
// all words that the grid behind looks at.
// A CTA lowers the flags that it will raise (HandoverCursor) and no others: a CTA that starts late,
// beside another stream's kernels, would lower what is up already, and `serial` wait for ever.
__device__ __forceinline__ void lower_flags(const RecordRows& all, HandoverRows& s) {
  const FusedArguments& a = all.a;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int row = thread; row < all.count(); row += threads) {
    int begin, length;
    find_tokens(a.p, row, begin, length);
    const int slot = all.first_slot(row, begin), chunks = (length + kChunk - 1) / kChunk;
    // As find_serial_task has it.
    const bool there = a.p.slots.read_slot(row) != core::kNullSlot && slot + chunks <= all.slots();
    s.begin[row] = begin, s.length[row] = there ? length : 0, s.slot[row] = slot;
    if (there) atomicMax(&s.most, chunks);
  }
  __syncthreads();
  const Handover& h = a.handover;
  const int heads = static_cast<int>(a.p.heads), count = all.count();
  const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int items = s.most * count * heads, shared = h.rounds * ctas * kPrepareGroups;
  const auto lower = [&](int item) {
    const int at = a.by_heads(item), chunk = h.by_rows(at), row = at - chunk * count;
    if (chunk * kChunk >= s.length[row]) return;
    h.ready[static_cast<std::int64_t>(s.slot[row] + chunk) * heads + item - at * heads] = 0;
  };
  for (int i = thread * ctas + cta; i < min(shared, items); i += threads * ctas) lower(i);
  if (cta < h.lasting) {
    for (int i = shared + thread * h.lasting + cta; i < items; i += threads * h.lasting) lower(i);
  }
  lower_order(a);
  __threadfence();
}

// The chunks of heads of a warpgroup: in rounds of all CTAs, then of those that last.
struct HandoverCursor {
  int item;  // the next one

  __device__ __forceinline__ void begin(const Handover& h, int group, int groups) {
    item = group * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    if (h.rounds == 0) enter_rest(h, group, groups);
  }

  // The next one that is there, and the number of its record. None: info.rows is 0.
  __device__ __forceinline__ void find(const FusedArguments& a, const HandoverRows& rows, int group,
                                       int groups, ChunkInfo& info, std::int64_t& record) {
    const int heads = static_cast<int>(a.p.heads), count = static_cast<int>(a.p.sequences.rows);
    info.rows = 0;
    for (;;) {
      const int at = a.by_heads(item), chunk = a.handover.by_rows(at);
      if (chunk >= rows.most) return;
      const int head = item - at * heads, row = at - chunk * count;
      advance(a.handover, group, groups);
      const int token = chunk * kChunk, length = rows.length[row];
      if (token >= length) continue;
      set_head(a, head, info);
      set_tokens(a.p, rows.begin[row] + token, min(kChunk, length - token), info);
      record = static_cast<std::int64_t>(rows.slot[row] + chunk) * heads + head;
      return;
    }
  }

 private:
  __device__ __forceinline__ void advance(const Handover& h, int group, int groups) {
    const int stride = static_cast<int>(gridDim.x) * groups, shared = h.rounds * stride;
    const bool before = item < shared;
    item += before ? stride : h.lasting * groups;
    if (before && item >= shared) enter_rest(h, group, groups);
  }
  __device__ __forceinline__ void enter_rest(const Handover& h, int group, int groups) {
    const int shared = h.rounds * static_cast<int>(gridDim.x) * groups;
    const int cta = static_cast<int>(blockIdx.x);
    item = cta < h.lasting ? shared + group * h.lasting + cta : kMostHandedOver;
  }
};

// By the thread that loads, which is three chunks ahead: the record is there, for the copy engine.
__device__ __forceinline__ void wait_for_record(const std::uint32_t* flag) {
  while (!arch::flag_raised(flag)) continue;
  arch::fence_behind_flag();
}

}  // namespace hyla::gdn
