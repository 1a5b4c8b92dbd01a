// Attention of few columns by AMX: keys are tiles as they lie in the cache, values are zipped into
// pairs of keys on the way. Products take a few cycles of what reading a line of memory takes, so
// that the order in which lines are asked for is what counts. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_ATTENTION_AMX_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_AMX_H_
#undef HYLA_CPU_ATTENTION_AMX_H_
#else
#define HYLA_CPU_ATTENTION_AMX_H_
#endif

#include "cpu/attention_rows.h"
#include "cpu/attention_softmax.h"
#include "cpu/transpose.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {
#if HYLA_TARGET_HAS_PAIRS

// Lines of the rows of a round in the order of memory, asked for some at a time.
class LinesAhead {
 public:
  LinesAhead(const TensorView& view, const char* const* rows, std::int64_t count,
             std::int64_t first_head, std::int64_t heads)
      : rows_(rows), count_(count), offset_(first_head * head_bytes(view)) {
    const bool dense = head_bytes(view) == row_bytes(view);
    width_ = row_bytes(view) * (dense ? heads : 1);
    head_stride_ = head_bytes(view);
    heads_ = dense ? 1 : heads;
  }
  HYLA_INLINE void ask(int lines) {
    for (; lines > 0 && heads_ > 0; --lines) {
      __builtin_prefetch(rows_[row_] + offset_ + at_, 0, 2);
      at_ += kLine;
      if (at_ < width_) continue;
      at_ = 0;
      if (++row_ < count_) continue;
      row_ = 0;
      offset_ += head_stride_;
      --heads_;
    }
  }

 private:
  const char* const* rows_;
  std::int64_t count_, offset_, width_ = 0, head_stride_ = 0, heads_ = 0;
  std::int64_t row_ = 0, at_ = 0;
};

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

class AmxStream {
 public:
  static constexpr std::int64_t kKeys = 64;     // at a time
  static constexpr std::int64_t kColumns = 16;  // those that are not there see zeros
  static_assert(kColumns == kStreamColumns && kColumns == kLanes);

  static bool takes(const attention::RunProblem& p) {
    const attention::Queries& q = p.queries;
    return p.cache.k.dtype == DType::kBFloat16 && p.cache.v.dtype == DType::kBFloat16 &&
           q.head_dim % (2 * kLanes) == 0 && q.value_dim % (2 * kLanes) == 0;
  }
  static std::int64_t scratch_floats(const attention::Queries& q, std::int64_t heads) {
    const std::int64_t of_head = q.head_dim / 2 + q.value_dim + 2;
    return kColumns * heads * of_head + kKeys * kColumns * (heads + 1) + kKeys / 2 * q.value_dim +
           kLanes * q.head_dim;
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
    sums_ = highest_ + tile.heads * kColumns;
    weights_ = sums_ + tile.heads * kColumns;
    turned_ = weights_ + tile.heads * kKeys * kColumns;
    values_ = turned_ + kKeys * kColumns;
    lines_ = values_ + kKeys / 2 * stride_;
    std::memset(scratch, 0, static_cast<std::size_t>(weights_ - scratch) * sizeof(float));
    for (float* x = highest_; x < sums_; ++x) *x = kNoLogit;
    load_queries();
  }

