// Attention of few columns: keys and values pass once through registers, as they lie in memory
// where their dtype allows it (attention_tiles.h). Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_ATTENTION_STREAM_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_STREAM_H_
#undef HYLA_CPU_ATTENTION_STREAM_H_
#else
#define HYLA_CPU_ATTENTION_STREAM_H_
#endif

#include "cpu/attention_softmax.h"
#include "cpu/attention_tiles.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// A line of floats as elements of products.
template <class Op>
HYLA_INLINE void store_elements(const float* line, std::int64_t count, float* to) {
  if constexpr (Op::kSummed == 2) {
    store_all(line, count, reinterpret_cast<bfloat16*>(to));
  } else {
    std::memcpy(to, line, static_cast<std::size_t>(count) * sizeof(float));
  }
}

// kByColumn: for processors that lose requests in crowds, see StreamTiles.
template <class Op, int kColumns, bool kByColumn = false>
class Stream {
  using Tiles = StreamTiles<Op, kColumns, kByColumn>;
  static constexpr int kKeys = Tiles::kKeys, kGroup = Tiles::kGroup, kBlock = Tiles::kBlock;

 public:
  static constexpr std::int64_t kStreamKeys = Tiles::kStreamKeys;

  static std::int64_t groups(std::int64_t columns) { return (columns + kColumns - 1) / kColumns; }
  static std::int64_t key_elements(const attention::Queries& q) {
    return whole((q.head_dim + Op::kSummed - 1) / Op::kSummed, kLanes);
  }
  static std::int64_t query_elements(const attention::Queries& q) {
    return Tiles::kQueryVectors * key_elements(q);
  }
  static std::int64_t value_floats(const attention::Queries& q) {
    return whole(q.value_dim, kBlock);
  }
  static std::int64_t scratch_floats(const attention::Queries& q, std::int64_t heads) {
    const std::int64_t columns = groups(kStreamColumns) * kColumns, vectors = heads * columns;
    return vectors * query_elements(q) + vectors * value_floats(q) + vectors * kStreamKeys +
           heads * groups(kStreamColumns) * kLanes + vectors * kLanes + columns * value_floats(q) +
           kStreamKeys * lines_stride(q) + line_floats(q);
  }

  // `next`: null, or the tile whose keys and values are asked for at the end of this one.
  Stream(const attention::RunProblem& problem, const AttentionTile& tile, const AttentionTile* next,
         float* scratch)
      : p_(problem),
        tile_(tile),
        next_(next != nullptr && next->keys.begin < next->keys.end ? next : nullptr),
        sight_(problem, tile),
        logits_(problem.queries),
        groups_(groups(tile.count)),
        elements_(key_elements(p_.queries)),
        stride_(value_floats(p_.queries)),
        direct_(Kinds::of(p_.cache.k.dtype, [&]<class Rows>() { return is_direct<Rows>(); })),
        split_(direct_ && Kinds::of(p_.cache.k.dtype, []<class Rows>() { return Rows::kSplit; })),
        near_(kByColumn && direct_),
        sooner_keys_(rows_of(kSooner, p_.cache.k)),
        later_keys_(rows_of(kLater, p_.cache.k)),
        sooner_values_(rows_of(kSooner, p_.cache.v)),
        later_values_(rows_of(kLater, p_.cache.v)) {
    const std::int64_t columns = tile.heads * groups_ * kColumns;
    queries_ = scratch;
    out_ = queries_ + columns * query_elements(p_.queries);
    weights_ = out_ + columns * stride_;
    highest_ = weights_ + columns * kStreamKeys;
    sums_ = highest_ + tile.heads * groups_ * kLanes;
    in_order_ = sums_ + columns * kLanes;
    lines_ = in_order_ + groups_ * kColumns * stride_;
    line_ = lines_ + kStreamKeys * lines_stride(p_.queries);
    // Zeros where columns or the ends of lines are padding, and where sums begin.
    std::memset(scratch, 0, static_cast<std::size_t>(weights_ - scratch) * sizeof(float));
    std::memset(sums_, 0, static_cast<std::size_t>(in_order_ - sums_) * sizeof(float));
    std::memset(lines_, 0,
                static_cast<std::size_t>((direct_ ? 1 : kStreamKeys) * lines_stride(p_.queries)) *
                    sizeof(float));
    for (float* x = highest_; x < sums_; ++x) *x = kNoLogit;
    load_queries();
  }

