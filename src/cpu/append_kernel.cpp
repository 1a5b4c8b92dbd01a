#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "cpu/append.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/append_kernel.cpp"
#include "cpu/foreach_target.h"
#include "cpu/kv_lines.h"
#include "cpu/quantise_words.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

constexpr std::int64_t kLongestHead = 576;
constexpr std::int64_t kLongestLine = (kLongestHead + kLanes - 1) / kLanes * kLanes;

// Of a token of the call: where it goes, and its position.
struct TokenPlace {
  CacheRow at;
  std::int64_t position = 0;
  bool somewhere = true;
};

// `i`: token of the row.
HYLA_INLINE TokenPlace token_place(const attention::AppendProblem& p, std::int64_t row,
                                   std::int64_t i) {
  const attention::CacheView& cache = p.cache;
  if (!p.slots.present()) {
    const std::int64_t position = cache.length(row) - p.sequences.length(row) + i;
    return {cache_row(cache, row, position), position};
  }
  const std::int64_t slot = p.slots.at(i);
  if (slot < 0) return {{}, 0, false};
  const std::int64_t position = p.positions.present() ? p.positions.at(i) : 0;
  if (cache.kind == attention::KvCache::Kind::kRagged) return {{0, slot}, position};
  return {{slot / cache.page_size(), slot % cache.page_size()}, position};
}

// Where scales of the cache are, and whether they are to be divided by as they are.
struct RunScales {
  const TensorView& view;
  bool given;
};

// [D] of a head, every run divided by its scale, which is stored where there are scales.
template <class Stored>
void store_runs(const float* line, std::int64_t dim, const RunScales& of, const CacheRow& at,
                std::int64_t head, Stored* to) {
  const TensorView& scales = of.view;
  if (!scales.present()) return store_quantised(line, dim, to);
  const std::int64_t runs = scales.shape[scales.rank - 1], run = dim / runs;
  float* stored = static_cast<float*>(scales.data) + at.offset(scales, head);
  for (std::int64_t r = 0; r < runs; ++r) {
    float& scale = stored[r * scales.strides[scales.rank - 1]];
    if (of.given) {
      store_divided(line + r * run, run, scale, to + r * run);
    } else {
      scale = store_run(line + r * run, run, to + r * run);
    }
  }
}

inline void store_head(const float* line, std::int64_t dim, const TensorView& view,
                       const RunScales& scales, const CacheRow& at, std::int64_t head) {
  const std::int64_t offset = at.offset(view, head);
  if (view.dtype == DType::kFloat8E4M3) {
    store_runs(line, dim, scales, at, head, static_cast<std::uint8_t*>(view.data) + offset);
  } else if (view.dtype == DType::kInt8) {
    store_runs(line, dim, scales, at, head, static_cast<std::int8_t*>(view.data) + offset);
  } else {
    store_line(line, dim, view.data, view.dtype, offset, 1);
  }
}

// The rotation of one position.
struct Turn {
  alignas(64) float cos[kLongestLine], sin[kLongestLine];

  void load_position(const attention::AppendProblem& p, std::int64_t position) {
    load_line(p.cos.data, p.cos.dtype, position * p.cos.strides[0], p.cos.strides[1],
              p.cos.shape[1], cos);
    load_line(p.sin.data, p.sin.dtype, position * p.sin.strides[0], p.sin.strides[1],
              p.sin.shape[1], sin);
  }
  void apply(float* line, std::int64_t half, bool interleaved) const {
    if (!interleaved) return apply_halves(line, half);
    for (std::int64_t i = 0; i < half; ++i) {
      const float x = line[2 * i], y = line[2 * i + 1];
      line[2 * i] = x * cos[i] - y * sin[i];
      line[2 * i + 1] = y * cos[i] + x * sin[i];
    }
  }
  void apply_halves(float* line, std::int64_t half) const {
    std::int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const F x = load(line + i), y = load(line + half + i), c = load(cos + i), s = load(sin + i);
      store(sub(mul(x, c), mul(y, s)), line + i);
      store(add(mul(y, c), mul(x, s)), line + half + i);
    }
    for (; i < half; ++i) {
      const float x = line[i], y = line[half + i];
      line[i] = x * cos[i] - y * sin[i];
      line[half + i] = y * cos[i] + x * sin[i];
    }
  }
};

#if HYLA_TARGET_HAS_PAIRS
// Heads of bfloat16 with a scale each, one token after the other. The largest number of the next
// head is found while a head is converted, so that nothing waits for it.
template <class Stored>
class WordHeads {
 public:
  WordHeads(const TensorView& from, const TensorView& to, const TensorView& scales)
      : from_(from), to_(to), scales_(scales), dim_(from.shape[2]) {}

  static bool takes(const TensorView& from, const TensorView& scales) {
    return from.dtype == DType::kBFloat16 && from.shape[2] % kWordsAtOnce == 0 &&
           scales.present() && scales.shape[scales.rank - 1] == 1;
  }

