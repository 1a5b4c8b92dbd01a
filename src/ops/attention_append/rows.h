// What the kernels that move whole rows are given.
#pragma once

#include "core/views.h"
#include "device/divider.h"
#include "device/dtype.cuh"
#include "ops/attention/cache_places.h"

namespace hyla::attention::appending {

inline constexpr int kRowWarps = 4;
inline constexpr int kFewThreads = 1024, kFewConvertThreads = 512;  // of a token, at most

// Keys or values. A chunk is 16 bytes of the input.
struct Half {
  const char* from = nullptr;
  std::int64_t token_bytes = 0, head_bytes = 0;
  CacheTensor to, scales;
  int size = 0;    // bytes of an element of the cache
  int chunks = 0;  // of a head

  // Rows that are copied.
  int per_token = 0, total = 0;  // chunks
  device::Divider by_token, by_head;

  // Rows that are converted: a lane has two chunks of a head.
  int lane_shift = 0;                // log2 of the lanes that a head has
  int turned = 0;                    // pairs of chunks that are rotated
  int run_lanes = 0, run_shift = 0;  // that share a scale, and their logarithm
  bool one_scale = false;            // for both chunks of a lane: a head has one
  int tokens_of_warp = 0;
  bool serves_all = false;  // one scale that was given, or none
};

struct RowsArguments {
  // With slots nobody has rows: starts are the slots of the tokens and lengths their positions. Not
  // in places of their own, because a launch of a kernel so short takes longer with every argument.
  core::Sequences sequences;
  CachePlaces places;
  Half halves[2];
  bool paired = false;  // both halves have the same shape: a warp moves both
  int tokens = 0;       // of the input
  int heads = 0;
  const float *cos = nullptr, *sin = nullptr;
  std::int64_t cos_stride = 0, sin_stride = 0;
  int positions = 0;
  bool interleaved = false, by_slots = false;

  // Few tokens.
  std::int64_t capacity = 0;        // tokens that a row has room for
  device::Divider by_row, by_page;  // tokens of a row where all are alike, and of a page
  int key_warps = 0;

  // A token's number is its place in the input.
  __device__ __forceinline__ bool in_order() const {
    return by_slots || sequences.cu_seqlens.present();
  }
  const __device__ __forceinline__ core::IndexView& slots() const { return sequences.starts; }
  const __device__ __forceinline__ core::IndexView& slot_positions() const {
    return sequences.lengths;
  }
};

using Chunk = device::Pack<char, 16>;
template <class Element>
using Eight = device::Pack<Element, 8>;

template <class Element>
__device__ __forceinline__ Eight<Element> numbers_of(const Chunk& chunk) {
  Eight<Element> numbers;
#pragma unroll
  for (int w = 0; w < 4; ++w) numbers.words[w] = chunk.words[w];
  return numbers;
}

// An offset of a token that is not written.
inline constexpr std::int64_t kNowhere = INT64_MIN;

}  // namespace hyla::attention::appending
