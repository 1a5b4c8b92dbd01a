#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/attention.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/attention_kernel.cpp"
#include "cpu/foreach_target.h"
#include "cpu/gemm.h"
#include "cpu/kv_lines.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Below every logit, and finite: no difference of two of them is NaN.
constexpr float kNoLogit = -3.0e38f;
#if HYLA_TARGET_HAS_PAIRS
constexpr std::int64_t kPairColumns = 16;
#endif

HYLA_INLINE std::int64_t whole_vectors(std::int64_t count) {
  return (count + kLanes - 1) / kLanes * kLanes;
}

// The scratch of one thread.
struct AttentionScratch {
  std::int64_t width, out_stride;  // columns, and values of a column, in whole vectors
  float* queries;                  // [D, width]
  float* lines;                    // [kAttentionKeys, D or DV]
  float* weights;                  // [kAttentionKeys, width]: logits, then their exponentials
  float* out;                      // [width, out_stride]
  float* line;                     // [D]

  static std::int64_t lines_floats(const attention::Queries& q) {
    return kAttentionKeys * std::max(whole_vectors(q.head_dim), whole_vectors(q.value_dim));
  }
  static std::int64_t floats(const attention::Queries& q) {
    return q.head_dim * kAttentionColumns + lines_floats(q) + kAttentionKeys * kAttentionColumns +
           kAttentionColumns * whole_vectors(q.value_dim) + whole_vectors(q.head_dim);
  }
  AttentionScratch(const attention::Queries& q, std::int64_t columns, float* scratch)
      : width(whole_vectors(columns)),
        out_stride(whole_vectors(q.value_dim)),
        queries(scratch),
        lines(queries + q.head_dim * kAttentionColumns),
        weights(lines + lines_floats(q)),
        out(weights + kAttentionKeys * kAttentionColumns),
        line(out + kAttentionColumns * out_stride) {}
};

