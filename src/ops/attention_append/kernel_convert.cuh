// Rotates and quantises rows of 16-bit numbers on their way into the cache. A lane has two chunks
// of a head, the two that a rotation of halves mixes, of two heads at a time (or of the only one),
// keys and values: one read of the tables serves both heads, and nothing but a maximum passes
// between lanes. What comes next is copied to places in shared memory that are the lane's own, so
// nobody waits for anybody.
#pragma once

#include "arch/cp_async.cuh"
#include "arch/cp_async_if.cuh"
#include "arch/grid_dependency.cuh"
#include "ops/attention_append/converter.cuh"
#include "ops/attention_append/find_token.cuh"

namespace hyla::attention::appending {

// What a lane has of a token, 16 bytes a place, those of the other lanes beside it.
inline constexpr int kTablePlaces = 4;  // behind both halves: cos, sin
inline constexpr int kStages = 2;
template <int kHeads>
inline constexpr int kChunkPlaces = 2 * kHeads;  // of a half
template <bool kTurned, int kHeads>
inline constexpr int kPlaces = 2 * kChunkPlaces<kHeads> + (kTurned ? kTablePlaces : 0);

// Chunks that are not there leave their places as they are: nothing of them is stored, and they
// share a scale with none that are.
template <int kHeads>
__device__ __forceinline__ void ask(const Half& half, const LanePair& at, int source, int head,
                                    int heads, bool there, std::uint32_t to) {
  const char* from = half.from + source * half.token_bytes + head * half.head_bytes + 16 * at.first;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const bool own = there && at.inside && head + h < heads;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      arch::copy_16_if(own, to + 512 * (2 * h + c),
                       from + h * half.head_bytes + 16 * c * at.distance);
    }
  }
}

// Of a multiprocessor at once, and how many there are for each of them.
template <class Out, bool kTurned, Scales kScales>
inline constexpr int kConvertCtas =
    kTurned ? 4 : (kScales == Scales::kGiven && std::is_same_v<Out, std::int8_t> ? 5 : 6);
template <bool kTurned>
inline constexpr int kConvertRounds = kTurned ? 1 : 4;

// kTurned: the first half may be rotated. kHeads: that a lane has something of at once. Grid: warps'
// shares of both halves, which are paired, or of the first.
template <class In, class Out, bool kTurned, Scales kScales, int kHeads>
__global__ void __launch_bounds__(32 * kRowWarps, kConvertCtas<Out, kTurned, kScales>)
    convert_rows(const __grid_constant__ RowsArguments a) {
  __shared__ uint4 memory[kRowWarps][kStages][kPlaces<kTurned, kHeads>][32];
  constexpr int kOther = kChunkPlaces<kHeads>, kTables = 2 * kOther;  // places
  const Half& half = a.halves[0];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int first = (static_cast<int>(blockIdx.x) * kRowWarps + warp) * half.tokens_of_warp;
  arch::wait_for_previous_grid();
  if (first >= a.tokens) return;
  const LanePair at(half, lane), other_at(a.halves[1], lane);
  const int own_group = lane >> half.lane_shift, at_once = 32 >> half.lane_shift;
  const bool by_offsets = a.in_order();
  // A lane without chunks takes part in the maximum of its run.
  if (!at.inside || !other_at.inside) {
    for (uint4(&stage)[kPlaces<kTurned, kHeads>][32] : memory[warp]) {
      for (uint4(&place)[32] : stage) place[lane] = uint4{};
    }
  }
  const auto ask_chunks = [&](int source, int head, bool there, int stage) {
    const std::uint32_t to = arch::shared_address(&memory[warp][stage][0][lane]);
    ask<kHeads>(half, at, source, head, a.heads, there, to);
    if (a.paired) {
      ask<kHeads>(a.halves[1], other_at, source, head, a.heads, there, to + 512 * kOther);
    }
  };
  if (by_offsets) ask_chunks(first + own_group, 0, first + own_group < a.tokens, 0);

  // Lane l looks the warp's token l up.
  RowToken own;
  if (!by_offsets) {
    own = scan_rows(a, first + lane);
  } else if (lane < half.tokens_of_warp && first + lane < a.tokens) {
    own = row_of(a, first + lane);
  }
  const Target target = target_of(a, own);
  const auto destination = [&](const Half& of) {
    Destination to{kNowhere, 0};
    if (target.place.somewhere()) {
      to.values = of.to.offset(target.place, 0);
      if (of.scales.present()) to.scales = of.scales.offset(target.place, 0);
    }
    return to;
  };
  const Destination looked = destination(half);
  const Destination other_looked = a.paired ? destination(a.halves[1]) : Destination{kNowhere, 0};

  const auto ask_for = [&](int step, int head, int stage, bool chunks_too) {
    const int token = step + own_group;
    if (chunks_too) {
      int source = first + token;
      bool there = source < a.tokens;
      if (!by_offsets) {
        source = __shfl_sync(0xffffffffu, own.row < 0 ? -1 : own.source, token);
        there = source >= 0;
      }
      ask_chunks(source, head, there, stage);
    }
    if constexpr (kTurned) {
      const int position = __shfl_sync(0xffffffffu, target.position, token);
      const bool turns = at.turned && position >= 0 && position < a.positions;
      Turns::ask(a, at, position, turns, arch::shared_address(&memory[warp][stage][kTables][lane]));
    }
  };
  ask_for(0, 0, 0, !by_offsets);
  arch::commit_copies();
  // One that serves all is inverted once.
  const auto served = [](const Half& of) {
    const bool one = kScales == Scales::kGiven && of.serves_all && of.scales.present();
    return GivenScale<Out>(one ? *static_cast<const float*>(of.scales.data) : 1.0f);
  };
  const GivenScale<Out> one = served(half), other_one = served(a.halves[1]);
  int step = 0, head = 0;
  for (int stage = 0; step < half.tokens_of_warp; stage ^= 1) {
    int next_head = head + kHeads, next = step;
    if (next_head >= a.heads) next_head = 0, next += at_once;
    if (next < half.tokens_of_warp) ask_for(next, next_head, stage ^ 1, true);
    arch::commit_copies();
    arch::wait_copies<1>();
    const auto passed = [&](auto x) { return __shfl_sync(0xffffffffu, x, step + own_group); };
    const uint4* places = &memory[warp][stage][0][lane];
    if (a.paired) {
      const Destination to{passed(other_looked.values), passed(other_looked.scales)};
      const SharedChunks<kHeads> chunks{places + 32 * kOther, nullptr};
      Converter<In, Out, kScales, SharedChunks<kHeads>>(a, a.halves[1], other_at, to, head, chunks,
                                                        other_one)
          .convert();
    }
    const Destination to{passed(looked.values), passed(looked.scales)};
    const SharedChunks<kHeads> chunks{places, places + 32 * kTables};
    const Converter<In, Out, kScales, SharedChunks<kHeads>> converter(a, half, at, to, head, chunks,
                                                                      one);
    if (kTurned && half.turned > 0) {
      converter.convert_turned(passed(target.position));
    } else {
      converter.convert();
    }
    step = next, head = next_head;
  }
}

}  // namespace hyla::attention::appending
