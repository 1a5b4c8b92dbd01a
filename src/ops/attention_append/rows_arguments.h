// Host side of the kernels that move whole rows: what they take, and how a problem becomes their
// arguments.
#pragma once

#include <algorithm>
#include <bit>

#include "device/alignment.h"
#include "ops/attention_append/kernel_convert.cuh"
#include "ops/attention_append/kernel_copy.cuh"
#include "ops/attention_append/kernel_few.cuh"
#include "ops/attention_append/kernel_whole.cuh"

namespace hyla::attention::appending {

inline constexpr int kFewTokens = 512;
inline constexpr std::int64_t kMostChunks = INT32_MAX - 64 * 32 * kLines;

// Rows of a tensor can be read or written `bytes` at a time.
inline bool aligned_rows(const TensorView& x, std::int64_t bytes) {
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  bool good = device::aligned(x.data, bytes) && x.shape[x.rank - 1] * size % bytes == 0;
  for (int d = 0; d < x.rank - 1; ++d) good = good && x.strides[d] * size % bytes == 0;
  return good;
}

inline bool aligned_table(const TensorView& x) {
  return device::aligned(x.data, 16) && x.strides[1] == 1 &&
         (x.shape[0] <= 1 || x.strides[0] % 4 == 0);
}

inline bool as_is(const AppendProblem& p) {
  return !p.cos.present() && p.k.dtype == p.cache.k.dtype;
}

// Of chunks in a head.
inline std::int64_t rotated_pairs(const AppendProblem& p) {
  return p.cos.present() ? p.cos.shape[1] / 8 : 0;
}

// Null when the kernel takes one of keys and values.
inline const char* half_refuses(const AppendProblem& p, const TensorView& from,
                                const TensorView& to, const TensorView& scales) {
  const auto size = static_cast<std::int64_t>(size_of(from.dtype));
  const std::int64_t chunks = from.shape[2] * size / 16;
  if (!aligned_rows(from, 16)) return "keys or values are not aligned to 16 bytes";
  if (!aligned_rows(to, 16 * static_cast<std::int64_t>(size_of(to.dtype)) / size)) {
    return "the cache's rows are not aligned to chunks";
  }
  if (chunks * p.heads * from.shape[0] > kMostChunks) return "too many tokens";
  if (as_is(p)) return chunks * p.heads < kLines ? "a token has fewer than 64 bytes" : nullptr;
  if (from.dtype != DType::kBFloat16 && from.dtype != DType::kFloat16) {
    return "converts from bfloat16 and float16";
  }
  if (to.dtype != from.dtype && size_of(to.dtype) != 1) return "the cache has another dtype";
  if (chunks % 2 != 0 || chunks > 32) return "converts head dims that are multiples of 16, to 256";
  if (!scales.present() || scales.shape[scales.rank - 1] == 1) return nullptr;
  const std::int64_t run = from.shape[2] / scales.shape[scales.rank - 1];
  const std::int64_t turned = from.data == p.k.data ? rotated_pairs(p) : 0;
  if (run % 8 != 0 || !std::has_single_bit(static_cast<std::uint64_t>(run))) {
    return "a scale is for a head, or for a power of two of at least 8 values";
  }
  // The lanes of a run are neighbours.
  if (p.given_scales) return nullptr;
  if (turned % (run / 8) != 0 || (chunks / 2 - turned) % (run / 8) != 0) {
    return "values that share a scale are apart in a rotation";
  }
  return nullptr;
}

// Tokens that a row has room for; of a ragged cache, and where tokens bring slots, that all have.
inline std::int64_t capacity_of(const AppendProblem& p) {
  const CacheView& cache = p.cache;
  const bool ragged = cache.kind == KvCache::Kind::kRagged;
  if (p.slots.present() && !ragged) {
    const std::int64_t outers = cache.k.shape[0], tokens = cache.k.shape[1];
    return tokens > 0 && outers > INT32_MAX / tokens ? INT64_MAX : outers * tokens;
  }
  return cache.kind == KvCache::Kind::kPaged ? cache.page_table.columns * cache.page_size()
                                             : cache.k.shape[ragged ? 0 : 1];
}

inline const char* rows_refuses(const AppendProblem& p) {
  if (const char* reason = half_refuses(p, p.k, p.cache.k, p.cache.k_scales)) return reason;
  if (p.value_dim > 0) {
    if (const char* reason = half_refuses(p, p.v, p.cache.v, p.cache.v_scales)) return reason;
  }
  if (capacity_of(p) > INT32_MAX) return "positions or slots beyond 2^31";
  if (p.cos.present()) {
    if (p.cos.shape[1] % 8 != 0) return "rotates multiples of 16 values";
    if (!aligned_table(p.cos) || !aligned_table(p.sin)) return "cos and sin are not aligned";
  }
  return nullptr;
}

// Tokens of a warp that converts, `at_once` of them at a time: as many as give `warps`, which run
// at once, equal shares, or twice as many warps half of them and so on. A lane looks up one.
inline int tokens_of_warp(std::int64_t tokens, std::int64_t at_once, std::int64_t warps) {
  const std::int64_t rounds = (tokens + 32 * warps - 1) / (32 * warps);
  const std::int64_t share = (tokens + rounds * warps - 1) / (rounds * warps);
  return static_cast<int>((share + at_once - 1) / at_once * at_once);
}

inline Half half_of(const AppendProblem& p, const TensorView& from, const TensorView& to,
                    const TensorView& scales, std::int64_t turned, std::int64_t warps) {
  const auto size = static_cast<std::int64_t>(size_of(from.dtype));
  Half half;
  half.from = static_cast<const char*>(from.data);
  half.token_bytes = from.strides[0] * size;
  half.head_bytes = from.strides[1] * size;
  half.to = CacheTensor(to, p.cache.kind);
  half.scales = CacheTensor(scales, p.cache.kind);
  half.size = static_cast<int>(size_of(to.dtype));
  half.chunks = static_cast<int>(from.shape[2] * size / 16);
  half.per_token = half.chunks * static_cast<int>(p.heads);
  half.total = half.per_token * static_cast<int>(from.shape[0]);
  half.by_token = device::Divider(static_cast<std::uint32_t>(half.per_token));
  half.by_head = device::Divider(static_cast<std::uint32_t>(half.chunks));
  if (as_is(p)) return half;
  const unsigned lanes = std::bit_ceil(static_cast<unsigned>(half.chunks) / 2);
  half.lane_shift = std::countr_zero(lanes);
  half.turned = static_cast<int>(turned);
  half.tokens_of_warp = tokens_of_warp(from.shape[0], 32 / lanes, warps);
  half.serves_all = !scales.present() ||
                    (half.scales.outer_stride == 0 && half.scales.token_stride == 0 &&
                     (half.scales.head_stride == 0 || p.heads == 1) && half.scales.width == 1);
  if (scales.present()) {
    const std::int64_t runs = scales.shape[scales.rank - 1];
    half.one_scale = runs == 1;
    half.run_lanes = runs == 1 ? static_cast<int>(lanes) : static_cast<int>(half.chunks / runs);
    half.run_shift = std::countr_zero(static_cast<unsigned>(half.run_lanes));
  }
  return half;
}

// Warps of a token that convert a half.
inline int few_warps(const Half& half, int heads) {
  return half.per_token == 0 ? 0 : ((heads << half.lane_shift) + 31) / 32;
}

// Threads of a token in the kernels for few tokens, or 0 where they are not for the problem.
inline int few_threads(const AppendProblem& p, const RowsArguments& a) {
  const bool by_slots = p.slots.present();
  if (a.tokens > kFewTokens || (!p.sequences.cu_seqlens.present() && !by_slots)) return 0;
  if (p.cache.kind == KvCache::Kind::kRagged && !by_slots) return 0;
  if (p.sequences.rows > INT32_MAX) return 0;
  if (as_is(p)) {
    const int chunks = a.halves[0].per_token + a.halves[1].per_token;
    return chunks <= kFewThreads ? (chunks + 31) / 32 * 32 : 0;
  }
  const int threads = 32 * (few_warps(a.halves[0], a.heads) + few_warps(a.halves[1], a.heads));
  return threads <= kFewConvertThreads ? threads : 0;
}

inline bool one_scale_a_head(const TensorView& scales) {
  return scales.present() && scales.shape[scales.rank - 1] == 1;
}

// Every token's place in a tensor of the cache, counted in `unit` elements, has 32 bits.
inline bool has_near_places(const AppendProblem& p, const TensorView& view, std::int64_t unit) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31, kMostTokens = std::int64_t{1} << 30;
  const CacheTensor x(view, p.cache.kind);
  const CachePlaces places(p.cache);
  if (x.outer_stride < 0 || x.token_stride < 0 || x.outer_stride >= kMost * unit ||
      x.token_stride >= kMost * unit || places.outers > kMostTokens ||
      places.tokens > kMostTokens) {
    return false;
  }
  const double last = static_cast<double>(places.outers) * static_cast<double>(x.outer_stride) +
                      static_cast<double>(places.tokens) * static_cast<double>(x.token_stride);
  return last < static_cast<double>(kMost) * static_cast<double>(unit);
}

