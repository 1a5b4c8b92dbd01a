// Attention of a block of many columns. They lie in the lanes, so that the softmax needs no sum
// over lanes; keys and values are brought near some at a time and meet all columns there. Compiled
// for each target (see foreach_target.h).
#if defined(HYLA_CPU_ATTENTION_BLOCK_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_BLOCK_H_
#undef HYLA_CPU_ATTENTION_BLOCK_H_
#else
#define HYLA_CPU_ATTENTION_BLOCK_H_
#endif

#include "cpu/attention_softmax.h"
#include "cpu/gemm.h"
#include "cpu/transpose.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// weights[key, column] = scale * (line of the key . query of the column), for kKeys keys.
template <class Op, int kKeys, int kVectors>
HYLA_INLINE void score_tile(const float* lines, std::int64_t elements, const float* queries,
                            std::int64_t width, F scale, float* weights) {
  F sums[kKeys][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kKeys; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) sums[m][n] = zero();
  }
  for (std::int64_t d = 0; d < elements; ++d) {
    typename Op::Vector columns[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) columns[n] = Op::load_b(queries + d * width + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kKeys; ++m) {
      const auto x = Op::load_a(lines + m * elements + d);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) sums[m][n] = Op::add_product(sums[m][n], x, columns[n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kKeys; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      store(mul(sums[m][n], scale), weights + m * width + n * kLanes);
    }
  }
}

// Pairs by vectors are as fast with fewer.
template <class Op>
constexpr std::int64_t most_columns() {
  return Op::kSummed == 1 ? kLargeBlockColumns : kBlockColumns;
}

template <class Op>
class Block {
  static constexpr std::int64_t kBlockKeys = 64;  // at a time
  static constexpr std::int64_t kColumns = most_columns<Op>();

 public:
  static std::int64_t scratch_floats(const attention::Queries& q) {
    return elements(q) * (kColumns + kBlockKeys) + kBlockKeys * kColumns +
           kBlockKeys / Op::kSummed * value_stride(q) + kColumns * stride(q) + 2 * line_floats(q);
  }

  Block(const attention::RunProblem& problem, const AttentionTile& tile, float* scratch)
      : p_(problem),
        tile_(tile),
        sight_(problem, tile),
        logits_(problem.queries),
        elements_(elements(p_.queries)),
        stride_(stride(p_.queries)),
        value_stride_(value_stride(p_.queries)),
        width_(whole(tile.count, kLanes)),
        once_(tile.count ==
              p_.queries.length(tile.row) * p_.queries.query_heads / p_.queries.kv_heads) {
    queries_ = scratch;
    keys_ = queries_ + elements_ * width_;
    weights_ = keys_ + kBlockKeys * elements_;
    values_ = weights_ + kBlockKeys * width_;
    out_ = values_ + kBlockKeys / Op::kSummed * value_stride_;
    line_ = out_ + width_ * stride_;
    float* end = line_ + 2 * line_floats(p_.queries);
    std::memset(scratch, 0, static_cast<std::size_t>(end - scratch) * sizeof(float));
    for (std::int64_t m = 0; m < width_; ++m) {
      highest_[m] = kNoLogit;
      sums_[m] = 0.0f;
    }
    load_queries();
  }

  void run(float* partials) {
    for (std::int64_t key = tile_.keys.begin; key < tile_.keys.end; key += kBlockKeys) {
      const std::int64_t count = std::min(kBlockKeys, tile_.keys.end - key);
      const std::int64_t padded = whole(count, 8);
      load_keys(key, count);
      score(padded);
      logits_.cap(weights_, padded * width_);
      hide(key, padded);
      soften(padded);
      load_values(key, padded);
      const Left left{weights_, 1, width_};
      const std::int64_t rows = whole(tile_.count, kTileRows);
      for (std::int64_t row = 0; row < rows; row += kTileRows) {
        if (once_) {
          ask(key + kBlockKeys + kBlockKeys * row / rows, kBlockKeys * kTileRows / rows + 1);
        }
        for_columns<Product<Op, true>::template Tile>(stride_, left, row, values_, value_stride_,
                                                      padded / Op::kSummed, out_, stride_);
      }
    }
    leave(p_, tile_, tile_.head, highest_, sums_, Lines{out_, stride_}, partials);
  }

