// Attention of few columns: keys and values pass once through registers, as they lie in memory
// where their dtype allows it. Compiled for each target (see foreach_target.h).
//
// Logits are products along D. A vector of them is a few keys by kColumns columns, so that neither
// the softmax nor the products with values move anything between lanes. With pairs of bfloat16 the
// two keys of a pair are those whose weights lie in the same lane of neighbouring vectors.
#if defined(HYLA_CPU_ATTENTION_STREAM_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_STREAM_H_
#undef HYLA_CPU_ATTENTION_STREAM_H_
#else
#define HYLA_CPU_ATTENTION_STREAM_H_
#endif

#include "cpu/attention_softmax.h"
#include "cpu/gemm.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

constexpr std::int64_t kStreamKeys = 16;  // at a time
constexpr int kValueVectors = kLanes == 16 ? 2 : 1;
constexpr std::int64_t kVectorBytes = kLanes * 4;

template <class Op>
struct StreamDType {
  static constexpr DType kDType = DType::kFloat32;
};
#if HYLA_TARGET_HAS_PAIRS
template <>
struct StreamDType<Pairs> {
  static constexpr DType kDType = DType::kBFloat16;
};
#endif

// A line of floats as elements of products.
template <class Op>
HYLA_INLINE void store_elements(const float* line, std::int64_t count, float* to) {
  if constexpr (Op::kSummed == 2) {
    store_all(line, count, reinterpret_cast<bfloat16*>(to));
  } else {
    std::memcpy(to, line, static_cast<std::size_t>(count) * sizeof(float));
  }
}

// Walks over rows that are needed next, in the order of memory, two cache lines a step. They are
// asked into the L2 cache: the L1 cache has too few misses under way.
struct Ahead {
  static constexpr int kSteps = kStreamKeys / 2;  // at a time

  const char* const* rows;
  std::int64_t offset, bytes;  // of a row
  std::int64_t key = 0, at = 0;

  // Without branches, which would cut the products between them into pieces.
  HYLA_INLINE void take(const char* (&lines)[kSteps]) {
#pragma GCC unroll 8
    for (int i = 0; i < kSteps; ++i) {
      lines[i] = rows[key] + offset + at;
      at += 128;
      const bool end = at >= bytes;
      key += end && key + 1 < kStreamKeys ? 1 : 0;
      at = end ? 0 : at;
    }
  }
};

template <class Op, int kColumns>
class Stream {
 public:
  static constexpr int kKeys = kLanes / kColumns;             // whose logits share a vector
  static constexpr int kGroup = kColumns < 8 ? kColumns : 8;  // columns of a tile of outputs
  static constexpr int kBlock = kValueVectors * kLanes;       // values of it

  static std::int64_t groups(std::int64_t columns) { return (columns + kColumns - 1) / kColumns; }
  static std::int64_t key_elements(const attention::Queries& q) {
    return whole((q.head_dim + Op::kSummed - 1) / Op::kSummed, kLanes);
  }
  static std::int64_t value_floats(const attention::Queries& q) {
    return whole(q.value_dim, kBlock);
  }
  static std::int64_t scratch_floats(const attention::Queries& q, std::int64_t heads) {
    const std::int64_t columns = groups(kStreamColumns) * kColumns, vectors = heads * columns;
    return vectors * key_elements(q) + vectors * value_floats(q) + vectors * kStreamKeys +
           2 * heads * groups(kStreamColumns) * kLanes + columns * value_floats(q) +
           kStreamKeys * lines_stride(q) + line_floats(q);
  }

