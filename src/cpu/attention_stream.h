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

// kNear: of rows as they lie, see StreamTiles.
template <class Op, int kColumns, bool kNear = false>
class Stream {
  using Tiles = StreamTiles<Op, kColumns, kNear>;
  using Side = typename Tiles::Side;
  using Kinds = RowsOf<Op>;
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

  // Whole vectors of keys and values, which need not be converted.
  static bool takes_as_they_lie(const attention::RunProblem& p) {
    const attention::Queries& q = p.queries;
    return q.value_dim == value_floats(q) && one_each(p.cache.k_scales) &&
           one_each(p.cache.v_scales) && Kinds::of(p.cache.k.dtype, [&]<class Rows>() {
             return q.head_dim % (kVectorBytes / Rows::kBytes) == 0;
           });
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
        direct_(takes_as_they_lie(problem)),
        split_(direct_ && Kinds::of(p_.cache.k.dtype, []<class Rows>() { return Rows::kSplit; })),
        by_heads_(kNear && tile.heads % 2 == 0 && dense(p_.cache.k)) {
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
    } else if constexpr (!kNear) {
      walk<typename Kinds::Converted, false>();
    }
    leave_all(partials);
  }

 private:
  static constexpr bool kHalves = Tiles::template kByHalves<BfloatRows>;
  using InOrder = AskedInOrder<kNear>;
  using Asking = std::conditional_t<Tiles::kByTwos, InOrder, typename Tiles::Asking>;
  static constexpr std::int64_t kValueKeys = Tiles::kValueKeys;
  // How far ahead lines are asked for in bytes, kNear: so far that memory has answered before their
  // turn comes, and so little that they are still in the L1 cache then.
  static constexpr std::int64_t kSooner = 8 << 10, kLater = 16 << 10;

  static std::int64_t line_floats(const attention::Queries& q) {
    return whole(std::max(q.head_dim, q.value_dim), 2 * kLanes);
  }
  // Elements of a converted line of keys or values.
  static std::int64_t lines_stride(const attention::Queries& q) {
    return std::max(key_elements(q), value_floats(q) / Op::kSummed);
  }
  // Whether the heads of a row lie in one piece.
  static bool dense(const TensorView& view) { return head_bytes(view) == row_bytes(view); }
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
    if (!kNear) prefetch_pages(rows, kStreamKeys, tile_.head * head_bytes(view));
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

