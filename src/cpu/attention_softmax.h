// What all ways through attention have in common: masks, the softmax's state, outputs. Compiled for
// each target (see foreach_target.h).
//
// Logits are in units of ln 2, so that weights are powers of two.
#if defined(HYLA_CPU_ATTENTION_SOFTMAX_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_SOFTMAX_H_
#undef HYLA_CPU_ATTENTION_SOFTMAX_H_
#else
#define HYLA_CPU_ATTENTION_SOFTMAX_H_
#endif

#include "cpu/kv_lines.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Below every logit, and finite: no difference of two of them is NaN.
constexpr float kNoLogit = -3.0e38f;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

HYLA_INLINE std::int64_t whole(std::int64_t count, std::int64_t unit) {
  return (count + unit - 1) / unit * unit;
}

// Which keys each column of a tile sees.
struct Sight {
  attention::KeyRange seen[kMostBlockColumns];
  attention::KeyRange by_all;

  Sight(const attention::RunProblem& p, const AttentionTile& tile) {
    const attention::Queries& q = p.queries;
    const std::int64_t group = q.query_heads / q.kv_heads;
    const std::int64_t keys = p.cache.length(tile.row), position = keys - q.length(tile.row);
    by_all = {0, keys};
    for (std::int64_t m = 0; m < tile.count; ++m) {
      seen[m] = q.mask.visible(position + (tile.first + m) / group, keys);
      by_all.begin = std::max(by_all.begin, seen[m].begin);
      by_all.end = std::min(by_all.end, seen[m].end);
    }
  }
  bool all_see(std::int64_t first, std::int64_t count) const {
    return by_all.begin <= first && first + count <= by_all.end;
  }
  bool sees(std::int64_t column, std::int64_t key) const {
    return seen[column].begin <= key && key < seen[column].end;
  }
  // What any of some columns sees, and what all of them see: where both ends of a range are, only
  // moves on with the position.
  attention::KeyRange of_some(std::int64_t first, std::int64_t count) const {
    return {seen[first].begin, seen[first + count - 1].end};
  }
  attention::KeyRange of_all(std::int64_t first, std::int64_t count) const {
    return {seen[first + count - 1].begin, seen[first].end};
  }
};

// What a product becomes: logit = softcap * tanh(product * scale / softcap), in units of ln 2.
struct Logits {
  static constexpr double kMostCap = 0x1p100;  // of larger ones logits would be subnormal parts
  float scale, softcap;

  explicit Logits(const attention::Queries& q)
      : scale(static_cast<float>(q.softcap > 0 ? q.scale : q.scale * 1.4426950408889634)),
        softcap(static_cast<float>(std::min(q.softcap, kMostCap))) {}

  void cap(float* scaled, std::int64_t count) const {
    if (softcap <= 0) return;
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const F part = tanh(mul(load(scaled + i), set(1.0f / softcap)));
      store(mul(set(softcap * kLog2E), part), scaled + i);
    }
  }
};

// The largest logit of each of kLanes columns; `keys` lines, a multiple of 4, `stride` apart. NaN
// does not enter, but will be a weight.
HYLA_INLINE F largest_of(const float* logits, std::int64_t keys, std::int64_t stride) {
  F tops[4];  // a chain each
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) tops[n] = set(-std::numeric_limits<float>::infinity());
  for (std::int64_t i = 0; i < keys; i += 4) {
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) tops[n] = max(load(logits + (i + n) * stride), tops[n]);
  }
  return max(max(tops[0], tops[1]), max(tops[2], tops[3]));
}