// What kernel_whole.cuh takes of what has a scale a head and is rotated.
inline bool has_whole_heads(const AppendProblem& p) {
  const auto row_fits = [](const TensorView& table) {
    return table.shape[0] <= 1 || (table.strides[0] >= 0 && table.strides[0] < (1 << 28));
  };
  return (p.sequences.cu_seqlens.present() || p.slots.present()) && p.value_dim == p.head_dim &&
         (p.head_dim == 128 || p.head_dim == 256) && 2 * p.cos.shape[1] == p.head_dim &&
         p.heads % 2 == 0 && p.heads <= 65536 && row_fits(p.cos) && row_fits(p.sin) &&
         has_near_places(p, p.cache.k, 8) && has_near_places(p, p.cache.v, 8) &&
         has_near_places(p, p.cache.k_scales, 1) && has_near_places(p, p.cache.v_scales, 1);
}

// `warps`: that run at once, where rows are converted.
inline RowsArguments rows_arguments(const AppendProblem& p, std::int64_t warps) {
  RowsArguments a;
  a.sequences = p.sequences;
  a.by_slots = p.slots.present();
  if (a.by_slots) {
    a.sequences.starts = {p.slots.data, p.slots.dtype, p.slots.stride};
    a.sequences.lengths = {p.positions.data, p.positions.dtype, p.positions.stride};
  }
  a.places = CachePlaces(p.cache);
  a.tokens = static_cast<int>(p.k.shape[0]);
  a.heads = static_cast<int>(p.heads);
  a.halves[0] = half_of(p, p.k, p.cache.k, p.cache.k_scales, rotated_pairs(p), warps);
  if (p.value_dim > 0) a.halves[1] = half_of(p, p.v, p.cache.v, p.cache.v_scales, 0, warps);
  a.paired = p.value_dim == p.head_dim;
  if (p.cos.present()) {
    a.cos = static_cast<const float*>(p.cos.data);
    a.sin = static_cast<const float*>(p.sin.data);
    a.cos_stride = p.cos.strides[0];
    a.sin_stride = p.sin.strides[0];
    a.positions = static_cast<int>(std::min<std::int64_t>(p.cos.shape[0], INT32_MAX));
    a.interleaved = p.interleaved;
  }
  a.capacity = capacity_of(p);
  const std::int64_t rows = std::max<std::int64_t>(p.sequences.rows, 1);
  a.by_row = device::Divider(static_cast<std::uint32_t>((a.tokens + rows - 1) / rows));
  a.by_page =
      device::Divider(static_cast<std::uint32_t>(std::max<std::int64_t>(a.places.tokens, 1)));
  a.key_warps = few_warps(a.halves[0], a.heads);
  return a;
}

}  // namespace hyla::attention::appending
