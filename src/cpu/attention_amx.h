// Attention of few columns by AMX. Keys and values are tiles as they lie in the cache. A pair of a
// value is two numbers of the same key, where a product wants one number of two keys; so a weight
// meets it as {weight, 0} for the even numbers and as {0, weight} for the odd ones, which are other
// lines of a tile that up to eight columns would leave empty. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_ATTENTION_AMX_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_AMX_H_
#undef HYLA_CPU_ATTENTION_AMX_H_
#else
#define HYLA_CPU_ATTENTION_AMX_H_
#endif

#include "cpu/attention_ahead.h"
#include "cpu/attention_rows.h"
#include "cpu/attention_softmax.h"
#include "cpu/transpose.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {
#if HYLA_TARGET_HAS_PAIRS

// Sixteen rows of pairs as lines of tiles: as they lie where they are equally far apart, or copied
// to `lines`.
inline amx::Matrix rows_as_tiles(const char* const* rows, std::int64_t offset,
                                 std::int64_t elements, float* lines) {
  const std::int64_t apart = rows[1] - rows[0];
  bool even = apart % 4 == 0;
  for (int i = 2; i < amx::kRows; ++i) even = even && rows[i] - rows[i - 1] == apart;
  if (even) {
    return {const_cast<float*>(reinterpret_cast<const float*>(rows[0] + offset)), apart / 4};
  }
  for (int i = 0; i < amx::kRows; ++i) {
    std::memcpy(lines + i * elements, rows[i] + offset,
                static_cast<std::size_t>(elements) * sizeof(float));
  }
  return {lines, elements};
}

// Words of four keys' weights of eight columns, {keys 0, 1} and {2, 3} side by side, as pairs.
struct PairsOfEight {
  alignas(64) std::uint16_t from[32];
  constexpr PairsOfEight() : from() {
    for (unsigned i = 0; i < 32; ++i) {
      from[i] = static_cast<std::uint16_t>(i / 16 * 16 + i % 2 * 8 + i % 16 / 2);
    }
  }
};
inline constexpr PairsOfEight kPairsOfEight;

// kColumns: 8 or 16; those that are not there see zeros.
template <int kColumns>
class AmxStream {
 public:
  static constexpr std::int64_t kKeys = 64;  // at a time
  static_assert(kStreamColumns == kLanes && (kColumns == kLanes || 2 * kColumns == kLanes));

  // Of tiles: outputs, products with queries, weights of 64 keys, keys or values, queries.
  static constexpr amx::Shape kWhole{16, 64}, kOfColumns{16, 4 * kColumns};
  static constexpr amx::Shape kTiles[8] = {kWhole, kOfColumns, kWhole, kWhole,
                                           kWhole, kWhole,     kWhole, kOfColumns};

  static bool takes(const attention::RunProblem& p) {
    const attention::Queries& q = p.queries;
    return p.cache.k.dtype == DType::kBFloat16 && p.cache.v.dtype == DType::kBFloat16 &&
           q.head_dim % (2 * kLanes) == 0 && q.value_dim % (2 * kLanes) == 0;
  }
  static std::int64_t scratch_floats(const attention::Queries& q, std::int64_t heads) {
    const std::int64_t of_head = kColumns * (q.head_dim / 2 + q.value_dim) + 2 * kLanes;
    return heads * (of_head + kKeys * kColumns) + 2 * kWords + 2 * kColumns * kKeys +
           kColumns * q.value_dim + kKeys * std::max(q.head_dim, q.value_dim) / 2;
  }

  AmxStream(const attention::RunProblem& problem, const AttentionTile& tile,
            const AttentionTile* next, float* scratch)
      : p_(problem),
        tile_(tile),
        next_(next != nullptr && next->keys.begin < next->keys.end ? next : nullptr),
        sight_(problem, tile),
        logits_(problem.queries),
        elements_(p_.queries.head_dim / 2),
        stride_(p_.queries.value_dim) {
    queries_ = scratch;
    out_ = queries_ + tile.heads * elements_ * kColumns;
    highest_ = out_ + tile.heads * kColumns * stride_;
    sums_ = highest_ + tile.heads * kLanes;
    weights_ = sums_ + tile.heads * kLanes;
    words_ = weights_ + tile.heads * kKeys * kColumns;
    turned_ = words_ + kWords;
    alternate_ = turned_ + kWords;
    in_order_ = alternate_ + 2 * kColumns * kKeys;
    lines_ = in_order_ + kColumns * stride_;
    std::memset(out_, 0, static_cast<std::size_t>(weights_ - out_) * sizeof(float));
    for (float* x = highest_; x < sums_; ++x) *x = kNoLogit;
    load_queries();
  }