  // Those of logits, from the scales of keys.
  void load_key_scales(std::int64_t first, std::int64_t head, float (&to)[kStreamKeys]) const {
    load_scales(p_.cache.k_scales, first, head, to);
    for (float& scale : to) scale *= logits_.scale;
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
        const std::int64_t first = by_heads_ ? head / 2 * 2 : head;
        const std::int64_t group_at = (first * groups_ + m / kColumns) * kColumns;
        const Side side = !by_heads_ ? Side::kBoth : head == first ? Side::kEven : Side::kOdd;
        Tiles::place_query(lines_, elements_, m % kColumns, side,
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
      if constexpr (Tiles::kByTwos) {
        F first, second;
        const RowsAt from{rows + key, offset};
        Tiles::template products_by_twos<Rows>({from[0], from[1], from[2], from[3]},
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
  // What the products of keys ask for: the next keys, and once more the values of these; kNear: the
  // keys that come soon.
  Asking asked_by_keys(std::int64_t head) const {
    if constexpr (kNear) {
      return near(p_.cache.k, keys_);
    } else if constexpr (Tiles::kByTwos) {
      return {runs_of(p_.cache.k, keys_ + kStreamKeys), runs_of(p_.cache.v, values_)};
    } else {
      return {keys_of(head, kStreamKeys), values_of(head, 0)};
    }
  }
  // What the products of values ask for: the next ones, and once more the next keys; or likewise.
  InOrder asked_by_values() const {
    if constexpr (kNear) return near(p_.cache.v, values_);
    return {runs_of(p_.cache.v, values_ + kStreamKeys), runs_of(p_.cache.k, keys_ + kStreamKeys)};
  }
  Later later_by_values(std::int64_t head, std::int64_t key) const {
    return {values_of(head, key + kStreamKeys), keys_of(head, key + kStreamKeys)};
  }
  RunsAhead runs_of(const TensorView& view, const char* const* rows) const {
    return {view, rows, kStreamKeys, tile_.head, tile_.heads};
  }
  // kNear: what comes soon in the same order.
  InOrder near(const TensorView& view, const char* const* rows) const {
    const std::int64_t bytes = row_bytes(view) * (dense(view) ? tile_.heads : 1);
    const auto ahead = [&](std::int64_t distance) {  // rows whose addresses are known
      return runs_of(view, rows + std::clamp<std::int64_t>(distance / bytes, 1, kStreamKeys));
    };
    return {ahead(kLater), ahead(kSooner)};
  }

#if HYLA_TARGET_HAS_PAIRS
  // Two heads at a time, in the order of memory.
  template <class Rows>
  void score_by_heads(std::int64_t first) const {
    const TensorView &k = p_.cache.k, &stored = p_.cache.k_scales;
    const std::int64_t head_size = kColumns * kStreamKeys, apart = head_bytes(k);
    const F scale = set(stored.present() ? 1.0f : logits_.scale);
    Asking asked = asked_by_keys(0);
    for (std::int64_t key = 0; key < kStreamKeys; key += 2) {
      for (std::int64_t head = 0; head < tile_.heads; head += 2) {
        const std::int64_t offset = (tile_.head + head) * apart;
        const char *a = keys_[key] + offset, *b = keys_[key + 1] + offset;
        F one, other;
        Tiles::template products_by_twos<Rows>(
            {a, a + apart, b, b + apart}, queries_ + head * kColumns * query_elements(p_.queries),
            elements_, asked, one, other);
        float* to = weights_ + head * head_size + key * kColumns;
        store_halves(mul(one, scale), to, to + head_size);
        store_halves(mul(other, scale), to + kColumns, to + head_size + kColumns);
      }
    }
    if (!stored.present()) return;
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      alignas(64) float scales[kStreamKeys];
      load_key_scales(first, head, scales);
      float* logits = weights_ + head * head_size;
      for (std::int64_t i = 0; i < head_size; i += kLanes) {
        store(mul(load(logits + i), scales_of(scales, i / kLanes)), logits + i);
      }
    }
  }
#endif

  // Keys from `first` on.
  template <class Rows, bool kDirect>
  void score(std::int64_t first) const {
#if HYLA_TARGET_HAS_PAIRS
    if constexpr (kNear) {
      if (by_heads_) return score_by_heads<Rows>(first);
    }
#endif
    constexpr std::int64_t kTileKeys = Tiles::template kTileKeys<Rows>;
    const TensorView &k = p_.cache.k, &stored = p_.cache.k_scales;
    const char* const* rows = keys_;
    const std::int64_t lines = kTileKeys * row_bytes(k) / kLine;  // of a tile of keys
    Asking asked = asked_by_keys(0);
    if ((kNear || !Tiles::kByTwos) && kDirect && !stored.present() && dense(k)) {
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
      if (scaled) load_key_scales(first, head, scales);
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
          weights_[group * kColumns * kStreamKeys + Tiles::weight_at(i, m % kColumns)] =
              -std::numeric_limits<float>::infinity();
        }
      }
    }
  }

  // Logits of a group of columns become weights, in pairs where products are of pairs. `scales`: of
  // the values of the kStreamKeys keys, or null.
  void soften(std::int64_t group, const float* scales) {
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
    // All heads of a few rows, where they lie in one piece.
    const bool together = kNear && dense(v);
    InOrder asked = asked_by_values();
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      const char* converted[kStreamKeys];
      alignas(64) float scales[kStreamKeys];
      const bool scaled = kDirect && stored.present();
      if (scaled) load_scales(stored, first, head, scales);
      if (!kDirect) convert(v, stored, first, head, p_.queries.value_dim, values_, converted);
      for (std::int64_t group = 0; group < groups_; ++group) {
        soften(head * groups_ + group, scaled ? scales : nullptr);
      }
      for (std::int64_t key = 0; !together && key < kStreamKeys; key += kValueKeys) {
        add_keys<Rows>(kDirect ? values_of(head, key) : RowsAt{converted + key, 0}, head, key,
                       asked);
      }
    }
    for (std::int64_t key = 0; together && key < kStreamKeys; key += kValueKeys) {
      for (std::int64_t head = 0; head < tile_.heads; ++head) {
        add_keys<Rows>(values_of(head, key), head, key, asked);
      }
    }
  }
  template <class Rows>
  HYLA_INLINE void add_keys(RowsAt rows, std::int64_t head, std::int64_t key, InOrder& in_order) {
    const auto add = [&](auto&& asked) {
      for (std::int64_t group = 0; group < groups_; ++group) {
        const std::int64_t i = (head * groups_ + group) * kColumns;
        const float* weights = weights_ + i * kStreamKeys + Tiles::weight_at(key / Op::kSummed, 0);
        Tiles::template add_values<Rows>(rows, asked, weights, out_ + i * stride_, stride_);
      }
    };
    if constexpr (Tiles::kByTwos) {
      add(in_order);
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
  bool by_heads_;          // queries of two heads lie in turn, see score_by_heads
  float* queries_;         // [heads, groups, kColumns, elements]
  float* out_;             // [heads, groups, kColumns, stride]
  float* weights_;         // [heads, groups, kStreamKeys, kColumns]: logits, then weights
  // [heads, groups, kLanes], a column in every kColumns-th lane
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