  void run(float* partials) {
    int now = 0;
    addresses(tile_, tile_.keys.begin, now);
    for (std::int64_t key = tile_.keys.begin; key < tile_.keys.end; key += kKeys, now = 1 - now) {
      next_addresses(key, 1 - now);
      score(now);
      logits_.cap(weights_, tile_.heads * kKeys * kColumns);
      hide(key);
      add_values(now);
    }
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      leave(p_, tile_, tile_.head + head, highest_ + head * kColumns, sums_ + head * kColumns,
            out_ + head * kColumns * stride_, stride_, partials);
    }
  }

 private:
  void load_queries() const {
    const attention::Queries& q = p_.queries;
    const std::int64_t group = q.query_heads / q.kv_heads;
    const auto* data = static_cast<const bfloat16*>(q.q.data);
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      for (std::int64_t m = 0; m < tile_.count; ++m) {
        const std::int64_t column = tile_.first + m;
        const std::int64_t token = q.begin(tile_.row) + column / group;
        const std::int64_t query_head = (tile_.head + head) * group + column % group;
        const bfloat16* from = data + token * q.q.strides[0] + query_head * q.q.strides[1];
        float* to = queries_ + head * elements_ * kColumns + m;
        for (std::int64_t j = 0; j < elements_; ++j) {
          std::memcpy(to + j * kColumns, from + 2 * j, sizeof(float));
        }
      }
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
        amx::zero<0>();
        for (std::int64_t j = 0; j < elements_; j += amx::kWidth) {
          amx::load<4>(keys.tile(0, j), keys.stride);
          amx::load<6>(queries + j * kColumns, kColumns);
          amx::add_product<0, 4, 6>();
          ahead.ask(amx::kRows);
        }
        amx::store<0>(weights_ + (head * kKeys + key) * kColumns, kColumns);
      }
    }
    if (scales_late()) return;
    const F scale = set(logits_.scale);
    for (float* x = weights_; x < turned_; x += kLanes) store(mul(load(x), scale), x);
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

  // Logits of a head become weights, in pairs of keys.
  void soften(std::int64_t head, LinesAhead& ahead) const {
    float* weights = weights_ + head * kKeys * kColumns;
    float *highest = highest_ + head * kColumns, *sums = sums_ + head * kColumns;
    F tops[4];  // a chain each; NaN does not enter, but will be a weight
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) tops[n] = set(-std::numeric_limits<float>::infinity());
    for (std::int64_t i = 0; i < kKeys; i += 4) {
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) tops[n] = max(load(weights + (i + n) * kLanes), tops[n]);
    }
    const F before = load(highest);
    const F scale = set(scales_late() ? logits_.scale : 1.0f);
    const F most = max(mul(max(max(tops[0], tops[1]), max(tops[2], tops[3])), scale), before);
    if (any_greater(most, before)) rise(head, before, most);
    F total = load(sums);
    for (std::int64_t i = 0; i < kKeys; i += 2) {
      const F a = exp2(sub(mul(load(weights + i * kLanes), scale), most));
      const F b = exp2(sub(mul(load(weights + (i + 1) * kLanes), scale), most));
      ahead.ask(2);
      total = add(total, add(a, b));
      Pairs::store_pair(a, b, weights + i / 2 * kLanes);
    }
    store(total, sums);
  }
  // A new maximum: sums and outputs follow.
  void rise(std::int64_t head, F before, F now) const {
    const F factor = exp2(sub(before, now));
    float* sums = sums_ + head * kColumns;
    store(now, highest_ + head * kColumns);
    store(mul(load(sums), factor), sums);
    alignas(64) float factors[kColumns];
    store(factor, factors);
    for (std::int64_t m = 0; m < tile_.count; ++m) {
      if (factors[m] == 1.0f) continue;
      float* out = out_ + (head * kColumns + m) * stride_;
      for (std::int64_t d = 0; d < stride_; d += kLanes) {
        store(mul(load(out + d), set(factors[m])), out + d);
      }
    }
  }

  // Meanwhile the next values are asked for.
  void add_values(int now) const {
    const TensorView& v = p_.cache.v;
    LinesAhead ahead(v, values_at_[1 - now], kKeys, tile_.head, tile_.heads);
    for (std::int64_t head = 0; head < tile_.heads; ++head) {
      soften(head, ahead);
      transpose(weights_ + head * kKeys * kColumns, kColumns, kKeys / 2, kColumns, turned_,
                kKeys / 2);
      const std::int64_t offset = (tile_.head + head) * head_bytes(v);
      for (std::int64_t i = 0; i < kKeys; i += 2) {
        const char* even = values_at_[now][i] + offset;
        const char* odd = values_at_[now][i + 1] + offset;
        float* to = values_ + i / 2 * stride_;
        for (std::int64_t d = 0; d < stride_; d += 2 * kLanes) {
          P lower, upper;
          zip_pairs(load_pairs(even + 2 * d), load_pairs(odd + 2 * d), lower, upper);
          store_pairs(lower, to + d);
          store_pairs(upper, to + d + kLanes);
          ahead.ask(2);
        }
      }
      amx::multiply<true>({turned_, kKeys / 2}, kColumns, {values_, stride_}, kKeys / 2, stride_,
                          {out_ + head * kColumns * stride_, stride_});
    }
  }

  const attention::RunProblem& p_;
  const AttentionTile& tile_;
  const AttentionTile* next_;
  Sight sight_;
  Logits logits_;
  std::int64_t elements_, stride_;  // pairs of a key; of an output
  float* queries_;                  // [heads, elements, kColumns]: pairs
  float* out_;                      // [heads, kColumns, stride]
  float *highest_, *sums_;          // [heads, kColumns]
  float* weights_;                  // [heads, kKeys, kColumns]: logits, then weights of pairs
  float* turned_;                   // [kColumns, kKeys / 2]
  float* values_;                   // [kKeys / 2, stride]: pairs
  float* lines_;                    // 16 keys whose pages lie apart
  const char *keys_at_[2][kKeys], *values_at_[2][kKeys];  // of head 0: now, and the next
};

#endif
}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_AMX_H_