// weights[key, column] = line of the key . query of the column, for kKeys keys.
template <int kKeys, int kVectors>
HYLA_INLINE void score_tile(const float* lines, std::int64_t line_stride, const float* queries,
                            std::int64_t width, std::int64_t dim, float* weights) {
  F sums[kKeys][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kKeys; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < kVectors; ++n) sums[m][n] = zero();
  }
  for (std::int64_t d = 0; d < dim; ++d) {
    F columns[kVectors];
#pragma GCC unroll 2
    for (int n = 0; n < kVectors; ++n) columns[n] = load(queries + d * width + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kKeys; ++m) {
      const F x = set(lines[m * line_stride + d]);
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) sums[m][n] = fma(x, columns[n], sums[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kKeys; ++m) {
#pragma GCC unroll 2
    for (int n = 0; n < kVectors; ++n) store(sums[m][n], weights + m * width + n * kLanes);
  }
}

template <int kVectors>
HYLA_INLINE void score_columns(const AttentionScratch& s, std::int64_t keys, std::int64_t dim,
                               std::int64_t line_stride, std::int64_t column) {
  constexpr int kKeys = kLanes == 16 || kVectors == 1 ? 8 : 4;
  std::int64_t key = 0;
  for (; key + kKeys <= keys; key += kKeys) {
    score_tile<kKeys, kVectors>(s.lines + key * line_stride, line_stride, s.queries + column,
                                s.width, dim, s.weights + key * s.width + column);
  }
  for (; key < keys; ++key) {
    score_tile<1, kVectors>(s.lines + key * line_stride, line_stride, s.queries + column, s.width,
                            dim, s.weights + key * s.width + column);
  }
}

inline void score(const AttentionScratch& s, std::int64_t keys, std::int64_t dim,
                  std::int64_t line_stride) {
  std::int64_t column = 0;
  for (; column + 2 * kLanes <= s.width; column += 2 * kLanes) {
    score_columns<2>(s, keys, dim, line_stride, column);
  }
  if (column < s.width) score_columns<1>(s, keys, dim, line_stride, column);
}

// out += A B over a tile of rows and columns.
template <int kVectors>
struct AddProduct {
  static HYLA_INLINE void tile(const Left& left, std::int64_t row, const float* b,
                               std::int64_t b_stride, std::int64_t steps, float* c,
                               std::int64_t c_stride, std::int64_t column) {
    F sums[kTileRows][kVectors];
    load_tile(c + row * c_stride + column, c_stride, sums);
    add_tile<Singles>(left, row, b + column, b_stride, steps, sums);
    store_tile(sums, c + row * c_stride + column, c_stride);
  }
};

// softcap * tanh(x / softcap)
HYLA_INLINE F capped(F x, float softcap) {
  const F e = exp(mul(x, set(2.0f / softcap)));
  return mul(set(softcap), sub(set(1.0f), div(set(2.0f), add(e, set(1.0f)))));
}

// One tile of columns while it walks over keys.
struct TileWalk {
  const attention::RunProblem& p;
  const AttentionTile& tile;
  AttentionScratch s;
  alignas(64) float highest[kAttentionColumns];
  alignas(64) float sums[kAttentionColumns];
  alignas(64) float factors[kAttentionColumns];
  attention::KeyRange seen[kAttentionColumns];
  attention::KeyRange by_all;  // keys that every column sees

  std::int64_t group() const { return p.queries.query_heads / p.queries.kv_heads; }

  void begin() {
    const attention::Queries& q = p.queries;
    const std::int64_t keys = p.cache.length(tile.row), position = keys - q.length(tile.row);
    by_all = {0, keys};
    std::memset(s.queries, 0, static_cast<std::size_t>(q.head_dim * s.width) * sizeof(float));
    for (std::int64_t m = 0; m < tile.count; ++m) {
      const std::int64_t column = tile.first + m, token = column / group();
      seen[m] = q.mask.visible(position + token, keys);
      by_all.begin = std::max(by_all.begin, seen[m].begin);
      by_all.end = std::min(by_all.end, seen[m].end);
      const std::int64_t offset = (q.begin(tile.row) + token) * q.q.strides[0] +
                                  (tile.head * group() + column % group()) * q.q.strides[1];
      load_line(q.q.data, q.q.dtype, offset, 1, q.head_dim, s.line);
      for (std::int64_t d = 0; d < q.head_dim; ++d) s.queries[d * s.width + m] = s.line[d];
    }
    for (std::int64_t m = 0; m < s.width; ++m) {
      highest[m] = kNoLogit;
      sums[m] = 0.0f;
    }
    std::memset(s.weights, 0, static_cast<std::size_t>(kAttentionKeys * s.width) * sizeof(float));
    std::memset(s.out, 0, static_cast<std::size_t>(s.width * s.out_stride) * sizeof(float));
  }

  void load_lines(const TensorView& values, const TensorView& scales, std::int64_t first,
                  std::int64_t count, std::int64_t dim, std::int64_t stride) const {
    for (std::int64_t i = 0; i < count; ++i) {
      load_cache_row(values, scales, cache_row(p.cache, tile.row, first + i), tile.head, dim,
                     s.lines + i * stride);
    }
  }

  void prefetch_lines(const TensorView& values, std::int64_t first, std::int64_t dim) const {
    const std::int64_t last = std::min(first + kAttentionKeys, tile.keys.end);
    for (std::int64_t key = first; key < last; ++key) {
      prefetch_cache_row(values, cache_row(p.cache, tile.row, key), tile.head, dim);
    }
  }

  void hide(std::int64_t first, std::int64_t count) const {
    if (by_all.begin <= first && first + count <= by_all.end) return;
    for (std::int64_t m = 0; m < tile.count; ++m) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t key = first + i;
        if (key < seen[m].begin || key >= seen[m].end) {
          s.weights[i * s.width + m] = -std::numeric_limits<float>::infinity();
        }
      }
    }
  }

  // Logits become weights; sums and outputs follow a new maximum.
  void soften(std::int64_t count) {
    for (std::int64_t m = 0; m < s.width; m += kLanes) {
      float* weights = s.weights + m;
      const F before = load(highest + m);
      F now = before;
      for (std::int64_t i = 0; i < count; ++i) now = max(load(weights + i * s.width), now);
      const F factor = exp(sub(before, now));
      F total = mul(load(sums + m), factor);
      for (std::int64_t i = 0; i < count; ++i) {
        const F weight = exp(sub(load(weights + i * s.width), now));
        total = add(total, weight);
        store(weight, weights + i * s.width);
      }
      store(now, highest + m);
      store(factor, factors + m);
      store(total, sums + m);
    }
    for (std::int64_t m = 0; m < tile.count; ++m) {
      if (factors[m] == 1.0f) continue;
      const F factor = set(factors[m]);
      float* out = s.out + m * s.out_stride;
      for (std::int64_t d = 0; d < s.out_stride; d += kLanes) {
        store(mul(load(out + d), factor), out + d);
      }
    }
  }