// Columns of which all keys are known: outputs and LSE. `line(m)`: the outputs of one, which may be
// scaled in place, up to a multiple of kLanes.
template <class Line>
void finish(const attention::RunProblem& p, const AttentionTile& tile, std::int64_t kv_head,
            float* highest, float* sums, const Line& line) {
  const attention::Queries& q = p.queries;
  const std::int64_t group = q.query_heads / q.kv_heads;
  for (std::int64_t m = 0; m < tile.count; ++m) {
    const std::int64_t token = q.begin(tile.row) + (tile.first + m) / group;
    const std::int64_t head = kv_head * group + (tile.first + m) % group;
    float* values = line(m);
    const bool any = highest[m] > kNoLogit;
    float factor = 1.0f;
    if (any && q.sinks.present()) {
      float sink;
      load_line(q.sinks.data, q.sinks.dtype, head * q.sinks.strides[0], 1, 1, &sink);
      sink *= kLog2E;
      const float most = std::max(highest[m], sink);
      factor = std::exp2(highest[m] - most);
      sums[m] = sums[m] * factor + std::exp2(sink - most);
      highest[m] = most;
    }
    const F inverse = set(any ? factor / sums[m] : 0.0f);
    for (std::int64_t d = 0; d < q.value_dim; d += kLanes) {
      store(mul(load(values + d), inverse), values + d);
    }
    store_line(values, q.value_dim, q.out.data, q.out.dtype,
               token * q.out.strides[0] + head * q.out.strides[1], 1);
    if (q.lse.present()) {
      static_cast<float*>(q.lse.data)[token * q.lse.strides[0] + head * q.lse.strides[1]] =
          any                   ? kLn2 * (highest[m] + std::log2(sums[m]))
          : std::isnan(sums[m]) ? sums[m]  // of NaN alone there is no highest
                                : -std::numeric_limits<float>::infinity();
    }
  }
}

// Where the lines of one part of a head go, partial_stride() apart; null where it is the only part.
inline float* lines_of_part(const attention::RunProblem& p, const AttentionTile& tile,
                            std::int64_t head, float* partials) {
  if (tile.splits == 1) return nullptr;
  const std::int64_t at = (head - tile.head) * tile.splits + tile.split;
  return partials + tile.partials + at * partial_floats(p.queries, tile.count) + 2 * tile.count;
}
// One part of a head is done: its outputs where it is the only one.
template <class Line>
void leave(const attention::RunProblem& p, const AttentionTile& tile, std::int64_t head,
           float* highest, float* sums, const Line& line, float* partials) {
  if (tile.splits == 1) return finish(p, tile, head, highest, sums, line);
  float* to = lines_of_part(p, tile, head, partials);
  const std::size_t columns = static_cast<std::size_t>(tile.count) * sizeof(float);
  std::memcpy(to - 2 * tile.count, highest, columns);
  std::memcpy(to - tile.count, sums, columns);
  for (std::int64_t m = 0; m < tile.count; ++m, to += partial_stride(p.queries)) {
    if (line(m) == to) continue;
    std::memcpy(to, line(m),
                static_cast<std::size_t>(whole(p.queries.value_dim, kLanes)) * sizeof(float));
  }
}
// Lines of outputs one after the other.
struct Lines {
  float* first;
  std::int64_t stride;
  float* operator()(std::int64_t m) const { return first + m * stride; }
};

// All parts of all heads of a tile. The first partial of a head becomes the whole.
inline void join_parts(const attention::RunProblem& p, const AttentionTile& tile, float* partials) {
  const std::int64_t size = partial_floats(p.queries, tile.count);
  const std::int64_t stride = whole(p.queries.value_dim, kLanes);
  for (std::int64_t h = 0; h < tile.heads; ++h) {
    float* highest = partials + tile.partials + h * tile.splits * size;
    float *sums = highest + tile.count, *out = sums + tile.count;
    for (std::int64_t m = 0; m < tile.count; ++m) {
      float most = highest[m];
      for (std::int64_t i = 1; i < tile.splits; ++i) most = std::max(most, highest[i * size + m]);
      float total = 0.0f;
      float* sum = out + m * partial_stride(p.queries);
      for (std::int64_t i = 0; i < tile.splits; ++i) {
        const float factor = std::exp2(highest[i * size + m] - most);
        total += sums[i * size + m] * factor;
        const float* values = sum + i * size;
        for (std::int64_t d = 0; d < stride; d += kLanes) {
          const F before = i == 0 ? zero() : load(sum + d);
          store(fma(load(values + d), set(factor), before), sum + d);
        }
      }
      highest[m] = most;
      sums[m] = total;
    }
    finish(p, tile, tile.head + h, highest, sums, Lines{out, partial_stride(p.queries)});
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_SOFTMAX_H_