  void begin(std::int64_t token) { next_ = largest_word(head_of(token, 0), dim_); }
  // `more`: another token follows.
  void append(std::int64_t token, std::int64_t heads, bool more, const CacheRow& at) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::uint32_t bits = next_;
      if (head + 1 < heads) {
        next_ = largest_word(head_of(token, head + 1), dim_);
      } else if (more) {
        next_ = largest_word(head_of(token + 1, 0), dim_);
      }
      if (!is_plain(bits)) {
        alignas(64) float line[kLongestLine];
        load_line(from_.data, from_.dtype, token * from_.strides[0] + head * from_.strides[1], 1,
                  dim_, line);
        store_head(line, dim_, to_, {scales_, false}, at, head);
        continue;
      }
      float largest;
      std::memcpy(&largest, &bits, sizeof largest);
      static_cast<float*>(scales_.data)[at.offset(scales_, head)] =
          store_words(head_of(token, head), dim_, largest,
                      static_cast<Stored*>(to_.data) + at.offset(to_, head));
    }
  }

 private:
  const bfloat16* head_of(std::int64_t token, std::int64_t head) const {
    return static_cast<const bfloat16*>(from_.data) + token * from_.strides[0] +
           head * from_.strides[1];
  }

  const TensorView &from_, &to_, &scales_;
  std::int64_t dim_;
  std::uint32_t next_ = 0;
};

template <class Stored>
void append_words(const attention::AppendProblem& p, std::int64_t row, const TensorView& from,
                  const TensorView& to, const TensorView& scales, std::int64_t first,
                  std::int64_t last) {
  const std::int64_t begin = p.sequences.begin(row);
  WordHeads<Stored> words(from, to, scales);
  bool begun = false;
  for (std::int64_t i = first; i < last; ++i) {
    const TokenPlace place = token_place(p, row, i);
    if (place.somewhere) {
      if (!begun) words.begin(begin + i);
      words.append(begin + i, p.heads, i + 1 < last, place.at);
    }
    begun = place.somewhere;
  }
}
#endif

// Tokens first to last of a row that are not rotated, where there is a short way for them.
inline bool append_quickly(const attention::AppendProblem& p, std::int64_t row,
                           const TensorView& from, const TensorView& to, const TensorView& scales,
                           std::int64_t first, std::int64_t last) {
#if HYLA_TARGET_HAS_PAIRS
  if (p.given_scales) return false;
  if (to.dtype == DType::kFloat8E4M3 && WordHeads<std::uint8_t>::takes(from, scales)) {
    append_words<std::uint8_t>(p, row, from, to, scales, first, last);
    return true;
  }
  if (to.dtype == DType::kInt8 && WordHeads<std::int8_t>::takes(from, scales)) {
    append_words<std::int8_t>(p, row, from, to, scales, first, last);
    return true;
  }
#else
  (void)p, (void)row, (void)from, (void)to, (void)scales, (void)first, (void)last;
#endif
  return false;
}

// One tensor's row of a token, all heads. `turn`: null where nothing is rotated.
inline void append_row(const attention::AppendProblem& p, const TensorView& from,
                       std::int64_t token, const TensorView& to, const TensorView& scales,
                       const CacheRow& at, const Turn* turn) {
  const std::int64_t dim = from.shape[2];
  const std::int64_t begin = token * from.strides[0];
  if (turn == nullptr && from.dtype == to.dtype) {
    const auto size = static_cast<std::int64_t>(size_of(from.dtype));
    const char* source = static_cast<const char*>(from.data) + begin * size;
    char* target = static_cast<char*>(to.data);
    const bool in_one = from.strides[1] == dim && to.strides[to.rank - 2] == dim;
    const std::int64_t pieces = in_one ? 1 : p.heads;
    const auto bytes = static_cast<std::size_t>((in_one ? p.heads : 1) * dim * size);
    for (std::int64_t head = 0; head < pieces; ++head) {
      std::memcpy(target + at.offset(to, head) * size, source + head * from.strides[1] * size,
                  bytes);
    }
    return;
  }
  alignas(64) float line[kLongestLine];
  for (std::int64_t head = 0; head < p.heads; ++head) {
    load_line(from.data, from.dtype, begin + head * from.strides[1], 1, dim, line);
    if (turn != nullptr) turn->apply(line, p.cos.shape[1], p.interleaved);
    store_head(line, dim, to, {scales, p.given_scales}, at, head);
  }
}

void append_tokens(const attention::AppendProblem& p, std::int64_t begin, std::int64_t end) {
  const attention::CacheView& cache = p.cache;
  Turn turn;
  std::int64_t before = 0;  // tokens of earlier rows
  for (std::int64_t row = 0; row < p.sequences.rows && before < end; ++row) {
    const std::int64_t added = p.sequences.length(row);
    const std::int64_t first = std::max<std::int64_t>(begin - before, 0);
    const std::int64_t last = std::min(end - before, added);
    before += added;
    if (first >= last) continue;
    const bool rotates = p.cos.present();
    const bool k_is_done =
        !rotates && append_quickly(p, row, p.k, cache.k, cache.k_scales, first, last);
    const bool v_is_done =
        !p.v.present() || append_quickly(p, row, p.v, cache.v, cache.v_scales, first, last);
    if (k_is_done && v_is_done) continue;
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t token = p.sequences.begin(row) + i;
      const TokenPlace place = token_place(p, row, i);
      if (!place.somewhere) continue;
      if (rotates) turn.load_position(p, place.position);
      if (!k_is_done) {
        append_row(p, p.k, token, cache.k, cache.k_scales, place.at, rotates ? &turn : nullptr);
      }
      if (!v_is_done) append_row(p, p.v, token, cache.v, cache.v_scales, place.at, nullptr);
    }
  }
}

extern const AppendKernels kAppendKernels;
const AppendKernels kAppendKernels = {append_tokens};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const AppendKernels& append_kernels(Target target) { return HYLA_TARGET_SELECT(kAppendKernels); }
}  // namespace hyla::cpu
#endif