#if HYLA_TARGET_HAS_PAIRS
  // Few columns fill no vector of them: then queries and keys meet along D, as they lie in memory.
  bool meets_pairs() const {
    const attention::Queries& q = p.queries;
    return tile.count <= kPairColumns && q.q.dtype == DType::kBFloat16 &&
           p.cache.k.dtype == DType::kBFloat16 && q.head_dim % (2 * kLanes) == 0;
  }
  const bfloat16* query(std::int64_t column) const {
    const attention::Queries& q = p.queries;
    const std::int64_t token = q.begin(tile.row) + column / group();
    return static_cast<const bfloat16*>(q.q.data) + token * q.q.strides[0] +
           (tile.head * group() + column % group()) * q.q.strides[1];
  }
  void score_pairs(std::int64_t first, std::int64_t count) const {
    const bfloat16* queries[kPairColumns];
    for (std::int64_t m = 0; m < kPairColumns; ++m) {
      queries[m] = query(tile.first + std::min(m, tile.count - 1));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const CacheRow at = cache_row(p.cache, tile.row, first + i);
      const bfloat16* key =
          static_cast<const bfloat16*>(p.cache.k.data) + at.offset(p.cache.k, tile.head);
      for (std::int64_t m = 0; m < tile.count; m += 4) {
        F a = zero(), b = zero(), c = zero(), d = zero();
        for (std::int64_t j = 0; j < p.queries.head_dim; j += 2 * kLanes) {
          const P x = load_pairs(key + j);
          a = dot_pairs(a, x, load_pairs(queries[m] + j));
          b = dot_pairs(b, x, load_pairs(queries[m + 1] + j));
          c = dot_pairs(c, x, load_pairs(queries[m + 2] + j));
          d = dot_pairs(d, x, load_pairs(queries[m + 3] + j));
        }
        sum4(a, b, c, d, s.weights + i * s.width + m);
      }
    }
  }
#endif

  void score_keys(std::int64_t first, std::int64_t count) const {
#if HYLA_TARGET_HAS_PAIRS
    if (meets_pairs()) return score_pairs(first, count);
#endif
    const std::int64_t dim = p.queries.head_dim, stride = whole_vectors(dim);
    load_lines(p.cache.k, p.cache.k_scales, first, count, dim, stride);
    score(s, count, dim, stride);
  }

  void scale_logits(std::int64_t count) const {
    const F scale = set(static_cast<float>(p.queries.scale));
    const auto softcap = static_cast<float>(p.queries.softcap);
    for (std::int64_t i = 0; i < count * s.width; i += kLanes) {
      const F logit = mul(load(s.weights + i), scale);
      store(softcap > 0 ? capped(logit, softcap) : logit, s.weights + i);
    }
  }

  void run() {
    begin();
    const attention::Queries& q = p.queries;
    const std::int64_t rows = (tile.count + kTileRows - 1) / kTileRows * kTileRows;
    for (std::int64_t key = tile.keys.begin; key < tile.keys.end; key += kAttentionKeys) {
      const std::int64_t count = std::min(kAttentionKeys, tile.keys.end - key);
      prefetch_lines(p.cache.v, key, q.value_dim);
      score_keys(key, count);
      scale_logits(count);
      hide(key, count);
      soften(count);
      load_lines(p.cache.v, p.cache.v_scales, key, count, q.value_dim, s.out_stride);
      prefetch_lines(p.cache.k, key + kAttentionKeys, q.head_dim);
      const Left left{s.weights, 1, s.width};
      for (std::int64_t row = 0; row < rows; row += kTileRows) {
        for_columns<AddProduct>(s.out_stride, left, row, s.lines, s.out_stride, count, s.out,
                                s.out_stride);
      }
    }
  }
};