  void run(float* partials) {
    const auto walk_direct = [&]<class Rows>() {
      walk<Rows, true>();
      return true;
    };
    if (direct_) {
      Kinds::of(p_.cache.k.dtype, walk_direct);
    } else {
      walk<typename Kinds::Converted, false>();
    }
    leave_all(partials);
  }

 private:
  using Kinds = RowsOf<Op>;
  static constexpr bool kHalves = Tiles::template kByHalves<BfloatRows>;
  using Asking = std::conditional_t<Tiles::kByTwos, AskedInOrder, typename Tiles::Asking>;
  // How far what is asked for into the first cache is from what is worked on: enough for memory and
  // beyond the tile at hand, and so little that it stays until its turn comes.
  struct Distance {
    std::int64_t rows, bytes;  // at least
  };
  static constexpr Distance kSooner{12, 6 << 10}, kLater{20, 10 << 10};
  static constexpr std::int64_t kValueKeys = Tiles::kValueKeys;

  static std::int64_t line_floats(const attention::Queries& q) {
    return whole(std::max(q.head_dim, q.value_dim), 2 * kLanes);
  }
  // Elements of a converted line of keys or values.
  static std::int64_t lines_stride(const attention::Queries& q) {
    return std::max(key_elements(q), value_floats(q) / Op::kSummed);
  }
  // Whole vectors of keys and values, which need not be converted.
  template <class Rows>
  bool is_direct() const {
    const attention::Queries& q = p_.queries;
    return q.value_dim == stride_ && q.head_dim % (kVectorBytes / Rows::kBytes) == 0 &&
           one_each(p_.cache.k_scales) && one_each(p_.cache.v_scales);
  }
  // In rows, of those whose addresses are known.
  std::int64_t rows_of(const Distance& distance, const TensorView& view) const {
    const std::int64_t rows = distance.bytes / (tile_.heads * row_bytes(view));
    return std::clamp(rows, distance.rows, kStreamKeys);
  }
  // Of keys from `first` on, of this tile or of one whose turn is next; `round`: 0 or, the next, 1.
  void addresses(const AttentionTile& tile, std::int64_t first, int round) {
    addresses_of(p_.cache.k, tile, first, keys_ + round * kStreamKeys);
    addresses_of(p_.cache.v, tile, first, values_ + round * kStreamKeys);
  }
  void addresses_of(const TensorView& view, const AttentionTile& tile, std::int64_t first,
                    const char** rows) {
    row_addresses(p_.cache, view, tile.row, first, kStreamKeys, tile.keys.end, rows);
    const std::int64_t heads = (tile.head - tile_.head) * head_bytes(view);
    for (std::int64_t i = 0; heads != 0 && i < kStreamKeys; ++i) rows[i] += heads;
    // Rows that are asked for soon bring their pages, without a crowd of requests at once.
    if (!near_) prefetch_pages(rows, kStreamKeys, tile_.head * head_bytes(view));
  }
  // Those that follow on `key` and its round, to be asked for.
  void next_addresses(std::int64_t key) {
    const std::int64_t later = key + kStreamKeys;
    if (later < tile_.keys.end) return addresses(tile_, later, 1);
    if (next_ != nullptr) return addresses(*next_, next_->keys.begin, 1);
    addresses(tile_, tile_.keys.end - 1, 1);  // once more: asking for it costs nothing
  }

