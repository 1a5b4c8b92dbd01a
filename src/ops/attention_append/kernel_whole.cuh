// Rotates and quantises, as kernel_convert.cuh does, keys and values whose heads are alike, come two
// by two, fill their lanes (16 of a head of 256) and are rotated whole: most models' are. A warp has
// two heads of its tokens, so that what an address needs is a product and a sum; where a token is
// unusual, or a quotient not sure, it does the two heads again as the other kernel would.
#pragma once

#include "ops/attention_append/kernel_convert.cuh"
#include "ops/attention_append/whole_heads.cuh"

namespace hyla::attention::appending {

inline constexpr int kWholeCtas = 4;

// Where the tokens of a warp go, counted in chunks of a cache and in scales: 32 bits.
struct WholePlaces {
  static constexpr std::uint32_t kNowhere = 0xffffffffu;
  std::uint32_t values = kNowhere, scales = 0;

  __device__ __forceinline__ WholePlaces(const Half& of, const Place& place) {
    if (!place.somewhere()) return;
    values = static_cast<std::uint32_t>(of.to.offset(place, 0) / 8);
    scales = static_cast<std::uint32_t>(of.scales.offset(place, 0));
  }
};

// kLanes: of a head. Grid: warps' shares of the tokens, pairs of heads.
template <class In, class Out, int kLanes>
__global__ void __launch_bounds__(32 * kRowWarps, kWholeCtas)
    convert_whole(const __grid_constant__ RowsArguments a) {
  using Heads = WholeHeads<In, Out, kLanes>;
  using Chunks = SharedChunks<2>;
  using General = Converter<In, Out, Scales::kHead, Chunks>;
  constexpr int kAtOnce = 32 / kLanes, kOther = kChunkPlaces<2>, kTables = 2 * kOther;
  __shared__ uint4 memory[kRowWarps][kStages][kPlaces<true, 2>][32];
  const Half &keys = a.halves[0], &values = a.halves[1];
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int in_head = lane & (kLanes - 1), group = lane / kLanes;
  const int head = 2 * static_cast<int>(blockIdx.y);
  const int first = (static_cast<int>(blockIdx.x) * kRowWarps + warp) * keys.tokens_of_warp;
  arch::wait_for_previous_grid();
  if (first >= a.tokens) return;

  const auto start_of = [&](const Half& of) {
    return of.from + (first + group) * of.token_bytes + head * of.head_bytes + 16 * in_head;
  };
  const char *next_keys = start_of(keys), *next_values = start_of(values);
  int left = a.tokens - first - group;  // from the next of the lane's tokens on
  const auto ask_chunks = [&](std::uint32_t to) {
    const auto ask = [&](const char*& from, const Half& of, std::uint32_t place) {
      const char* second = from + of.head_bytes;
      arch::copy_16_if(left > 0, place, from);
      arch::copy_16_if(left > 0, place + 512, from + 16 * kLanes);
      arch::copy_16_if(left > 0, place + 2 * 512, second);
      arch::copy_16_if(left > 0, place + 3 * 512, second + 16 * kLanes);
      from += kAtOnce * of.token_bytes;
    };
    ask(next_keys, keys, to);
    ask(next_values, values, to + 512 * kOther);
    left -= kAtOnce;
  };
  const std::uint32_t own_place = arch::shared_address(&memory[warp][0][0][lane]);
  constexpr std::uint32_t kStageBytes = sizeof(memory[0][0]);
  ask_chunks(own_place);

  // Lane l looks the warp's token l up.
  RowToken own;
  if (lane < keys.tokens_of_warp && first + lane < a.tokens) own = row_of(a, first + lane);
  const Target target = target_of(a, own);
  const WholePlaces looked(keys, target.place), other_looked(values, target.place);

  const int table_next = a.interleaved ? 4 * kLanes : 4;
  const int column = (a.interleaved ? 4 : 8) * in_head;
  const float *cos = a.cos + column, *sin = a.sin + column;
  const float *next_cos = cos + table_next, *next_sin = sin + table_next;
  const auto cos_bytes = static_cast<std::uint32_t>(4 * a.cos_stride);
  const auto sin_bytes = static_cast<std::uint32_t>(4 * a.sin_stride);
  const auto ask_tables = [&](int step, std::uint32_t to) {
    const unsigned position = __shfl_sync(0xffffffffu, target.position, step + group);
    const bool there = position < static_cast<unsigned>(a.positions);
    const auto ask = [&](std::uint32_t place, const float* base, std::uint32_t row_bytes) {
      const char* from = reinterpret_cast<const char*>(base) + std::uint64_t{position} * row_bytes;
      arch::copy_16_if<0, arch::Caches::kL1>(there, place, from);
    };
    ask(to, cos, cos_bytes), ask(to + 512, next_cos, cos_bytes);
    ask(to + 2 * 512, sin, sin_bytes), ask(to + 3 * 512, next_sin, sin_bytes);
  };
  ask_tables(0, own_place + 512 * kTables);
  arch::commit_copies();

  const auto base_of = [&](const Half& of) {
    return static_cast<Out*>(of.to.data) + head * of.to.head_stride + 8 * in_head;
  };
  const auto scale_base_of = [&](const Half& of) {
    return static_cast<float*>(of.scales.data) + (head + (lane & 1)) * of.scales.head_stride;
  };
  Out *const key_base = base_of(keys), *const value_base = base_of(values);
  float *const key_scales = scale_base_of(keys), *const value_scales = scale_base_of(values);
  for (int step = 0, stage = 0; step < keys.tokens_of_warp; step += kAtOnce, stage ^= 1) {
    if (step + kAtOnce < keys.tokens_of_warp) {
      const std::uint32_t to = own_place + (stage ^ 1) * kStageBytes;
      ask_chunks(to);
      ask_tables(step + kAtOnce, to + 512 * kTables);
    }
    arch::commit_copies();
    arch::wait_copies<1>();
    const auto passed = [&](auto x) { return __shfl_sync(0xffffffffu, x, step + group); };
    const uint4* places = &memory[warp][stage][0][lane];
    const auto target_in = [&](const Half& of, const WholePlaces& to, Out* base, float* scales) {
      WholeTarget<Out> result;
      const std::uint32_t at = passed(to.values);
      result.goes = at != WholePlaces::kNowhere;
      result.goes_scale = result.goes && in_head < 2;
      result.values[0] = base + std::uint64_t{at} * 8;
      result.values[1] = result.values[0] + of.to.head_stride;
      result.scale = scales + passed(to.scales);
      return result;
    };
    const int position = passed(target.position);
    const bool turns = static_cast<unsigned>(position) < static_cast<unsigned>(a.positions);
    const WholeTarget<Out> value_to = target_in(values, other_looked, value_base, value_scales);
    const bool plain = Heads::convert(places + 32 * kOther, value_to);
    const WholeTarget<Out> key_to = target_in(keys, looked, key_base, key_scales);
    const bool usual = turns & Heads::convert_turned(places, places + 32 * kTables, a.interleaved,
                                                     turns & key_to.goes, key_to);
    if (!__any_sync(0xffffffffu, !(plain & usual) & key_to.goes)) continue;
    const auto any = [&](bool x) { return __any_sync(0xffffffffu, x & key_to.goes); };
    const auto destination = [&](const WholePlaces& to) {
      const std::uint32_t at = passed(to.values);
      return Destination{at == WholePlaces::kNowhere ? kNowhere : std::int64_t{at} * 8,
                         std::int64_t{passed(to.scales)}};
    };
    const LanePair at(keys, lane);
    const GivenScale<Out> none(1.0f);
    __syncwarp();
    if (any(!plain)) {
      const Chunks chunks{places + 32 * kOther, nullptr};
      General(a, values, at, destination(other_looked), head, chunks, none).convert();
    }
    if (any(!usual)) {
      const Chunks chunks{places, places + 32 * kTables};
      General(a, keys, at, destination(looked), head, chunks, none).convert_turned(position);
    }
  }
}

}  // namespace hyla::attention::appending