// Columns of which all keys are known: outputs and LSE.
inline void finish(const attention::RunProblem& p, const AttentionTile& tile, float* highest,
                   float* sums, float* out, std::int64_t out_stride) {
  const attention::Queries& q = p.queries;
  const std::int64_t group = q.query_heads / q.kv_heads;
  for (std::int64_t m = 0; m < tile.count; ++m) {
    const std::int64_t token = q.begin(tile.row) + (tile.first + m) / group;
    const std::int64_t head = tile.head * group + (tile.first + m) % group;
    float* values = out + m * out_stride;
    const bool any = highest[m] > kNoLogit;
    if (any && q.sinks.present()) {
      float sink;
      load_line(q.sinks.data, q.sinks.dtype, head * q.sinks.strides[0], 1, 1, &sink);
      const float most = std::max(highest[m], sink);
      const float factor = std::exp(highest[m] - most);
      sums[m] = sums[m] * factor + std::exp(sink - most);
      highest[m] = most;
      for (std::int64_t d = 0; d < q.value_dim; ++d) values[d] *= factor;
    }
    const F inverse = set(any ? 1.0f / sums[m] : 0.0f);
    for (std::int64_t d = 0; d < out_stride; d += kLanes) {
      store(mul(load(values + d), inverse), values + d);
    }
    store_line(values, q.value_dim, q.out.data, q.out.dtype,
               token * q.out.strides[0] + head * q.out.strides[1], 1);
    if (q.lse.present()) {
      static_cast<float*>(q.lse.data)[token * q.lse.strides[0] + head * q.lse.strides[1]] =
          any ? highest[m] + std::log(sums[m]) : -std::numeric_limits<float>::infinity();
    }
  }
}

std::int64_t attention_scratch(const attention::RunProblem& p) {
  return AttentionScratch::floats(p.queries);
}

void run_tile(const attention::RunProblem& p, const AttentionTile& tile, float* scratch,
              float* partials) {
  TileWalk walk{p, tile, AttentionScratch(p.queries, tile.count, scratch), {}, {}, {}, {}, {}};
  walk.run();
  const AttentionScratch& s = walk.s;
  if (tile.splits == 1) return finish(p, tile, walk.highest, walk.sums, s.out, s.out_stride);
  float* to = partials + (tile.partial + tile.split) * partial_floats(p.queries);
  std::memcpy(to, walk.highest, sizeof walk.highest);
  std::memcpy(to + kAttentionColumns, walk.sums, sizeof walk.sums);
  std::memcpy(to + 2 * kAttentionColumns, s.out,
              static_cast<std::size_t>(tile.count * s.out_stride) * sizeof(float));
}

// The first partial becomes the whole.
void join_tiles(const attention::RunProblem& p, const AttentionTile& tile, float* partials) {
  const std::int64_t size = partial_floats(p.queries);
  const std::int64_t stride = whole_vectors(p.queries.value_dim);
  float* whole = partials + tile.partial * size;
  float *highest = whole, *sums = whole + kAttentionColumns, *out = sums + kAttentionColumns;
  for (std::int64_t m = 0; m < tile.count; ++m) {
    float most = highest[m];
    for (std::int64_t i = 1; i < tile.splits; ++i) most = std::max(most, whole[i * size + m]);
    float total = 0.0f;
    for (std::int64_t i = 0; i < tile.splits; ++i) {
      const float* part = whole + i * size;
      const float factor = std::exp(part[m] - most);
      total += part[kAttentionColumns + m] * factor;
      const float* values = part + 2 * kAttentionColumns + m * stride;
      float* sum = out + m * stride;
      for (std::int64_t d = 0; d < stride; d += kLanes) {
        const F before = i == 0 ? zero() : load(sum + d);
        store(fma(load(values + d), set(factor), before), sum + d);
      }
    }
    highest[m] = most;
    sums[m] = total;
  }
  finish(p, tile, highest, sums, out, stride);
}

extern const AttentionKernels kAttentionKernels;
const AttentionKernels kAttentionKernels = {attention_scratch, run_tile, join_tiles};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const AttentionKernels& attention_kernels(Target target) {
  return HYLA_TARGET_SELECT(kAttentionKernels);
}
}  // namespace hyla::cpu
#endif