  Stream(const attention::RunProblem& problem, const AttentionTile& tile, float* scratch)
      : p_(problem),
        tile_(tile),
        sight_(problem, tile),
        logits_(problem.queries),
        groups_(groups(tile.count)),
        elements_(key_elements(p_.queries)),
        stride_(value_floats(p_.queries)),
        direct_(is_direct()) {
    const std::int64_t columns = tile.heads * groups_ * kColumns;
    queries_ = scratch;
    out_ = queries_ + columns * elements_;
    weights_ = out_ + columns * stride_;
    highest_ = weights_ + columns * kStreamKeys;
    sums_ = highest_ + tile.heads * groups_ * kLanes;
    in_order_ = sums_ + tile.heads * groups_ * kLanes;
    lines_ = in_order_ + groups_ * kColumns * stride_;
    line_ = lines_ + kStreamKeys * lines_stride(p_.queries);
    std::memset(scratch, 0, static_cast<std::size_t>(line_ - scratch) * sizeof(float));
    for (float* x = highest_; x < sums_; ++x) *x = kNoLogit;
    load_queries();
  }

  void run(float* partials) {
    int now = 0;
    addresses(tile_.keys.begin, now);
    for (std::int64_t key = tile_.keys.begin; key < tile_.keys.end; key += kStreamKeys) {
      // At the end the last row once more: asking for it costs nothing.
      addresses(std::min(key + kStreamKeys, tile_.keys.end - 1), 1 - now);
      score(key, keys_[now], keys_[1 - now]);
      logits_.cap(weights_, tile_.heads * groups_ * kColumns * kStreamKeys);
      hide(key);
      add_heads(key, values_[now], values_[1 - now]);
      now = 1 - now;
    }
    for (std::int64_t head = 0; head < tile_.heads; ++head) leave_head(head, partials);
  }

 private:
  using Vector = typename Op::Vector;

  static std::int64_t line_floats(const attention::Queries& q) {
    return whole(std::max(q.head_dim, q.value_dim), 2 * kLanes);
  }
  // Elements of a converted line of keys or values.
  static std::int64_t lines_stride(const attention::Queries& q) {
    return std::max(key_elements(q), value_floats(q) / Op::kSummed);
  }
  bool is_direct() const {
    const attention::Queries& q = p_.queries;
    return p_.cache.k.dtype == StreamDType<Op>::kDType && q.head_dim == elements_ * Op::kSummed &&
           q.value_dim == stride_;
  }
  static std::int64_t head_bytes(const TensorView& view) {
    return view.strides[view.rank - 2] * static_cast<std::int64_t>(size_of(view.dtype));
  }
  static std::int64_t row_bytes(const TensorView& view) {
    return view.shape[view.rank - 1] * static_cast<std::int64_t>(size_of(view.dtype));
  }

  void addresses(std::int64_t first, int which) {
    cache_addresses(p_.cache, tile_.row, first, kStreamKeys, tile_.keys.end, keys_[which],
                    values_[which]);
  }