  // kDirect: rows as they lie in the cache, otherwise converted.
  template <class Rows, bool kDirect>
  void walk() {
    addresses(tile_, tile_.keys.begin, 0);
    for (std::int64_t key = tile_.keys.begin; key < tile_.keys.end; key += kStreamKeys) {
      next_addresses(key);
      score<Rows, kDirect>(key);
      logits_.cap(weights_, tile_.heads * groups_ * kColumns * kStreamKeys);
      hide(key);
      add_heads<Rows, kDirect>(key);
      std::copy_n(keys_ + kStreamKeys, kStreamKeys, keys_);
      std::copy_n(values_ + kStreamKeys, kStreamKeys, values_);
    }
  }

  // The scales of these keys of a head.
  void load_scales(const TensorView& scales, std::int64_t first, std::int64_t head,
                   float* to) const {
    const char* rows[kStreamKeys];
    row_addresses(p_.cache, scales, tile_.row, first, kStreamKeys, tile_.keys.end, rows);
    const std::int64_t offset = (tile_.head + head) * head_bytes(scales);
    for (std::int64_t i = 0; i < kStreamKeys; ++i) {
      std::memcpy(to + i, rows[i] + offset, sizeof(float));
    }
  }

  void load_queries() {
    const attention::Queries& q = p_.queries;
    const std::int64_t group = q.query_heads / q.kv_heads;
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      for (std::int64_t m = 0; m < tile_.count; ++m) {
        const std::int64_t column = tile_.first + m;
        const std::int64_t token = q.begin(tile_.row) + column / group;
        const std::int64_t query_head = (tile_.head + head) * group + column % group;
        const std::int64_t at = token * q.q.strides[0] + query_head * q.q.strides[1];
        if constexpr (Op::kSummed == 2) {  // bfloat16, as they are
          std::memcpy(lines_, static_cast<const bfloat16*>(q.q.data) + at,
                      static_cast<std::size_t>(q.head_dim) * sizeof(bfloat16));
        } else {
          load_line(q.q.data, q.q.dtype, at, 1, q.head_dim, lines_);
        }
        if (split_) order_split(lines_, elements_, kHalves ? kLanes / 2 : kLanes);
        if constexpr (Op::kSummed == 2) {
          if (direct_ && size_of(p_.cache.k.dtype) == 1) order_as_bytes(lines_, elements_);
        }
        const std::int64_t group_at = (head * groups_ + m / kColumns) * kColumns;
        Tiles::place_query(lines_, elements_, m % kColumns,
                           queries_ + group_at * query_elements(q));
      }
    }
  }

#if HYLA_TARGET_HAS_PAIRS
  // A row of bytes with scales that whole vectors share; false where it is something else.
  bool convert_bytes(const TensorView& view, const TensorView& scales, std::int64_t key,
                     std::int64_t head, std::int64_t dim, const char* from, float* to) const {
    const bool e4m3 = view.dtype == DType::kFloat8E4M3;
    if ((!e4m3 && view.dtype != DType::kInt8) || !scales.present()) return false;
    const std::int64_t runs = scales.shape[scales.rank - 1];
    if (dim % 64 != 0 || dim / runs % 32 != 0 || dim / 2 != lines_stride(p_.queries)) return false;
    const CacheRow at = cache_row(p_.cache, tile_.row, key);
    const RunScales own{
        static_cast<const float*>(scales.data) + at.offset(scales, tile_.head + head),
        scales.strides[scales.rank - 1], dim / runs};
    e4m3 ? scale_bytes<E4m3Bytes>(from, dim, own, to) : scale_bytes<Int8Bytes>(from, dim, own, to);
    return true;
  }
#endif

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
#if HYLA_TARGET_HAS_PAIRS
      if constexpr (Op::kSummed == 2) {
        if (convert_bytes(view, scales, first + i, head, dim, from[i] + offset, line)) continue;
      }