  // False where outputs are not finite: {0, weight} has then made NaN of a neighbour, and another
  // way must be gone.
  bool run(float* partials) {
    int now = 0;
    addresses(tile_, tile_.keys.begin, now);
    for (std::int64_t key = tile_.keys.begin; key < tile_.keys.end; key += kKeys, now = 1 - now) {
      next_addresses(key, 1 - now);
      score(now);
      logits_.cap(weights_, tile_.heads * kKeys * kColumns);
      hide(key);
      add_values(now);
    }
    if (!finite()) return false;
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      put_in_order(head);
      float* sums = sums_ + head * kLanes;
      for (int m = kColumns; m < kLanes; ++m) sums[m - kColumns] += sums[m];
      leave(p_, tile_, tile_.head + head, highest_ + head * kLanes, sums, Lines{in_order_, stride_},
            partials);
    }
    return true;
  }

 private:
  static constexpr std::int64_t kWords = kKeys / 2 * kColumns;  // of 32 bits

  void load_queries() const {
    const attention::Queries& q = p_.queries;
    const std::int64_t group = q.query_heads / q.kv_heads;
    const auto* data = static_cast<const bfloat16*>(q.q.data);
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      for (std::int64_t m = 0; m < kColumns; ++m) {
        float* line = lines_ + m * elements_;
        const std::size_t bytes = static_cast<std::size_t>(elements_) * sizeof(float);
        if (m >= tile_.count) {
          std::memset(line, 0, bytes);
          continue;
        }
        const std::int64_t column = tile_.first + m;
        const std::int64_t token = q.begin(tile_.row) + column / group;
        const std::int64_t query_head = (tile_.head + head) * group + column % group;
        std::memcpy(line, data + token * q.q.strides[0] + query_head * q.q.strides[1], bytes);
      }
      transpose(lines_, elements_, kColumns, elements_, queries_ + head * elements_ * kColumns,
                kColumns);
    }
  }

  // Of keys from `first` on, of this tile or of one whose turn is next.
  void addresses(const AttentionTile& tile, std::int64_t first, int which) {
    addresses_of(p_.cache.k, tile, first, keys_at_[which]);
    addresses_of(p_.cache.v, tile, first, values_at_[which]);
  }
  void addresses_of(const TensorView& view, const AttentionTile& tile, std::int64_t first,
                    const char** rows) const {
    row_addresses(p_.cache, view, tile.row, first, kKeys, tile.keys.end, rows);
    const std::int64_t heads = (tile.head - tile_.head) * head_bytes(view);
    for (std::int64_t i = 0; heads != 0 && i < kKeys; ++i) rows[i] += heads;
    prefetch_pages(rows, kKeys, tile_.head * head_bytes(view));
  }
  void next_addresses(std::int64_t key, int which) {
    const std::int64_t later = key + kKeys;
    if (later < tile_.keys.end) return addresses(tile_, later, which);
    if (next_ != nullptr) return addresses(*next_, next_->keys.begin, which);
    addresses(tile_, tile_.keys.end - 1, which);  // once more: asking for it costs nothing
  }

  // weights[head, key, column] = key . query. Meanwhile the next keys are asked for.
  void score(int now) const {
    LinesAhead ahead(p_.cache.k, keys_at_[1 - now], kKeys, tile_.head, tile_.heads);
    for (std::int64_t key = 0; key < kKeys; key += amx::kRows) {
      for (std::int64_t head = 0; head < tile_.heads; ++head) {
        const amx::Matrix keys = rows_as_tiles(
            keys_at_[now] + key, (tile_.head + head) * head_bytes(p_.cache.k), elements_, lines_);
        const float* queries = queries_ + head * elements_ * kColumns;
        amx::zero<1>();
        for (std::int64_t j = 0; j < elements_; j += amx::kWidth) {
          amx::load<6>(keys.tile(0, j), keys.stride);
          amx::load<7>(queries + j * kColumns, kColumns);
          amx::add_product<1, 6, 7>();
          ahead.ask(amx::kRows);
        }
        amx::store<1>(weights_ + (head * kKeys + key) * kColumns, kColumns);
      }
    }
    if (scales_late()) return;
    const F scale = set(logits_.scale);
    for (float* x = weights_; x < words_; x += kLanes) store(mul(load(x), scale), x);
  }
  // With the softmax, unless hidden logits, -inf, would become something else.
  bool scales_late() const { return logits_.scale > 0 && logits_.softcap <= 0; }

  void hide(std::int64_t first) const {
    if (first + kKeys <= tile_.keys.end && sight_.all_see(first, kKeys)) return;
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      for (std::int64_t i = 0; i < kKeys; ++i) {
        if (first + i < tile_.keys.end && sight_.sees(m, first + i)) continue;
        for (std::int64_t head = 0; head < tile_.heads; ++head) {
          weights_[(head * kKeys + i) * kColumns + m] = -std::numeric_limits<float>::infinity();
        }
      }
    }
  }

  // Logits of a head become weights, words of pairs of keys. Of eight columns a vector has two
  // keys, and lanes of both are summed at the end.
  void soften(std::int64_t head, LinesAhead& ahead) const {
    const float* weights = weights_ + head * kKeys * kColumns;
    float *highest = highest_ + head * kLanes, *sums = sums_ + head * kLanes;
    const F before = load(highest);
    const F scale = set(scales_late() ? logits_.scale : 1.0f);
    const F largest = max_modulo<kColumns>(largest_of(weights, kVectors, kLanes));
    const F most = max(mul(largest, scale), before);
    if (any_greater(most, before)) rise(head, before, most);
    F total = load(sums);
    for (std::int64_t i = 0; i < kVectors / 2; ++i) {
      // The other half of the keys comes with the same pairs, see turn().
      const std::int64_t first = kColumns == 8 ? i : 2 * i,
                         second = first + (kColumns == 8 ? 16 : 1);
      const F a = exp2(sub(mul(load(weights + first * kLanes), scale), most));
      const F b = exp2(sub(mul(load(weights + second * kLanes), scale), most));
      ahead.ask(kAskedByVectors);
      total = add(total, add(a, b));
      store_words(a, b, words_ + i * kLanes);
    }
    store(total, sums);
  }
  static constexpr std::int64_t kVectors = kKeys * kColumns / kLanes;

  // The next values are asked for evenly in time: so many lines with every two vectors of logits
  // that become weights, one with every vector that is turned, the others by the products. What is
  // asked for faster than memory comes holds up all else, and a pause is lost.
  static constexpr std::int64_t kAskedByVectors = kColumns == 8 ? 3 : 2;
  std::int64_t asked_by_product() const {
    constexpr std::int64_t kBefore = kVectors / 2 * kAskedByVectors + kKeys * kColumns / kLanes;
    const std::int64_t left = kKeys * row_bytes(p_.cache.v) / kLine - kBefore;
    const std::int64_t products = kColumns / 8 * (stride_ / 2 / amx::kWidth) * (kKeys / amx::kRows);
    return std::max<std::int64_t>(1, (left + products - 1) / products);
  }

  static HYLA_INLINE void store_words(F a, F b, float* to) {
    if constexpr (kColumns == 8) {
      const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(floats(b), floats(a)));
      const __m512i order = _mm512_load_si512(kPairsOfEight.from);
      store_pairs(from_words(_mm512_permutexvar_epi16(order, both)), to);
    } else {
      Pairs::store_pair(a, b, to);
    }
  }

  // Weights with keys side by side, each beside a zero: {weight, 0} in the first kColumns lines,
  // {0, weight} in the others.
  void turn(LinesAhead& ahead) const {
    constexpr std::int64_t kPairs = kWords / kLanes;
    transpose(words_, kLanes, kPairs, kLanes, turned_, kPairs);
    for (std::int64_t m = 0; m < kColumns; ++m) {
      for (std::int64_t key = 0; key < kKeys; key += kLanes) {
        // Of eight columns lines have 32 keys each.
        const std::int64_t line = kColumns == 8 ? key / 32 * 8 + m : m;
        const float* from = turned_ + line * kPairs + (kColumns == 8 ? key % 32 : key) / 2;
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        const __m512i even = _mm512_maskz_cvtepu16_epi32(0xffff, words);
        ahead.ask(1);
        store_pairs(from_words(even), alternate_ + m * kKeys + key);
        store_pairs(from_words(_mm512_maskz_slli_epi32(0xffff, even, 16)),
                    alternate_ + (kColumns + m) * kKeys + key);
      }
    }
  }

  // A new maximum: sums and outputs follow.
  void rise(std::int64_t head, F before, F now) const {
    const F factor = exp2(sub(before, now));
    float* sums = sums_ + head * kLanes;
    store(now, highest_ + head * kLanes);
    store(mul(load(sums), factor), sums);
    alignas(64) float factors[kLanes];
    store(factor, factors);
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      if (factors[m] == 1.0f) continue;
      const F scale = set(factors[m]);
      float *even = numbers(head, m, 0), *odd = numbers(head, m, 1);
      for (std::int64_t d = 0; d < stride_ / 2; d += kLanes) {
        store(mul(load(even + d), scale), even + d);
        store(mul(load(odd + d), scale), odd + d);
      }
    }
  }

  // Even or odd numbers of a column's output.
  float* numbers(std::int64_t head, std::int64_t column, std::int64_t odd) const {
    return out_ + ((2 * head + odd) * kColumns + column) * (stride_ / 2);
  }

  // Meanwhile the next values are asked for.
  void add_values(int now) const {
    LinesAhead ahead(p_.cache.v, values_at_[1 - now], kKeys, tile_.head, tile_.heads);
    const std::int64_t asked = asked_by_product();
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      soften(head, ahead);
      turn(ahead);
      multiply_values(now, head, asked, ahead);
    }
  }
  void multiply_values(int now, std::int64_t head, std::int64_t asked, LinesAhead& ahead) const {
    const std::int64_t elements = stride_ / 2,
                       offset = (tile_.head + head) * head_bytes(p_.cache.v);
    amx::Matrix values[4];
    static_assert(kKeys == 4 * amx::kRows);
    for (int i = 0; i < 4; ++i) {
      values[i] = rows_as_tiles(values_at_[now] + i * amx::kRows, offset, elements,
                                lines_ + i * amx::kRows * elements);
    }
    for (std::int64_t line = 0; line < 2 * kColumns; line += amx::kRows) {
      const float* weights = alternate_ + line * kKeys;
      amx::load<2>(weights, kKeys);
      amx::load<3>(weights + amx::kWidth, kKeys);
      amx::load<4>(weights + 2 * amx::kWidth, kKeys);
      amx::load<5>(weights + 3 * amx::kWidth, kKeys);
      float* out = out_ + (2 * head * kColumns + line) * elements;
      for (std::int64_t j = 0; j < elements; j += amx::kWidth) {
        amx::load<0>(out + j, elements);
        add_sixteen<2>(values[0].tile(0, j), values[0].stride);
        ahead.ask(asked);
        add_sixteen<3>(values[1].tile(0, j), values[1].stride);
        ahead.ask(asked);
        add_sixteen<4>(values[2].tile(0, j), values[2].stride);
        ahead.ask(asked);
        add_sixteen<5>(values[3].tile(0, j), values[3].stride);
        ahead.ask(asked);
        amx::store<0>(out + j, elements);
      }
    }
  }
  template <int kWeights>
  static HYLA_INLINE void add_sixteen(const float* values, std::int64_t stride) {
    amx::load<6>(values, stride);
    amx::add_product<0, kWeights, 6>();
  }

  bool finite() const {
    F zeros = zero();
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      for (std::int64_t m = 0; m < tile_.count; ++m) {
        const float *even = numbers(head, m, 0), *odd = numbers(head, m, 1);
        for (std::int64_t d = 0; d < stride_ / 2; d += kLanes) {
          zeros = fma(load(even + d), zero(), zeros);
          zeros = fma(load(odd + d), zero(), zeros);
        }
      }
    }
    return sum(zeros) == 0.0f;
  }

  void put_in_order(std::int64_t head) const {
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      const float *even = numbers(head, m, 0), *odd = numbers(head, m, 1);
      float* to = in_order_ + m * stride_;
      for (std::int64_t d = 0; d < stride_ / 2; d += kLanes) {
        F a = load(even + d), b = load(odd + d);
        zip_lanes(a, b);
        store(a, to + 2 * d);
        store(b, to + 2 * d + kLanes);
      }
    }
  }

  const attention::RunProblem& p_;
  const AttentionTile& tile_;
  const AttentionTile* next_;
  Sight sight_;
  Logits logits_;
  std::int64_t elements_, stride_;  // pairs of a key; of an output
  float* queries_;                  // [heads, elements, kColumns]: pairs
  float* out_;                      // [heads, even and odd numbers, kColumns, stride / 2]
  float *highest_, *sums_;          // [heads, kLanes]
  float* weights_;                  // [heads, kKeys, kColumns]: logits
  float *words_, *turned_;          // weights as pairs of keys, columns or keys side by side
  float* alternate_;                // [2 kColumns, kKeys], see turn()
  float* in_order_;                 // [kColumns, stride]: outputs of a head
  float* lines_;                    // keys or values whose pages lie apart
  const char *keys_at_[2][kKeys], *values_at_[2][kKeys];  // of head 0: now, and the next
};

#endif
}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_AMX_H_
