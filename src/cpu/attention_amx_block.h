// Attention of a block of many columns by AMX. Compiled for each target (see foreach_target.h).
//
// A unit is 32 columns by kKeys keys, a slot of it 32 columns by 32 keys. Tiles and vectors work
// side by side, a few instructions of each in turn, on what does not wait for the other:
//
//     tiles      logits of slot 0   outputs    logits of slot 1   outputs    ...
//                of unit u          of u - 2   of unit u          of u - 1
//     vectors    weights of the last slot      weights of slot 0             ...
//                of u - 1                      of u
//
// Weights are relative to a whole number near the largest logit so far, which follows only where
// one is more than kFar above it.
//
// What tiles load lies as tiles, 1 KiB each, two of columns, keys or numbers side by side: queries
// [columns / 32, steps, 2], keys [keys / 32, steps, 2], weights [keys / 32, 2], values [numbers /
// 32, keys / 32, 2], outputs [columns / 32, numbers / 32, 2, 2 of columns], logits of a slot [2, 2 of
// columns]. Keys and values become tiles once for all units of a block.
#if defined(HYLA_CPU_ATTENTION_AMX_BLOCK_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_AMX_BLOCK_H_
#undef HYLA_CPU_ATTENTION_AMX_BLOCK_H_
#else
#define HYLA_CPU_ATTENTION_AMX_BLOCK_H_
#endif

#include "cpu/attention_amx.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {
#if HYLA_TARGET_HAS_PAIRS

class AmxBlock {
  static constexpr std::int64_t kSide = amx::kRows;     // of a tile of floats
  static constexpr std::int64_t kTile = kSide * kSide;  // floats of a tile
  static constexpr std::int64_t kPairs = 2 * kSide;     // keys or numbers of a tile of pairs
  static constexpr std::int64_t kUnit = 2 * kSide;      // columns
  static constexpr std::int64_t kKeys = 128;            // at a time
  static constexpr std::int64_t kSlots = kKeys / kPairs;
  static constexpr std::int64_t kFour = 4 * kTile;  // floats of two tiles by two
  static constexpr float kFar = 256.0f;             // of a weight

 public:
  // Of a block, of a row of so many: the more of them, the less are keys and values made tiles, but
  // threads want blocks.
  static std::int64_t columns_of_block(std::int64_t columns) {
    return columns < kLongRow ? 128 : columns < 4 * kLongRow ? 256 : kMostBlockColumns;
  }
  static std::int64_t scratch_floats(const attention::Queries& q) {
    const std::int64_t of_column = q.head_dim / 2 + stride(q) + kLanes;
    const std::int64_t of_key = q.head_dim / 2 + stride(q) / 2 + line_words(q) + kUnit;
    return kMostBlockColumns * of_column + kKeys * of_key + 2 * kFour + 2 * line_words(q);
  }

  AmxBlock(const attention::RunProblem& problem, const AttentionTile& tile, float* scratch)
      : p_(problem),
        tile_(tile),
        sight_(problem, tile),
        logits_of_(problem.queries),
        steps_(p_.queries.head_dim / kPairs),
        sets_(stride(p_.queries) / kPairs) {
    const std::int64_t columns = whole(tile.count, kUnit), stride = sets_ * kPairs;
    out_ = scratch;
    sums_ = out_ + columns * stride;
    queries_ = sums_ + columns * kLanes;
    keys_ = queries_ + columns * p_.queries.head_dim / 2;
    values_ = keys_ + kKeys * p_.queries.head_dim / 2;
    logits_ = values_ + kKeys / 2 * stride;
    weights_ = logits_ + 2 * kFour;
    lines_ = weights_ + kUnit * kKeys;
    line_ = lines_ + kKeys * line_words(p_.queries);
    std::memset(sums_, 0, static_cast<std::size_t>(columns * kLanes) * sizeof(float));
    for (std::int64_t m = 0; m < columns; ++m) least_[m] = -kNoLogit;
    for (float& factor : factors_) factor = 1.0f;
    load_queries();
  }