#endif
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

  // `scales`: one for each of the kStreamKeys keys, or null.
  template <class Rows>
  HYLA_INLINE void score_keys(const char* const* rows, std::int64_t offset, std::int64_t head,
                              std::int64_t key, const float* scales, Asking& asked) const {
    for (std::int64_t group = 0; group < groups_; ++group) {
      const std::int64_t i = (head * groups_ + group) * kColumns;
#if HYLA_TARGET_HAS_PAIRS
      if constexpr (kByColumn) {
        const F factor = scales != nullptr ? load_half_twice(scales + key) : set(logits_.scale);
        const auto score_eight = [&]<bool kLarge>(const Later<kLarge>& later) {
          Tiles::template logits_by_column<Rows>(RowsAt{rows + key, offset},
                                                 queries_ + i * elements_, elements_, later, factor,
                                                 weights_ + i * kStreamKeys + key);
        };
        near_ ? score_eight(soon_by_keys(head, key)) : score_eight(later_by_keys(head, key));
        continue;
      }
      if constexpr (Tiles::kByTwos) {
        F first, second;
        Tiles::template products_by_twos<Rows>(rows + key, offset,
                                               queries_ + i * Tiles::kQueryVectors * elements_,
                                               elements_, asked, first, second);
        float* to = weights_ + i * kStreamKeys + key * kColumns;
        store(mul(first, scale_of(scales, key / kKeys)), to);
        store(mul(second, scale_of(scales, key / kKeys + 1)), to + kLanes);
        continue;
      }
#endif
#if HYLA_TARGET_HAS_AVX512
      if constexpr (Tiles::template kByHalves<Rows>) {
        F first, second;
        Tiles::template products_by_halves<Rows>(rows + key, offset, queries_ + i * elements_,
                                                 elements_, asked, first, second);
        const F scale = set(logits_.scale);
        float* to = weights_ + i * kStreamKeys + key * kColumns;
        store(mul(first, scale), to);
        store(mul(second, scale), to + kLanes);
        continue;
      }
#endif
      if constexpr (!Tiles::kByTwos) {
        const F sums = Tiles::template products<Rows>(rows + key, offset, queries_ + i * elements_,
                                                      elements_, asked);
        const F scale = scale_of(Rows::kBytes == 1 ? scales : nullptr, key / kKeys);
        store(mul(sums, scale), weights_ + i * kStreamKeys + key * kColumns);
      }
    }
  }

  // Of a vector of logits. `scales`: one for each of the kStreamKeys keys, or null.
  HYLA_INLINE F scale_of(const float* scales, std::int64_t vector) const {
    return scales == nullptr ? set(logits_.scale) : scales_of(scales, vector);
  }

  // Those of a vector of logits.
  static HYLA_INLINE F scales_of(const float* scales, std::int64_t vector) {
    const std::int64_t first = vector * kKeys;
    if constexpr (kKeys == 1) return set(scales[first]);
#if HYLA_TARGET_HAS_AVX512
    return spread<kColumns>(load(scales + first / kLanes * kLanes),
                            static_cast<int>(first % kLanes));
#else
    alignas(64) float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = scales[first + i / kColumns];
    return load(lanes);
#endif
  }

  RowsAt keys_of(std::int64_t head, std::int64_t key) const {
    return {keys_ + key, (tile_.head + head) * head_bytes(p_.cache.k)};
  }
  RowsAt values_of(std::int64_t head, std::int64_t key) const {
    return {values_ + key, (tile_.head + head) * head_bytes(p_.cache.v)};
  }
  // What the products of keys ask for: the next keys, and once more the values of these; near_:
  // keys that come soon.
  Asking asked_by_keys(std::int64_t head) const {
    if constexpr (Tiles::kByTwos) {
      return {runs_of(p_.cache.k, keys_ + kStreamKeys), runs_of(p_.cache.v, values_)};
    } else {
      return {keys_of(head, kStreamKeys), values_of(head, 0)};
    }
  }
  Later<false> later_by_keys(std::int64_t head, std::int64_t key) const {
    return {keys_of(head, key + kStreamKeys), values_of(head, key)};
  }
  Later<true> soon_by_keys(std::int64_t head, std::int64_t key) const {
    return {keys_of(head, key + later_keys_), keys_of(head, key + sooner_keys_)};
  }
  // The same of values, and once more the next keys.
  AskedInOrder asked_by_values() const {
    return {runs_of(p_.cache.v, values_ + kStreamKeys), runs_of(p_.cache.k, keys_ + kStreamKeys)};
  }
  RunsAhead runs_of(const TensorView& view, const char* const* rows) const {
    return {view, rows, kStreamKeys, tile_.head, tile_.heads};
  }
  Later<false> later_by_values(std::int64_t head, std::int64_t key) const {
    return {values_of(head, key + kStreamKeys), keys_of(head, key + kStreamKeys)};
  }
  Later<true> soon_by_values(std::int64_t head, std::int64_t key) const {
    return {values_of(head, key + later_values_), values_of(head, key + sooner_values_)};
  }

  // Keys from `first` on.
  template <class Rows, bool kDirect>
  void score(std::int64_t first) const {
    constexpr std::int64_t kTileKeys = Tiles::template kTileKeys<Rows>;
    const TensorView &k = p_.cache.k, &stored = p_.cache.k_scales;
    const char* const* rows = keys_;
    const std::int64_t lines = kTileKeys * row_bytes(k) / kLine;  // of a tile of keys
    Asking asked = asked_by_keys(0);
    if (!Tiles::kByTwos && kDirect && !stored.present() && head_bytes(k) == row_bytes(k)) {
      // In the order of memory where tokens come before heads.
      for (std::int64_t key = 0; key < kStreamKeys; key += kTileKeys) {
        for (std::int64_t head = 0; head < tile_.heads; ++head, asked.skip(lines)) {
          score_keys<Rows>(rows, (tile_.head + head) * head_bytes(k), head, key, nullptr, asked);
        }
      }
      return;
    }
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      const std::int64_t offset = (tile_.head + head) * head_bytes(k);
      const char* converted[kStreamKeys];
      alignas(64) float scales[kStreamKeys];
      const bool scaled = kDirect && stored.present();
      if (scaled) {
        load_scales(stored, first, head, scales);
        for (float& scale : scales) scale *= logits_.scale;
      }
      if (!kDirect) convert(k, stored, first, head, p_.queries.head_dim, rows, converted);
      if constexpr (!Tiles::kByTwos) asked = asked_by_keys(head);
      for (std::int64_t key = 0; key < kStreamKeys; key += kTileKeys, asked.skip(lines)) {
        score_keys<Rows>(kDirect ? rows : converted, kDirect ? offset : 0, head, key,
                         scaled ? scales : nullptr, asked);
      }
    }
  }

  void hide(std::int64_t first) const {
    if (first + kStreamKeys <= tile_.keys.end && sight_.all_see(first, kStreamKeys)) return;
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      for (std::int64_t i = 0; i < kStreamKeys; ++i) {
        if (first + i < tile_.keys.end && sight_.sees(m, first + i)) continue;
        for (std::int64_t head = 0; head < tile_.heads; ++head) {
          const std::int64_t group = head * groups_ + m / kColumns;
          weights_[group * kColumns * kStreamKeys + Tiles::logit_at(i, m % kColumns)] =
              -std::numeric_limits<float>::infinity();
        }
      }
    }
  }

