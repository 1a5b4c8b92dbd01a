// Which walks over chunks the states between segments take (kernel_walk.cuh), and which of them a
// CTA has. A segment that forgets needs one, from the chunk on that `find_starts` found; one that
// remembers needs an N and an M of each of its pieces. The list is the same in every CTA: the
// longest walks first, and the CTAs take turns from alternating ends.
#pragma once

#include "ops/gdn_prefill/segment_list.cuh"

namespace hyla::gdn {

// N and M of all pieces, and those of one CTA (each_relay_form).
inline constexpr int kMostWalks = 2 * kMostSegments, kMostOwnWalks = 64;

struct WalkItem {
  int segment;  // of all heads, see Segment
  int pair, row, head;
  int piece;
  int token, chunks;  // the first token, and how many chunks are walked over
  bool matrix;        // M, else N
  bool forgets;       // the segment does: what is before the walk does not matter
};

struct WalkList {
  WalkItem own[kMostOwnWalks];  // of the CTA
  int count;
  int grown[kMostOwnWalks];  // of own walks, not zero: a key lets states grow
  // While the list is made: the chunks of a segment's walks and how many these are; all walks in
  // their order, as 256 segment + number of the walk.
  int length[kMostSegments], walks[kMostSegments];
  int order[kMostWalks];
  int total;
  // Own segments that have to be walked over again, in `order`.
  int left;
};

// Of a segment that remembers: N of piece 0, M and N of piece 1 and so on. The first piece of a
// sequence has no M, the first one of another segment has its M behind its N.
__device__ __forceinline__ int walks_of_pieces(const FusedArguments& a, const Segment& segment) {
  return 2 * a.cuts - (segment.number == 0 ? 1 : 0);
}
__device__ __forceinline__ WalkItem walk_of_piece(const FusedArguments& a, const Segment& segment,
                                                  int index, int number) {
  const int at = segment.number == 0 && number > 0 ? number + 1 : number;
  WalkItem item;
  item.segment = index;
  item.pair = segment.task, item.row = segment.row, item.head = segment.head;
  item.piece = segment.number * a.cuts + at / 2;
  const int from = first_of_piece(a, segment.chunks, item.piece);
  item.token = segment.begin + from * kChunk;
  item.chunks = first_of_piece(a, segment.chunks, item.piece + 1) - from;
  item.matrix = (at & 1) != 0;
  item.forgets = false;
  return item;
}
// Of one that forgets.
__device__ __forceinline__ WalkItem walk_to_end(const FusedArguments& a, const Segment& segment,
                                                int index, int start) {
  WalkItem item;
  item.segment = index;
  item.pair = segment.task, item.row = segment.row, item.head = segment.head;
  item.piece = segment.number * a.cuts + a.cuts - 1;
  item.token = segment.begin + start * kChunk;
  item.chunks = segment.to - start;
  item.matrix = false;
  item.forgets = true;
  return item;
}

// By all threads of a CTA, with a barrier after it.
__device__ __forceinline__ void list_walks(const FusedArguments& a, WalkList& list) {
  const int count = a.tasks * (a.parts - 1), thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < kMostOwnWalks; i += threads) list.grown[i] = 0;
  for (int i = thread; i < count; i += threads) {
    const Segment segment(a, i);
    const int start = __ldcg(&a.rows->start[i]);
    const bool any = segment.from<segment.to, forgets = start> segment.from;
    list.walks[i] = !any ? 0 : forgets ? 1 : walks_of_pieces(a, segment);
    list.length[i] = forgets ? segment.to - start : (segment.to - segment.from) / a.cuts;
  }
  __syncthreads();
  for (int i = thread; i < count; i += threads) {
    const int length = list.length[i];
    int before = 0, total = 0;
    for (int j = 0; j < count; ++j) {
      const int walks = list.walks[j], other = list.length[j];
      if (other > length || (other == length && j < i)) before += walks;
      total += walks;
    }
    for (int n = 0; n < list.walks[i]; ++n) list.order[before + n] = i << 8 | n;
    if (i == 0) list.total = total;
  }
  __syncthreads();
  const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  const auto place = [&](int round) { return round * ctas + (round & 1 ? ctas - 1 - cta : cta); };
  const int rounds = list.total / ctas, own = rounds + (place(rounds) < list.total ? 1 : 0);
  if (thread == 0) list.count = own, list.left = -1;
  for (int round = thread; round < own; round += threads) {
    const int walk = list.order[place(round)], index = walk >> 8;
    const Segment segment(a, index);
    const int start = __ldcg(&a.rows->start[index]);
    list.own[round] = start > segment.from ? walk_to_end(a, segment, index, start)
                                           : walk_of_piece(a, segment, index, walk & 255);
  }
}

// By one thread, when the walks of the list are done: writes whether their pieces have no M.
// Segments that would have forgotten but for a key that lets states grow have all of their pieces
// walked over then, one segment after another: lists these walks. Whether there are any.
__device__ __forceinline__ bool list_again(const FusedArguments& a, WalkList& list) {
  const auto write = [&](int pair, int piece, bool forgets) {
    *segment_forgets(a, pair, piece) = forgets ? 1 : 0;
  };
  if (list.left < 0) {
    list.left = 0;
    for (int i = 0; i < list.count; ++i) {
      const WalkItem& item = list.own[i];
      if (!item.forgets) {
        write(item.pair, item.piece, false);
        continue;
      }
      const bool forgets = list.grown[i] == 0;
      for (int n = 0; n < a.cuts; ++n) write(item.pair, item.piece - n, forgets);
      if (!forgets) list.order[list.left++] = item.segment;
    }
  }
  list.count = 0;
  if (list.left == 0) return false;
  const int index = list.order[--list.left];
  const Segment segment(a, index);
  list.count = walks_of_pieces(a, segment);
  for (int n = 0; n < list.count; ++n) list.own[n] = walk_of_piece(a, segment, index, n);
  return true;
}

// Walks over the chunks of all walks of a CTA, starting in front of the first. A chunk's q_head is
// the number of its walk, its v_head below 0 where that is an M.
struct WalkCursor {
  ChunkInfo info;
  int walk, token;
  int chunk, chunks;

  __device__ __forceinline__ void start() {
    walk = chunk = -1;
    chunks = 0;
    info.rows = kChunk;
  }

  __device__ __forceinline__ void advance(const FusedArguments& a, const WalkList& list,
                                          int steps) {
    if (info.rows == 0) return;  // there were no more already
    chunk += steps;
#pragma unroll 1
    while (chunk >= chunks) {
      chunk -= chunks;
      if (++walk >= list.count) {
        info.rows = 0;
        return;
      }
      const WalkItem& item = list.own[walk];
      token = item.token;
      chunks = item.chunks;
      set_head(a, item.head, info);
      info.q_head = walk;
      if (item.matrix) info.v_head = -1;
    }
    set_tokens(a.p, token + chunk * kChunk, kChunk, info);
  }
};

}  // namespace hyla::gdn