  void run(float* partials) {
    for (std::int64_t key = tile_.keys.begin; key < tile_.keys.end; key += kKeys) {
      bool ready = false;
      for (std::int64_t column = 0; column < tile_.count; column += kUnit) {
        const attention::KeyRange some = sight_.of_some(column, columns_from(column));
        const std::int64_t end = std::min(some.end, tile_.keys.end);
        if (end <= key || key + kKeys <= some.begin) continue;
        if (!ready) load_keys(key);
        ready = true;
        const std::int64_t slots = (std::min(kKeys, end - key) + kPairs - 1) / kPairs;
        bool& begun = begun_[column / kUnit];
        step({column, key, slots, weights_ + turn_ * kUnit * kKeys / 2, !begun});
        begun = true;
        turn_ = 1 - turn_;
      }
    }
    Softening last = softening((sets_ - set_) * adding_.slots);
    add_values(sets_, last);
    finish(last);
    begin_adding();
    add_values(sets_, last);
    float highest[kMostBlockColumns], sums[kMostBlockColumns];
    for (std::int64_t m = 0; m < tile_.count; m += kLanes) {
      F lanes[kLanes];
      for (int i = 0; i < kLanes; ++i) lanes[i] = load(sums_ + (m + i) * kLanes);
      store(sum_each(lanes), sums + m);
      store(sub(zero(), load(least_ + m)), highest + m);
    }
    leave(
        p_, tile_, tile_.head, highest, sums, [&](std::int64_t m) { return outputs(m); }, partials);
  }

 private:
  static constexpr std::int64_t kNoKey = -1;
  struct Unit {
    std::int64_t column, key, slots;  // the first ones; slots that anybody sees
    float* weights;
    bool first;  // of its columns
  };

  static std::int64_t stride(const attention::Queries& q) { return whole(q.value_dim, kPairs); }
  static std::int64_t line_words(const attention::Queries& q) {
    return std::max(q.head_dim, stride(q)) / 2;
  }
  std::int64_t columns_from(std::int64_t column) const {
    return std::min(kUnit, tile_.count - column);
  }
  // Of the keys from `key` on.
  std::int64_t key_tiles(std::int64_t key) const {
    return whole(std::min(kKeys, tile_.keys.end - key), kPairs) / kSide;
  }

