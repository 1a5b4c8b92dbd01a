// What the decode kernels are given: small, flat, 32 bits wherever they suffice. A kernel starts by
// reading this, and a cold constant cache makes every line of it count.
#pragma once

#include <hyla/host_device.h>
#include <hyla/tensor.h>
#include <vector_types.h>

#include <cstdint>

#include "device/divider.h"

namespace hyla::attention::decode {

inline constexpr int kUnit = 16;      // keys of a unit: what a warp multiplies at once
inline constexpr int kWarpRows = 8;   // packed query rows of a warp
inline constexpr int kWideRows = 64;  // of a CTA of the kernel for more of them,
inline constexpr int kWideCtas = 2;   // of which an SM has so many
inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr int kMaxCtas = 256;
inline constexpr int kFewItems = 4;          // each of which has many pieces
inline constexpr int kLeastAhead = 32;       // units of a share whose first keys are fetched ahead
inline constexpr int kMostTokens = 1 << 30;  // of a row, of a call, ...
inline constexpr std::uint32_t kNowhere = 0xffffffffu;

using device::Divider;

// Integers on the device; what does not fit 31 bits becomes the nearest thing that does.
struct Ints {
  const char* data = nullptr;
  int stride = 0;  // bytes
  bool wide = false;

  HYLA_HOST_DEVICE bool present() const { return data != nullptr; }
};

// Rows of queries.
struct QueryRows {
  int rows = 0, tokens = 0;
  Ints begins, lengths;  // lengths absent: begins has one more
  int heads = 0, group = 1;
  Divider by_group;
  int most_queries = 0;  // a row with more is not ours
  const char* data = nullptr;
  int token_bytes = 0, head_bytes = 0, dim = 0;
  bool bf16 = false;
};

enum class Kind { kDense, kRagged, kPaged };

// Rows lie at multiples of `k_step` or `v_step` bytes from their head's base, a token's key at the
// same multiple as its value; scales at multiples of an element.
struct Cache {
  Kind kind = Kind::kDense;
  int kv_heads = 0;
  int tokens = 0, outers = 0;  // of a page or row; pages or rows
  bool units_in_line = false;  // the keys of a unit lie at equal distances: on one page, or none
  int capacity = 0;            // tokens a row has room for (ragged: in all)
  Ints lengths, begins;        // begins: ragged
  const char* table = nullptr;
  std::int64_t table_row_bytes = 0;
  int table_bytes = 0;  // from one column to the next
  bool wide_table = false;
  Divider page_of;
  const char *k = nullptr, *v = nullptr;
  std::int64_t k_head_bytes = 0, v_head_bytes = 0;
  int k_chunks = 0, v_chunks = 0;  // 16-byte chunks of a row
  std::uint32_t k_step = 0, v_step = 0, outer_steps = 0, token_steps = 0;
  const float *k_scales = nullptr, *v_scales = nullptr;  // one a token and head
  std::uint32_t scale_outer = 0, scale_token = 0;
  std::int64_t scale_head = 0;
};

struct Output {
  void* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;
  DType dtype = DType::kNone;
  bool wide = false;  // four values are one aligned access
  int dim = 0;
  float* lse = nullptr;
  std::int64_t lse_token_stride = 0, lse_head_stride = 0;
  const void* sinks = nullptr;
  DType sinks_dtype = DType::kNone;
  int sinks_stride = 0;
};

// Which keys a query at a position sees, in 32 bits.
struct Sight {
  bool causal = true;
  int window = 0, chunk = 0;  // 0: none

  struct Range {
    int begin, end;
  };
  HYLA_HOST_DEVICE Range keys(int position, int length) const {
    Range range{0, length};
    if (causal && position + 1 < range.end) range.end = position + 1;
    if (window > 0) {
      if (position - window + 1 > 0) range.begin = position - window + 1;
      if (position + window < range.end) range.end = position + window;
    }
    if (chunk > 0) {
      const int first = position >= 0 ? position / chunk * chunk : 0;
      const int end = position >= 0 ? first + chunk : 0;
      if (first > range.begin) range.begin = first;
      if (end < range.end) range.end = end;
    }
    if (range.end < range.begin) range.end = range.begin;
    return range;
  }
};

// Where a row's bits are its own, an item has parts by its own length: so many units at least, so
// many parts at most.
inline constexpr int kPartUnits = 32, kMostParts = 64;
HYLA_HOST_DEVICE inline int part_units(int units) {
  const int fewest = (units + kMostParts - 1) / kMostParts;
  return fewest > kPartUnits ? fewest : kPartUnits;
}

// A line whose items are all as long: `ctas` of the CTAs, groups of `group` of them for `together`
// items each, have shares as good as those of all CTAs, and fewer pieces or none.
struct Even {
  int items = 0;  // 0: not of any number of items
  int ctas = 0, group = 1, together = 1;
  Divider by_group;
};

// Partial results of the pieces that do not hold all keys of their queries. A CTA has a slot for
// what it begins and leaves to others, and one for the end of what CTAs before it began. Where a
// row's bits are its own, it has two for the former, in turns, and one for each part of the latter.
struct Pieces {
  float* values = nullptr;  // [CTAs, slots, rows, D]
  float2* sums = nullptr;   // [CTAs, slots, rows]: maximum (of log2), sum of weights
  int ctas = 0, slots = 2;
  Divider by_ctas;
  Even even;
  bool own_bits = false;
  // [entries, 2]: {first token, first head, first packed row, packed rows}, {pieces, first CTA}; an
  // entry is an item's, or where there may be too many items, that of the CTA which begins it. Not
  // where a row's bits are its own: then the kernel that adds up finds them.
  int4* entries = nullptr;
  int* items = nullptr;  // how many entries were written
  bool by_item = false;

  // The slot, behind the first two, of a part of what CTAs before began. There are enough, unless
  // the rows of a ragged cache overlap.
  HYLA_HOST_DEVICE int later(int part) const { return part < slots - 3 ? part : slots - 3; }
};

// The slot of an item's piece, where the CTA which begins the item is known.
HYLA_HOST_DEVICE inline int slot_of_piece(int first_cta, int piece) {
  return piece == 0 ? 2 * first_cta : 2 * (first_cta + piece) + 1;
}

struct Arguments {
  QueryRows q;
  Sight sight;
  Cache cache;
  float scale = 0, softcap = 0;
  Output out;
  Pieces pieces;
};

}  // namespace hyla::attention::decode