  void load_queries() {
    const attention::Queries& q = p_.queries;
    const std::int64_t group = q.query_heads / q.kv_heads;
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      for (std::int64_t m = 0; m < tile_.count; ++m) {
        const std::int64_t column = tile_.first + m;
        const std::int64_t token = q.begin(tile_.row) + column / group;
        const std::int64_t query_head = (tile_.head + head) * group + column % group;
        load_line(q.q.data, q.q.dtype, token * q.q.strides[0] + query_head * q.q.strides[1], 1,
                  q.head_dim, line_);
        store_elements<Op>(line_, q.head_dim, lines_);
        float* to = queries_ + (head * groups_ + m / kColumns) * kColumns * elements_;
        for (std::int64_t j = 0; j < elements_; j += kLanes) {
          std::memcpy(to + j * kColumns + m % kColumns * kLanes, lines_ + j, kVectorBytes);
        }
      }
    }
  }

  // Rows of a head, converted.
  void convert(const TensorView& view, const TensorView& scales, std::int64_t first,
               std::int64_t head, std::int64_t dim, const char* const* from,
               const char** rows) const {
    const std::int64_t stride = lines_stride(p_.queries), used = dim / Op::kSummed;
    const std::int64_t offset = (tile_.head + head) * head_bytes(view);
    for (std::int64_t i = 0; i < kStreamKeys; ++i) {
      float* line = lines_ + i * stride;
      rows[i] = reinterpret_cast<const char*>(line);
      if (first + i >= tile_.keys.end) continue;  // some numbers; nobody sees them
      float* floats = Op::kSummed == 1 ? line : line_;
      load_stored(from[i] + offset, view.dtype, 0, dim, floats);
      if (scales.present()) {
        const CacheRow at = cache_row(p_.cache, tile_.row, first + i);
        apply_scales(scales, at, tile_.head + head, dim, floats);
      }
      if constexpr (Op::kSummed == 2) store_elements<Op>(line_, dim, line);
      // Keys and values share the lines.
      for (std::int64_t j = used; j < stride; ++j) line[j] = 0.0f;
    }
  }

  // Logits of kKeys keys by kColumns columns. `next`: rows to ask for.
  HYLA_INLINE F products(const char* const* rows, const char* const* next, std::int64_t offset,
                         const float* queries) const {
    F sums[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sums[i] = zero();
    const char *row[kKeys], *ahead[kKeys];
#pragma GCC unroll 4
    for (int r = 0; r < kKeys; ++r) {
      row[r] = rows[r] + offset;
      ahead[r] = next[r] + offset;
    }
    for (std::int64_t j = 0; j < elements_ * 4; j += kVectorBytes) {
      Vector keys[kKeys];
#pragma GCC unroll 4
      for (int r = 0; r < kKeys; ++r) {
        keys[r] = Op::load_b(reinterpret_cast<const float*>(row[r] + j));
        __builtin_prefetch(ahead[r] + j, 0, 2);
      }
#pragma GCC unroll 16
      for (int m = 0; m < kColumns; ++m) {
        const Vector query = Op::load_b(queries + m * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kKeys; ++r) {
          sums[r * kColumns + m] = Op::add_product(sums[r * kColumns + m], keys[r], query);
        }
      }
      queries += kColumns * kLanes;
    }
    return sum_each(sums);
  }

  HYLA_INLINE void score_keys(const char* const* rows, const char* const* next, std::int64_t offset,
                              std::int64_t head, std::int64_t key) const {
    for (std::int64_t group = 0; group < groups_; ++group) {
      const std::int64_t i = (head * groups_ + group) * kColumns;
      const F sums = products(rows + key, next + key, offset, queries_ + i * elements_);
      store(mul(sums, set(logits_.scale)), weights_ + i * kStreamKeys + key * kColumns);
    }
  }

  void score(std::int64_t first, const char* const* rows, const char* const* next) const {
    const TensorView& k = p_.cache.k;
    if (direct_) {
      // In the order of memory where tokens come before heads.
      for (std::int64_t key = 0; key < kStreamKeys; key += kKeys) {
        for (std::int64_t head = 0; head < tile_.heads; ++head) {
          score_keys(rows, next, (tile_.head + head) * head_bytes(k), head, key);
        }
      }
      return;
    }
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      const char* lines[kStreamKeys];
      convert(k, p_.cache.k_scales, first, head, p_.queries.head_dim, rows, lines);
      ask_for(next, k, head);
      for (std::int64_t key = 0; key < kStreamKeys; key += kKeys) {
        score_keys(lines, lines, 0, head, key);
      }
    }
  }
  void ask_for(const char* const* rows, const TensorView& view, std::int64_t head) const {
    for (std::int64_t i = 0; i < kStreamKeys; ++i) {
      const char* row = rows[i] + (tile_.head + head) * head_bytes(view);
      for (std::int64_t j = 0; j < row_bytes(view); j += 64) __builtin_prefetch(row + j, 0, 2);
    }
  }

  void hide(std::int64_t first) const {
    if (first + kStreamKeys <= tile_.keys.end && sight_.all_see(first, kStreamKeys)) return;
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      for (std::int64_t i = 0; i < kStreamKeys; ++i) {
        if (first + i < tile_.keys.end && sight_.sees(m, first + i)) continue;
        for (std::int64_t head = 0; head < tile_.heads; ++head) {
          const std::int64_t group = head * groups_ + m / kColumns;
          weights_[group * kColumns * kStreamKeys + i * kColumns + m % kColumns] =
              -std::numeric_limits<float>::infinity();
        }
      }
    }
  }

  // Logits of a group of columns become weights, in pairs where products are of pairs.
  void soften(std::int64_t group) {
    constexpr std::int64_t kFloats = kColumns * kStreamKeys;
    float* weights = weights_ + group * kFloats;
    float *highest = highest_ + group * kLanes, *sums = sums_ + group * kLanes;
    F top = load(weights);
    for (std::int64_t i = kLanes; i < kFloats; i += kLanes) top = max(load(weights + i), top);
    top = max_modulo<kColumns>(top);
    if (any_greater(top, load(highest))) rise(group, top);
    const F most = load(highest);
    F total = load(sums);
    for (std::int64_t i = 0; i < kFloats; i += 2 * kLanes) {
      const F a = exp2(sub(load(weights + i), most));
      const F b = exp2(sub(load(weights + i + kLanes), most));
      total = add(total, add(a, b));
      store_weights(a, b, weights + i / Op::kSummed);
    }
    store(total, sums);
  }
  static HYLA_INLINE void store_weights(F a, F b, float* to) {
    if constexpr (Op::kSummed == 2) {
      Op::store_pair(a, b, to);
    } else {
      store(a, to);
      store(b, to + kLanes);
    }
  }

  // A new maximum: sums and outputs follow.
  void rise(std::int64_t group, F top) {
    float *highest = highest_ + group * kLanes, *sums = sums_ + group * kLanes;
    const F before = load(highest), now = max(top, before);
    const F factor = exp2(sub(before, now));
    store(now, highest);
    store(mul(load(sums), factor), sums);
    alignas(64) float factors[kLanes];
    store(factor, factors);
    float* out = out_ + group * kColumns * stride_;
    for (std::int64_t d = 0; d < stride_; d += kBlock) {
      for (int m = 0; m < kColumns; ++m) {
        const F own = set(factors[m]);
        for (int n = 0; n < kBlock; n += kLanes) store(mul(load(out + n), own), out + n);
        out += kBlock;
      }
    }
  }

  void add_heads(std::int64_t first, const char* const* rows, const char* const* next) {
    const TensorView& v = p_.cache.v;
    // Heads that lie one after another are asked for as one row.
    const bool in_one = head_bytes(v) == row_bytes(v);
    Ahead ahead{next, tile_.head * head_bytes(v), row_bytes(v) * (in_one ? tile_.heads : 1)};
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      const std::int64_t offset = (tile_.head + head) * head_bytes(v);
      if (!in_one) ahead = {next, offset, row_bytes(v)};
      const char* lines[kStreamKeys];
      if (!direct_) {
        convert(v, p_.cache.v_scales, first, head, p_.queries.value_dim, rows, lines);
      }
      for (std::int64_t group = 0; group < groups_; ++group) {
        const std::int64_t i = head * groups_ + group;
        soften(i);
        add_values(direct_ ? rows : lines, direct_ ? offset : 0,
                   weights_ + i * kColumns * kStreamKeys, out_ + i * kColumns * stride_, ahead);
      }
    }
  }

  HYLA_INLINE void add_values(const char* const* rows, std::int64_t offset, const float* weights,
                              float* out, Ahead& ahead) const {
    for (std::int64_t d = 0; d < stride_; d += kBlock) {
      for (int m = 0; m < kColumns; m += kGroup) {
        add_block(rows, offset + d * (4 / Op::kSummed), weights + m, out, ahead);
        out += kGroup * kBlock;
      }
    }
  }

  // kGroup columns by kBlock values.
  HYLA_INLINE void add_block(const char* const* rows, std::int64_t offset, const float* weights,
                             float* out, Ahead& ahead) const {
    constexpr int kSteps = 2 * kKeys / Op::kSummed;  // of two vectors of weights
    const char* next[Ahead::kSteps];
    ahead.take(next);
    F sums[kGroup][kValueVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kGroup; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < kValueVectors; ++n) sums[m][n] = load(out + m * kBlock + n * kLanes);
    }
    for (std::int64_t key = 0; key < kStreamKeys; key += 2 * kKeys) {
#pragma GCC unroll 8
      for (int i = 0; i < kSteps; ++i) {
        Vector values[kValueVectors];
        load_values(rows + key, i, offset, values);
        if (i % (kSteps / kKeys) == 0) {
          const char* line = next[key / 2 + i / (kSteps / kKeys)];
          __builtin_prefetch(line, 0, 2);
          __builtin_prefetch(line + 64, 0, 2);
        }
#pragma GCC unroll 8
        for (int m = 0; m < kGroup; ++m) {
          const Vector x = Op::load_a(weights + (key / Op::kSummed + i) * kColumns + m);
#pragma GCC unroll 2
          for (int n = 0; n < kValueVectors; ++n) {
            sums[m][n] = Op::add_product(sums[m][n], x, values[n]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kGroup; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < kValueVectors; ++n) store(sums[m][n], out + m * kBlock + n * kLanes);
    }
  }

  static HYLA_INLINE void load_values(const char* const* rows, int step, std::int64_t offset,
                                      Vector (&values)[kValueVectors]) {
    if constexpr (Op::kSummed == 2) {
      const auto a = Op::load_b(reinterpret_cast<const float*>(rows[step] + offset));
      const auto b = Op::load_b(reinterpret_cast<const float*>(rows[step + kKeys] + offset));
      interleave_pairs(a, b, values[0], values[1]);
    } else {
#pragma GCC unroll 2
      for (int n = 0; n < kValueVectors; ++n) {
        values[n] =
            Op::load_b(reinterpret_cast<const float*>(rows[step] + offset + n * kVectorBytes));
      }
    }
  }

  // A block of values of one column, in their order.
  static HYLA_INLINE void store_block(const float* block, float* to) {
    if constexpr (Op::kSummed == 2) {
      // Four by four, as interleave_pairs left them.
      for (int i = 0; i < kLanes / 4; ++i) {
        std::memcpy(to + 8 * i, block + 4 * i, 4 * sizeof(float));
        std::memcpy(to + 8 * i + 4, block + kLanes + 4 * i, 4 * sizeof(float));
      }
    } else {
      std::memcpy(to, block, kBlock * sizeof(float));
    }
  }

  void leave_head(std::int64_t head, float* partials) const {
    float highest[kStreamColumns], sums[kStreamColumns];
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      const std::int64_t at = (head * groups_ + m / kColumns) * kLanes + m % kColumns;
      highest[m] = highest_[at];
      sums[m] = 0.0f;
      for (int r = 0; r < kKeys; ++r) sums[m] += sums_[at + r * kColumns];
    }
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      const float* group = out_ + (head * groups_ + m / kColumns) * kColumns * stride_;
      const std::int64_t column = m % kColumns;
      for (std::int64_t d = 0; d < stride_; d += kBlock) {
        const std::int64_t at = d * kColumns + column / kGroup * kGroup * kBlock;
        store_block(group + at + column % kGroup * kBlock, in_order_ + m * stride_ + d);
      }
    }
    leave(p_, tile_, tile_.head + head, highest, sums, in_order_, stride_, partials);
  }

  const attention::RunProblem& p_;
  const AttentionTile& tile_;
  Sight sight_;
  Logits logits_;
  std::int64_t groups_;     // of kColumns columns, of a head
  std::int64_t elements_;   // of a query or key, in whole vectors
  std::int64_t stride_;     // of an output
  bool direct_;             // rows as they lie in the cache
  float* queries_;          // [heads, groups, kColumns, elements]
  float* out_;              // [heads, groups, kColumns, stride]
  float* weights_;          // [heads, groups, kStreamKeys, kColumns]: logits, then weights
  float *highest_, *sums_;  // [heads, groups, kLanes], a column in every kColumns-th lane
  float* in_order_;         // [groups, kColumns, stride]: the outputs of a head
  float* lines_;            // [kStreamKeys, lines_stride]
  float* line_;
  const char *keys_[2][kStreamKeys], *values_[2][kStreamKeys];  // of head 0: now, and the next
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_STREAM_H_