  void load_queries() const {
    const attention::Queries& q = p_.queries;
    const std::int64_t group = q.query_heads / q.kv_heads;
    const auto* data = static_cast<const bfloat16*>(q.q.data);
    for (std::int64_t m = tile_.count; m % kUnit != 0; ++m) {
      for (std::int64_t i = 0; i < steps_; ++i) store(zero(), query(m, i));
    }
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      const std::int64_t column = tile_.first + m, head = tile_.head * group + column % group;
      const std::int64_t token = q.begin(tile_.row) + column / group;
      const bfloat16* from = data + token * q.q.strides[0] + head * q.q.strides[1];
      for (std::int64_t i = 0; i < steps_; ++i) {
        std::memcpy(query(m, i), from + i * kPairs, kSide * sizeof(float));
      }
    }
  }

  // Pairs of a column.
  float* query(std::int64_t m, std::int64_t step) const {
    return queries_ + (m / kUnit * steps_ + step) * 2 * kTile + m % kUnit * kSide;
  }

  // Addresses of rows of pairs, `dim` of them or zeros: in the cache, or of lines made of it.
  void rows_of(const TensorView& view, const TensorView& scales, std::int64_t dim,
               std::int64_t first, std::int64_t count, const char** rows) const {
    if (view.dtype == DType::kBFloat16 && dim % kPairs == 0) {
      row_addresses(p_.cache, view, tile_.row, first, count, tile_.keys.end, rows);
      for (std::int64_t i = 0; i < count; ++i) rows[i] += tile_.head * head_bytes(view);
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t key = std::min(first + i, tile_.keys.end - 1);
      float* to = lines_ + i * line_words(p_.queries);
      load_cache_row(view, scales, cache_row(p_.cache, tile_.row, key), tile_.head, dim, line_);
      std::memset(line_ + dim, 0, static_cast<std::size_t>(whole(dim, kPairs) - dim) * 4);
      store_all(line_, whole(dim, kPairs), reinterpret_cast<bfloat16*>(to));
      rows[i] = reinterpret_cast<const char*>(to);
    }
  }

  // Pairs of a key become a column of tiles.
  void load_keys(std::int64_t first) {
    const std::int64_t tiles = key_tiles(first);
    const char* rows[kKeys];
    rows_of(p_.cache.k, p_.cache.k_scales, p_.queries.head_dim, first, tiles * kSide, rows);
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      for (std::int64_t step = 0; step < steps_; ++step) {
        F lines[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          lines[i] = load(reinterpret_cast<const float*>(rows[tile * kSide + i]) + step * kSide);
        }
        transpose_lanes(lines);
        float* to = keys_ + ((tile / 2 * steps_ + step) * 2 + tile % 2) * kTile;
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(lines[i], to + i * kSide);
      }
    }
  }

  // Numbers of two keys become pairs.
  void load_values(std::int64_t first) {
    if (first == values_from_) return;
    values_from_ = first;
    const std::int64_t tiles = key_tiles(first);
    const char* rows[kKeys];
    rows_of(p_.cache.v, p_.cache.v_scales, p_.queries.value_dim, first, tiles * kSide, rows);
    for (std::int64_t i = 0; i < tiles * kSide; i += 2) {
      float* to = values_ + i / kPairs * 2 * kTile + i % kPairs / 2 * kSide;
      for (std::int64_t d = 0; d < sets_ * kPairs; d += kPairs) {
        P lower, upper;
        zip_pairs(load_pairs(rows[i] + 2 * d), load_pairs(rows[i + 1] + 2 * d), lower, upper);
        store_pairs(lower, to);
        store_pairs(upper, to + kTile);
        to += 2 * kSlots * kTile;
      }
    }
  }

  // The slot whose logits become weights next, column after column. Of a line the first sixteen keys
  // are at `at`, of all kinds of floats.
  struct Softening {
    const float *logits, *least;
    float *weights, *sums, scale;
    std::int64_t column, slot;  // the first column of the unit
    std::int64_t each;          // columns with every four products
    std::int64_t m = 0, end = kUnit;
  };
  Softening softening(std::int64_t products) const {
    if (before_.key == kNoKey) return {nullptr, nullptr, nullptr, nullptr, 0, 0, 0, 0, 0, 0};
    return {logits_ + (1 - logits_turn_) * kFour,
            least_ + before_.column,
            before_.weights + slot_ * 2 * kTile,
            sums_ + before_.column * kLanes,
            scales_late() ? logits_of_.scale : 1.0f,
            before_.column,
            slot_,
            products > 0 ? (kUnit + products - 1) / products : kUnit};
  }
  HYLA_INLINE void some(Softening& work) {
    const std::int64_t last = std::min(work.m + work.each, work.end);
    while (work.m < last) next(work);
  }
  HYLA_INLINE void finish(Softening& work) {
    while (work.m < work.end) next(work);
  }
  HYLA_INLINE void next(Softening& work) {
    F a, b;
    weigh(work, a, b);
    F both = add(a, b);
    if (__builtin_expect(any_greater(both, set(kFar)), 0)) {
      rise(work);
      weigh(work, a, b);
      both = add(a, b);
    }
    float* sums = work.sums + work.m * kLanes;
    store(add(load(sums), both), sums);
    store_in_order(a, b, work.weights + work.m * kSide);
    ++work.m;
  }
  static HYLA_INLINE void weigh(const Softening& work, F& a, F& b) {
    const F scale = set(work.scale), least = set(work.least[work.m]);
    a = exp2(fma(load(work.logits + work.m * kSide), scale, least));
    b = exp2(fma(load(work.logits + 2 * kTile + work.m * kSide), scale, least));
  }

  // A logit is far above what its column's weights are relative to: all of them follow, outputs
  // before this unit's values are added. By value: what has an address is not in registers.
  __attribute__((noinline)) void rise(const Softening work) {
    const float* from = work.logits + work.m * kSide;
    float *least = least_ + work.column + work.m, top = -*least;
    for (std::int64_t i = 0; i < kPairs; ++i) {
      const float logit = from[i / kSide * 2 * kTile + i % kSide] * work.scale;
      if (logit > top) top = logit;
    }
    top = std::ceil(top);
    const float factor = std::exp2(-*least - top);
    *least = -top;
    factors_[work.m] *= factor;
    rises_ = true;
    float* sums = work.sums + work.m * kLanes;
    store(mul(load(sums), set(factor)), sums);
    const __m512i odd = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    float* weights = work.weights + work.m * kSide;
    for (std::int64_t i = 0; i < work.slot; ++i) {  // powers of two, so nothing is rounded
      weights -= 2 * kTile;
      const __m512i words = _mm512_loadu_si512(weights);
      const __m512i low = _mm512_castps_si512(
          _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)), _mm512_set1_ps(factor)));
      const __m512i high = _mm512_castps_si512(
          _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(words, odd)), _mm512_set1_ps(factor)));
      _mm512_storeu_si512(weights,
                          _mm512_or_si512(_mm512_srli_epi32(low, 16), _mm512_and_si512(high, odd)));
    }
  }

  void step(const Unit& unit) {
    for (std::int64_t slot = 0; slot < unit.slots; ++slot) {
      // Of the unit before the last one all that is left, then of the last one bit by bit.
      const std::int64_t until = slot == 0 ? sets_ : sets_ * slot / unit.slots;
      const std::int64_t products = steps_ + (until - set_) * adding_.slots;
      float* logits = logits_ + logits_turn_ * kFour;
      Softening work = softening(products);
      score(unit, slot, logits, work);
      add_values(until, work);
      finish(work);
      if (slot == 0) begin_adding();
      finish_logits(unit, slot, logits);
      before_ = unit;
      slot_ = slot;
      logits_turn_ = 1 - logits_turn_;
    }
  }

  // logits[column, key] = query . key
  HYLA_INLINE void score(const Unit& unit, std::int64_t slot, float* logits, Softening& work) {
    const float* queries = query(unit.column, 0);
    const float* keys = keys_ + slot * 2 * steps_ * kTile;
    zero_four();
    for (const float* end = queries + 2 * steps_ * kTile; queries < end;) {
      add_products(queries, keys);
      queries += 2 * kTile;
      keys += 2 * kTile;
      some(work);
    }
    store_four(logits);
  }

  // The weights of the last unit are complete: they are next.
  void begin_adding() {
    adding_ = before_;
    if (adding_.key == kNoKey) return;
    set_ = 0;
    load_values(adding_.key);
    if (!rises_) return;
    rises_ = false;
    for (std::int64_t m = 0; m < kUnit; ++m) {
      const F factor = set(factors_[m]);
      if (factors_[m] == 1.0f) continue;
      factors_[m] = 1.0f;
      if (adding_.first) continue;
      float* x = output(adding_.column + m);
      for (std::int64_t i = 0; i < 2 * sets_; ++i) {
        store(mul(load(x), factor), x);
        x += 2 * kTile;
      }
    }
  }

  // out[column, number] += weights . values
  HYLA_INLINE void add_values(std::int64_t until, Softening& work) {
    const Unit unit = adding_;
    float* out = output(unit.column) + set_ * kFour;
    const float* of_set = values_ + set_ * 2 * kSlots * kTile;
    for (; set_ < until; ++set_) {
      unit.first ? zero_four() : load_four(out);
      const float *weights = unit.weights, *values = of_set;
      for (const float* end = weights + 2 * unit.slots * kTile; weights < end;) {
        add_products(weights, values);
        weights += 2 * kTile;
        values += 2 * kTile;
        some(work);
      }
      store_four(out);
      out += kFour;
      of_set += 2 * kSlots * kTile;
    }
  }
  // Sixteen numbers; the next ones are two tiles on.
  float* output(std::int64_t m) const {
    return out_ + m / kUnit * kUnit * sets_ * kPairs + m % kUnit * kSide;
  }
  // All numbers of a column.
  float* outputs(std::int64_t m) const {
    const float* from = output(m);
    for (std::int64_t i = 0; i < 2 * sets_; ++i) {
      store(begun_[m / kUnit] ? load(from + i * 2 * kTile) : zero(), line_ + i * kSide);
    }
    return line_;
  }

  static HYLA_INLINE void zero_four() {
    amx::zero<0>();
    amx::zero<1>();
    amx::zero<2>();
    amx::zero<3>();
  }
  static HYLA_INLINE void load_four(const float* from) {
    amx::load_once<0>(from, kSide);
    amx::load_once<1>(from + kTile, kSide);
    amx::load_once<2>(from + 2 * kTile, kSide);
    amx::load_once<3>(from + 3 * kTile, kSide);
  }
  static HYLA_INLINE void store_four(float* to) {
    amx::store<0>(to, kSide);
    amx::store<1>(to + kTile, kSide);
    amx::store<2>(to + 2 * kTile, kSide);
    amx::store<3>(to + 3 * kTile, kSide);
  }
  // Two tiles of columns by two of keys or numbers.
  static HYLA_INLINE void add_products(const float* a, const float* b) {
    amx::load<4>(a, kSide);
    amx::load_once<6>(b, kSide);
    amx::add_product<0, 4, 6>();
    amx::load<5>(a + kTile, kSide);
    amx::add_product<1, 5, 6>();
    amx::load_once<7>(b + kTile, kSide);
    amx::add_product<2, 4, 7>();
    amx::add_product<3, 5, 7>();
  }

  // With the softmax, unless hidden logits, -inf, would become something else.
  bool scales_late() const { return logits_of_.scale > 0 && logits_of_.softcap <= 0; }

  void finish_logits(const Unit& unit, std::int64_t slot, float* logits) {
    if (!scales_late()) {
      const F scale = set(logits_of_.scale);
      for (std::int64_t i = 0; i < kFour; i += kLanes)
        store(mul(load(logits + i), scale), logits + i);
      logits_of_.cap(logits, kFour);
    }
    const std::int64_t key = unit.key + slot * kPairs;
    const attention::KeyRange all = sight_.of_all(unit.column, columns_from(unit.column));
    if (key < all.begin || std::min(all.end, tile_.keys.end) < key + kPairs)
      hide(unit, key, logits);
    for (std::int64_t half = 0; half < kUnit; half += kSide) {
      float* least = least_ + unit.column + half;
      if (any_equal(load(least), set(-kNoLogit))) begin(logits + half * kSide, least);
    }
  }
  static HYLA_INLINE bool any_equal(F a, F b) {
    return _mm512_cmp_ps_mask(floats(a), floats(b), _CMP_EQ_OQ) != 0;
  }
  void hide(const Unit& unit, std::int64_t key, float* logits) const {
    const F hidden = set(-std::numeric_limits<float>::infinity());
    for (std::int64_t m = 0; m < columns_from(unit.column); ++m) {
      const attention::KeyRange seen = sight_.seen[unit.column + m];
      const std::int64_t end = std::min(seen.end, tile_.keys.end) - key;
      float* line = logits + m * kSide;
      for (std::int64_t first = 0; first < kPairs; first += kSide, line += 2 * kTile) {
        const std::uint32_t before = first_lanes(seen.begin - key - first);
        const std::uint32_t until = first_lanes(end - first);
        _mm512_mask_storeu_ps(line, static_cast<__mmask16>(before | ~until), floats(hidden));
      }
    }
  }
  static HYLA_INLINE std::uint32_t first_lanes(std::int64_t count) {
    return (1u << std::clamp<std::int64_t>(count, 0, kLanes)) - 1;
  }

  // The first logits of sixteen columns.
  void begin(const float* logits, float* least) const {
    const F scale = set(scales_late() ? logits_of_.scale : 1.0f);
    const F lowest = set(-std::numeric_limits<float>::infinity());
    F tops[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {  // NaN does not enter
      tops[i] = max(load(logits + 2 * kTile + i * kSide), max(load(logits + i * kSide), lowest));
    }
    const F top = mul(max_each(tops), scale), before = load(least);
    const __m512 near = _mm512_roundscale_ps(floats(top), _MM_FROUND_TO_POS_INF);
    const __mmask16 none = _mm512_cmp_ps_mask(floats(before), floats(set(-kNoLogit)), _CMP_EQ_OQ);
    const __mmask16 seen = _mm512_cmp_ps_mask(near, floats(set(kNoLogit)), _CMP_GT_OQ);
    _mm512_mask_storeu_ps(least, static_cast<__mmask16>(none & seen),
                          _mm512_sub_ps(_mm512_setzero_ps(), near));
  }

  const attention::RunProblem& p_;
  const AttentionTile& tile_;
  Sight sight_;
  Logits logits_of_;
  std::int64_t steps_, sets_;      // of products: tiles of a query; pairs of tiles of an output
  float *out_, *sums_, *queries_;  // tiles; [columns, kLanes]; tiles
  float *keys_, *values_;          // tiles
  float *logits_, *weights_;       // of two slots, of two units
  float *lines_, *line_;           // keys or values of other dtypes on their way to tiles
  std::int64_t values_from_ = kNoKey;
  Unit before_{0, kNoKey, 0, nullptr, true};  // of which weights are made
  std::int64_t slot_ = 0;
  Unit adding_{0, kNoKey, 0, nullptr, true};  // whose values are added
  std::int64_t set_ = sets_;
  int turn_ = 0, logits_turn_ = 0;
  bool rises_ = false;
  bool begun_[kMostBlockColumns / kUnit] = {};  // units: others have no outputs
  // Weights are relative to 2^-least.
  alignas(64) float least_[kMostBlockColumns], factors_[kUnit];
};

#endif
}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_AMX_BLOCK_H_