#if HYLA_TARGET_HAS_PAIRS
  // The same where vectors are of one column.
  void soften_columns(std::int64_t group, const float* scales) {
    for (int m = 0; m < kColumns; ++m) {
      float* weights = weights_ + group * kColumns * kStreamKeys + m * kStreamKeys;
      float *highest = highest_ + group * kLanes + m,
            *sums = sums_ + (group * kColumns + m) * kLanes;
      F top = load(weights);
#pragma GCC unroll 4
      for (std::int64_t i = kLanes; i < kStreamKeys; i += kLanes) top = max(load(weights + i), top);
      if (any_greater(top, set(*highest))) rise_column(group, m, max_lane(top));
      const F most = set(*highest);
      F total = load(sums);
#pragma GCC unroll 2
      for (std::int64_t i = 0; i < kStreamKeys; i += 2 * kLanes) {
        F a = exp2(sub(load(weights + i), most));
        F b = exp2(sub(load(weights + i + kLanes), most));
        total = add(total, add(a, b));
        if (scales != nullptr) {
          a = mul(a, load(scales + i));
          b = mul(b, load(scales + i + kLanes));
        }
        store_in_order(a, b, weights + i / 2);
      }
      store(total, sums);
    }
  }
  void rise_column(std::int64_t group, std::int64_t column, float top) {
    float* highest = highest_ + group * kLanes + column;
    float* sums = sums_ + (group * kColumns + column) * kLanes;
    const float now = std::max(top, *highest);
    const F factor = exp2(set(*highest - now));
    *highest = now;
    store(mul(load(sums), factor), sums);
    float* out = out_ + group * kColumns * stride_ + column * kBlock;
    for (std::int64_t d = 0; d < stride_; d += kBlock, out += kColumns * kBlock) {
      for (int n = 0; n < kBlock; n += kLanes) store(mul(load(out + n), factor), out + n);
    }
  }