 private:
  static std::int64_t elements(const attention::Queries& q) { return q.head_dim / Op::kSummed; }
  static std::int64_t stride(const attention::Queries& q) { return whole(q.value_dim, kLanes); }
  // Lines that are 1024 bytes apart share a few places of the first cache.
  static std::int64_t value_stride(const attention::Queries& q) {
    return stride(q) + (stride(q) % 256 == 0 ? kLanes : 0);
  }
  static std::int64_t line_floats(const attention::Queries& q) {
    return whole(std::max(q.head_dim, q.value_dim), kLanes);
  }

  void load_queries() {
    const attention::Queries& q = p_.queries;
    const std::int64_t group = q.query_heads / q.kv_heads;
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      const std::int64_t column = tile_.first + m, head = tile_.head * group + column % group;
      const std::int64_t token = q.begin(tile_.row) + column / group;
      load_line(q.q.data, q.q.dtype, token * q.q.strides[0] + head * q.q.strides[1], 1, q.head_dim,
                line_);
      store_elements(line_, q.head_dim, keys_);
      for (std::int64_t d = 0; d < elements_; ++d) {
        std::memcpy(queries_ + d * width_ + m, keys_ + d, sizeof(float));
      }
    }
  }
  static HYLA_INLINE void store_elements(const float* line, std::int64_t count, float* to) {
    if constexpr (Op::kSummed == 2) {
      store_all(line, count, reinterpret_cast<bfloat16*>(to));
    } else {
      std::memcpy(to, line, static_cast<std::size_t>(count) * sizeof(float));
    }
  }

  // Keys and values that are needed soon, into the L2 cache. Inlined, as it has no effect that a
  // compiler sees.
  HYLA_INLINE void ask(std::int64_t first, std::int64_t count) const {
    const std::int64_t end = std::min(first + count, tile_.keys.end);
    for (std::int64_t key = first; key < end; ++key) {
      const CacheRow at = cache_row(p_.cache, tile_.row, key);
      prefetch_cache_row(p_.cache.k, at, tile_.head, p_.queries.head_dim);
      prefetch_cache_row(p_.cache.v, at, tile_.head, p_.queries.value_dim);
    }
  }

  void load_keys(std::int64_t first, std::int64_t count) const {
    const TensorView& k = p_.cache.k;
    const std::int64_t dim = p_.queries.head_dim;
    for (std::int64_t i = 0; i < count; ++i) {
      const CacheRow at = cache_row(p_.cache, tile_.row, first + i);
      float* to = keys_ + i * elements_;
      if (Op::kSummed == 2 && k.dtype == DType::kBFloat16) {
        std::memcpy(to, static_cast<const bfloat16*>(k.data) + at.offset(k, tile_.head),
                    static_cast<std::size_t>(dim) * sizeof(bfloat16));
      } else {
        load_cache_row(k, p_.cache.k_scales, at, tile_.head, dim, line_);
        store_elements(line_, dim, to);
      }
    }
  }

  // Rows beyond the end are the last one, seen by nobody.
  CacheRow value_row(std::int64_t key) const {
    return cache_row(p_.cache, tile_.row, std::min(key, tile_.keys.end - 1));
  }
  void load_values(std::int64_t first, std::int64_t padded) const {
    const TensorView &v = p_.cache.v, &scales = p_.cache.v_scales;
    const std::int64_t dim = p_.queries.value_dim;
    if constexpr (Op::kSummed == 1) {
      for (std::int64_t i = 0; i < padded; ++i) {
        load_cache_row(v, scales, value_row(first + i), tile_.head, dim,
                       values_ + i * value_stride_);
      }
    } else {
      for (std::int64_t i = 0; i < padded; i += 2) {
        load_value_pairs(value_row(first + i), value_row(first + i + 1),
                         values_ + i / 2 * value_stride_);
      }
    }
  }
  void load_value_pairs(const CacheRow& even, const CacheRow& odd, float* to) const {
#if HYLA_TARGET_HAS_PAIRS
    const TensorView &v = p_.cache.v, &scales = p_.cache.v_scales;
    const std::int64_t dim = p_.queries.value_dim;
    if (v.dtype == DType::kBFloat16 && dim % (2 * kLanes) == 0) {
      const auto* data = static_cast<const bfloat16*>(v.data);
      const bfloat16 *a = data + even.offset(v, tile_.head), *b = data + odd.offset(v, tile_.head);
      for (std::int64_t d = 0; d < dim; d += 2 * kLanes) {
        P lower, upper;
        zip_pairs(load_pairs(a + d), load_pairs(b + d), lower, upper);
        store_pairs(lower, to + d);
        store_pairs(upper, to + d + kLanes);
      }
      return;
    }
    float* second = line_ + line_floats(p_.queries);
    load_cache_row(v, scales, even, tile_.head, dim, line_);
    load_cache_row(v, scales, odd, tile_.head, dim, second);
    for (std::int64_t d = 0; d < stride_; d += kLanes) {
      Op::store_pair(load(line_ + d), load(second + d), to + d);
    }
#else
    (void)even, (void)odd, (void)to;
#endif
  }

  template <int kKeys, int kVectors>
  void score_columns(std::int64_t keys, std::int64_t column) const {
    const F scale = set(logits_.scale);
    for (std::int64_t key = 0; key < keys; key += kKeys) {
      score_tile<Op, kKeys, kVectors>(keys_ + key * elements_, elements_, queries_ + column, width_,
                                      scale, weights_ + key * width_ + column);
    }
  }
  void score(std::int64_t keys) const {
    std::int64_t column = 0;
    for (; column + kTileVectors * kLanes <= width_; column += kTileVectors * kLanes) {
      score_columns<4, kTileVectors>(keys, column);
    }
    if (kTileVectors > 2 && column + 2 * kLanes <= width_) {
      score_columns<kLanes == 16 ? 8 : 4, 2>(keys, column);
      column += 2 * kLanes;
    }
    if (column < width_) score_columns<8, 1>(keys, column);
  }

  void hide(std::int64_t first, std::int64_t padded) const {
    if (first + padded <= tile_.keys.end && sight_.all_see(first, padded)) return;
    for (std::int64_t i = 0; i < padded; ++i) {
      const bool there = first + i < tile_.keys.end;
      for (std::int64_t m = 0; m < tile_.count; ++m) {
        if (there && sight_.sees(m, first + i)) continue;
        weights_[i * width_ + m] = -std::numeric_limits<float>::infinity();
      }
    }
  }

  // Logits become weights, in pairs where products are of pairs; sums and outputs follow a new
  // maximum.
  void soften(std::int64_t keys) {
    for (std::int64_t m = 0; m < width_; m += kLanes) {
      float* weights = weights_ + m;
      const F before = load(highest_ + m);
      const F most = max(largest_of(weights, keys, width_), before);
      if (any_greater(most, before)) rise(m, most);
      F total = load(sums_ + m);
      for (std::int64_t i = 0; i < keys; i += 2) {
        const F a = exp2(sub(load(weights + i * width_), most));
        const F b = exp2(sub(load(weights + (i + 1) * width_), most));
        total = add(total, add(a, b));
        if constexpr (Op::kSummed == 2) {
          Op::store_pair(a, b, weights + i / 2 * width_);
        } else {
          store(a, weights + i * width_);
          store(b, weights + (i + 1) * width_);
        }
      }
      store(total, sums_ + m);
    }
  }
  void rise(std::int64_t first, F most) {
    const F factor = exp2(sub(load(highest_ + first), most));
    store(most, highest_ + first);
    store(mul(load(sums_ + first), factor), sums_ + first);
    alignas(64) float factors[kLanes];
    store(factor, factors);
    for (int m = 0; m < kLanes; ++m) {
      if (factors[m] == 1.0f) continue;
      float* out = out_ + (first + m) * stride_;
      for (std::int64_t d = 0; d < stride_; d += kLanes) {
        store(mul(load(out + d), set(factors[m])), out + d);
      }
    }
  }

  const attention::RunProblem& p_;
  const AttentionTile& tile_;
  Sight sight_;
  Logits logits_;
  std::int64_t elements_, stride_, value_stride_,
      width_;       // of a query, of an output, columns in whole vectors
  bool once_;       // no other block of columns reads these keys: they come from memory
  float* queries_;  // [elements, width]
  float* keys_;     // [kBlockKeys, elements]
  float* weights_;  // [kBlockKeys, width]: logits, then weights
  float* values_;   // [kBlockKeys or pairs, stride]
  float* out_;      // [width, stride]
  float* line_;     // two of them
  alignas(64) float highest_[kColumns], sums_[kColumns];
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_BLOCK_H_
