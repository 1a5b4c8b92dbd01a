// Appends few tokens, as a step of decoding does: a CTA a token, a thread a chunk or two. What a
// token needs is asked for in two turns: its numbers and what the row that it should be in says of
// it, then its page and its columns of cos and sin.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/attention_append/converter.cuh"
#include "ops/attention_append/find_token.cuh"

namespace hyla::attention::appending {

// Brings the page table's part of a row into the cache, as far as a CTA's threads reach and it is
// worth it: which entry is needed is not known before the length is.
__device__ __forceinline__ void fetch_pages(const IndexSpan& table, int row) {
  constexpr int kLine = 128, kMost = 16 * kLine;
  const int size = table.dtype == DType::kInt64 ? 8 : 4;
  const std::int64_t bytes = table.columns * size;
  const int thread = static_cast<int>(threadIdx.x), at = thread * kLine;
  if (!table.present() || table.column_stride != 1 || bytes > kMost || at >= bytes + kLine) return;
  const std::int64_t last = bytes - size;
  const char* from = static_cast<const char*>(table.data) + row * table.stride * size;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from + (at < last ? at : last)));
}

// Of the token of this CTA, by whole warps.
struct FewTarget {
  int row = -1, position = -1;  // position < 0: not written

  __device__ __forceinline__ FewTarget(const RowsArguments& a, int token) {
    const int last = static_cast<int>(a.sequences.rows) - 1, guess = a.by_row(token);
    row = guess < last ? guess : last;
    fetch_pages(a.places.page_table, row);
    RowNumbers at(a, row);
    if (at.begin > token || at.end <= token) {  // the rows are not all alike
      row = search(a, token);
      at = RowNumbers(a, row);
    }
    if (at.begin < 0 || at.begin > token || at.end <= token) return;
    const std::int64_t wanted = at.length - (at.end < a.tokens ? at.end : a.tokens) + token;
    if (wanted >= 0 && wanted < a.capacity) position = static_cast<int>(wanted);
  }

  // What is to be done meanwhile is asked for by `ask`. Nowhere: outside the pool.
  template <class Ask>
  __device__ __forceinline__ Place place(const RowsArguments& a, Ask ask) const {
    const CachePlaces& places = a.places;
    if (position < 0) return {-1, 0};
    if (places.kind == KvCache::Kind::kDense) {
      ask();
      return {row, position};
    }
    const int column = a.by_page(position);
    const AskedIndex entry(places.page_table, row * places.page_table.stride +
                                                  column * places.page_table.column_stride);
    ask();
    const std::int64_t page = entry.value();
    if (page < 0 || page >= places.outers) return {-1, 0};
    return {page, position - column * static_cast<int>(places.tokens)};
  }

 private:
  // The last row that begins at the token or before it: a lane asks for one of 32 places.
  static __device__ __forceinline__ int search(const RowsArguments& a, int token) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    int low = 0, count = static_cast<int>(a.sequences.rows);
    while (count > 1) {
      const int step = (count + 31) / 32, probe = lane * step;
      const bool before = probe < count && a.sequences.cu_seqlens.at(low + probe) <= token;
      const int found = __popc(__ballot_sync(0xffffffffu, before)) - 1;
      const int skipped = found > 0 ? found * step : 0;
      low += skipped;
      count = count - skipped < step ? count - skipped : step;
    }
    return low;
  }
};

// The same of a token that brings its slot along, which waits for nothing else.
struct FewSlot {
  int position = -1;  // < 0: not rotated

  __device__ __forceinline__ FewSlot(const RowsArguments& a, int token)
      : slot_(a.slots(), token * a.slots().stride) {
    if (!a.slot_positions().present()) return;
    const AskedIndex at(a.slot_positions(), token * a.slot_positions().stride);
    position = table_row(a, at.value());
  }
  template <class Ask>
  __device__ __forceinline__ Place place(const RowsArguments& a, Ask ask) const {
    ask();
    return slot_place(a, slot_.value());
  }

 private:
  AskedIndex slot_;
};

// Rows as they are. Grid: tokens; a thread a chunk of the keys, then of the values. Target: of
// tokens by rows or by slots.
template <class Target>
__global__ void __launch_bounds__(kFewThreads) copy_few(const __grid_constant__ RowsArguments a) {
  const int token = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const bool is_key = thread < a.halves[0].per_token;
  const Half& half = a.halves[is_key ? 0 : 1];
  const int chunk = is_key ? thread : thread - a.halves[0].per_token;
  const int head = half.by_head(chunk), piece = chunk - head * half.chunks;
  const bool own = chunk < half.per_token;
  const char* from = half.from + token * half.token_bytes + head * half.head_bytes + 16 * piece;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  Chunk data;
  data.load_if(own, from);
  const Place place = Target(a, token).place(a, [] {});
  if (!own || !place.somewhere()) return;
  data.store(static_cast<char*>(half.to.data) +
             (half.to.offset(place, 0) + head * half.to.head_stride) * half.size + 16 * piece);
}

// Grid: tokens; a warp as many heads of keys as it has lanes for, and the warps behind
// a.key_warps of values.
template <class In, class Out, Scales kScales, class Target>
__global__ void __launch_bounds__(kFewConvertThreads)
    convert_few(const __grid_constant__ RowsArguments a) {
  const int token = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  // The same in all lanes, which the compiler is told.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0);
  const bool is_key = warp < a.key_warps;
  const Half& half = a.halves[is_key ? 0 : 1];
  const LanePair at(half, lane);
  const int head = ((is_key ? warp : warp - a.key_warps) * 32 + lane) >> half.lane_shift;
  const bool own = at.inside && head < a.heads;
  const char* from = half.from + token * half.token_bytes + head * half.head_bytes + 16 * at.first;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  OwnChunks chunks{};
  if (own) chunks.data[0].load(from), chunks.data[1].load(from + 16 * at.distance);
  const bool scaled = kScales == Scales::kGiven && half.scales.present() && own;
  const float* scales =
      static_cast<const float*>(half.scales.data) + head * half.scales.head_stride;
  const auto ask_scales = [&] {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int index = at.first + c * at.distance;
      const int run = half.one_scale ? 0 : index >> half.run_shift;
      chunks.scales[c] = scales[run * half.scales.inner_stride];
    }
  };
  // One for all tokens waits for nothing.
  const bool one = half.scales.outer_stride == 0 && half.scales.token_stride == 0;
  if (scaled && one) ask_scales();
  const Target target(a, token);
  const Place place = target.place(a, [&] {
    if (is_key && half.turned > 0) chunks.tables.load(a, at, target.position);
  });
  Destination to{kNowhere, 0};
  if (place.somewhere()) {
    to.values = half.to.offset(place, 0);
    if (half.scales.present()) to.scales = half.scales.offset(place, 0);
    scales += to.scales;
    if (scaled && !one) ask_scales();
  }
  const GivenScale<Out> none(1.0f);  // the chunks have their own
  const Converter<In, Out, kScales, OwnChunks> converter(a, half, at, to, head, chunks, none);
  if (is_key && half.turned > 0) {
    converter.convert_turned(target.position);
  } else {
    converter.convert();
  }
}

}  // namespace hyla::attention::appending