#endif

  // Logits of a group of columns become weights, in pairs where products are of pairs. `scales`: of
  // the values of the kStreamKeys keys, or null.
  void soften(std::int64_t group, const float* scales) {
#if HYLA_TARGET_HAS_PAIRS
    if constexpr (kByColumn) return soften_columns(group, scales);
#endif
    constexpr std::int64_t kFloats = kColumns * kStreamKeys;
    float* weights = weights_ + group * kFloats;
    float *highest = highest_ + group * kLanes, *sums = sums_ + group * kLanes;
    F tops[4];  // a chain each
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) tops[n] = load(weights + n * kLanes);
    for (std::int64_t i = 4 * kLanes; i < kFloats; i += 4 * kLanes) {
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) tops[n] = max(load(weights + i + n * kLanes), tops[n]);
    }
    const F top = max_modulo<kColumns>(max(max(tops[0], tops[1]), max(tops[2], tops[3])));
    if (any_greater(top, load(highest))) rise(group, top);
    const F most = load(highest);
    F total = load(sums);
    for (std::int64_t i = 0; i < kFloats; i += 2 * kLanes) {
      F a = exp2(sub(load(weights + i), most));
      F b = exp2(sub(load(weights + i + kLanes), most));
      total = add(total, add(a, b));
      if (scales != nullptr) {
        a = mul(a, scales_of(scales, i / kLanes));
        b = mul(b, scales_of(scales, i / kLanes + 1));
      }
      Tiles::store_weights(a, b, weights + i / Op::kSummed);
    }
    store(total, sums);
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

  template <class Rows, bool kDirect>
  void add_heads(std::int64_t first) {
    const TensorView &v = p_.cache.v, &stored = p_.cache.v_scales;
    // All heads of a few rows lie in one piece.
    constexpr bool kTogether = kDirect && kValueKeys < kStreamKeys;
    AskedInOrder asked = asked_by_values();
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      const char* converted[kStreamKeys];
      alignas(64) float scales[kStreamKeys];
      const bool scaled = kDirect && stored.present();
      if (scaled) load_scales(stored, first, head, scales);
      if (!kDirect) convert(v, stored, first, head, p_.queries.value_dim, values_, converted);
      for (std::int64_t group = 0; group < groups_; ++group) {
        soften(head * groups_ + group, scaled ? scales : nullptr);
      }
      if constexpr (kTogether) continue;
      for (std::int64_t key = 0; key < kStreamKeys; key += kValueKeys) {
        add_keys<Rows>(kDirect ? values_of(head, key) : RowsAt{converted + key, 0}, head, key,
                       asked);
      }
    }
    if constexpr (kTogether) {
      for (std::int64_t key = 0; key < kStreamKeys; key += kValueKeys) {
        for (std::int64_t head = 0; head < tile_.heads; ++head) {
          add_keys<Rows>(values_of(head, key), head, key, asked);
        }
      }
    }
  }
  template <class Rows>
  HYLA_INLINE void add_keys(RowsAt rows, std::int64_t head, std::int64_t key,
                            AskedInOrder& in_order) {
    const auto add = [&](auto&& asked) {
      for (std::int64_t group = 0; group < groups_; ++group) {
        const std::int64_t i = (head * groups_ + group) * kColumns;
        const float* weights = weights_ + i * kStreamKeys + Tiles::weight_at(key / Op::kSummed, 0);
        Tiles::template add_values<Rows>(rows, asked, weights, out_ + i * stride_, stride_);
      }
    };
    if constexpr (Tiles::kByTwos) {
      add(in_order);
    } else if (near_) {
      add(soon_by_values(head, key));
    } else {
      add(later_by_values(head, key));
    }
  }

  void leave_all(float* partials) const {
    for (std::int64_t head = 0; head < tile_.heads; ++head) leave_head(head, partials);
  }
  void leave_head(std::int64_t head, float* partials) const {
    float highest[kStreamColumns], sums[kStreamColumns];
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      const std::int64_t at = (head * groups_ + m / kColumns) * kLanes + m % kColumns;
      highest[m] = highest_[at];
      sums[m] = 0.0f;
      if constexpr (kByColumn) {
        sums[m] = sum(load(sums_ + (head * groups_ * kColumns + m) * kLanes));
        continue;
      }
      for (int r = 0; r < kKeys; ++r) sums[m] += sums_[at + r * kColumns];
    }
    float* part = lines_of_part(p_, tile_, tile_.head + head, partials);
    const Lines to =
        part == nullptr ? Lines{in_order_, stride_} : Lines{part, partial_stride(p_.queries)};
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      const float* group = out_ + (head * groups_ + m / kColumns) * kColumns * stride_;
      const std::int64_t column = m % kColumns;
      for (std::int64_t d = 0; d < stride_; d += kBlock) {
        const std::int64_t at = d * kColumns + column / kGroup * kGroup * kBlock;
        Tiles::store_block(group + at + column % kGroup * kBlock, split_, to(m) + d);
      }
    }
    leave(p_, tile_, tile_.head + head, highest, sums, to, partials);
  }

  const attention::RunProblem& p_;
  const AttentionTile& tile_;
  const AttentionTile* next_;
  Sight sight_;
  Logits logits_;
  std::int64_t groups_;    // of kColumns columns, of a head
  std::int64_t elements_;  // of a query or key, in whole vectors
  std::int64_t stride_;    // of an output
  bool direct_;            // rows as they lie in the cache
  bool split_;             // as Rows::kSplit has them
  bool near_;              // asks into the first cache
  // Distances, in rows.
  std::int64_t sooner_keys_, later_keys_, sooner_values_, later_values_;
  float* queries_;  // [heads, groups, kColumns, elements]
  float* out_;      // [heads, groups, kColumns, stride]
  float* weights_;  // [heads, groups, kStreamKeys, kColumns]: logits, then weights
  // [heads, groups, kLanes], a column in every kColumns-th lane; by column, sums have a vector each
  float *highest_, *sums_;
  float* in_order_;  // [groups, kColumns, stride]: the outputs of a head
  float* lines_;     // [kStreamKeys, lines_stride]
  float* line_;
  // Of head 0, of this round and of the next one.
  const char *keys_[2 * kStreamKeys], *values_[2 * kStreamKeys];
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_STREAM_H_
