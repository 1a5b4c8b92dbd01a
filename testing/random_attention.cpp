// Random calls of attention over dense and paged caches, and of append.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

// Stored values of a quantised cache use most of its range; the scales bring them back to about 1.
constexpr double kE4m3Deviation = 100.0, kInt8Deviation = 36.0;

bool quantised(DType dtype) { return dtype == DType::kFloat8E4M3 || dtype == DType::kInt8; }

double deviation(DType dtype) {
  return dtype == DType::kFloat8E4M3 ? kE4m3Deviation : dtype == DType::kInt8 ? kInt8Deviation : 1;
}

// One of keys and values: [blocks, tokens, Hk, D] with its scales.
struct Half {
  TensorView values, scales;
};

class CacheMaker {
 public:
  // An empty cache holds nothing but poison.
  CacheMaker(CaseBuilder& builder, const std::vector<std::int64_t>& lengths, bool empty)
      : builder_(builder), spec_(builder.spec()), lengths_(lengths), empty_(empty) {
    const std::int64_t longest =
        lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    page_ = spec_.page != 0 ? spec_.page : std::max<std::int64_t>(longest, 1);
    columns_ = std::max<std::int64_t>((longest + page_ - 1) / page_, 1);
    for (std::int64_t length : lengths_) used_ += (length + page_ - 1) / page_;
    if (spec_.page == 0) used_ = static_cast<std::int64_t>(lengths_.size());
  }

  attention::KvCache make() {
    const std::int64_t spare = spec_.page != 0 && builder_.options().shuffled ? 3 : 0;
    blocks_ = std::max<std::int64_t>(used_ + spare, spec_.page != 0 ? 1 : 0);
    pages_.resize(static_cast<std::size_t>(blocks_));
    std::iota(pages_.begin(), pages_.end(), 0);
    if (builder_.options().shuffled && spec_.page != 0) shuffle();
    attention::KvCache cache;
    const Half k = half("cache.k"), v = half("cache.v");
    if (spec_.page == 0) {
      cache = attention::KvCache::dense(k.values, v.values);
    } else {
      cache = attention::KvCache::paged(k.values, v.values, table());
    }
    cache.k_scales = k.scales;
    cache.v_scales = v.scales;
    poison_unread({k.values, k.scales, v.values, v.scales});
    return cache;
  }

 private:
  void shuffle() {
    const Random draw = builder_.random("pages");
    for (std::size_t i = pages_.size(); i > 1; --i) {
      const auto j = draw.below(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i));
      std::swap(pages_[i - 1], pages_[static_cast<std::size_t>(j)]);
    }
  }

  Half half(const std::string& name) {
    Half result;
    if (empty_) {
      result.values = builder_.output(name, spec_.kv, {blocks_, page_, spec_.hk, spec_.d});
      if (quantised(spec_.kv) && !builder_.options().packed) {
        result.scales = builder_.output(name + "_scales", DType::kFloat32,
                                        {blocks_, page_, spec_.hk, groups()});
      }
      return result;
    }
    result.values = builder_.normal(name, spec_.kv, {blocks_, page_, spec_.hk, spec_.d}, 0,
                                    deviation(spec_.kv));
    if (quantised(spec_.kv)) {
      result.scales =
          builder_.normal(name + "_scales", DType::kFloat32, {blocks_, page_, spec_.hk, groups()},
                          1 / deviation(spec_.kv), 0.1 / deviation(spec_.kv));
    }
    return result;
  }

  std::int64_t groups() const { return builder_.options().extras && spec_.d % 16 == 0 ? 2 : 1; }

  // Entries that are not needed point nowhere.
  TensorView table() {
    std::vector<std::int64_t> entries;
    std::size_t next = 0;
    for (std::int64_t length : lengths_) {
      for (std::int64_t c = 0; c < columns_; ++c) {
        entries.push_back(c * page_ < length ? pages_[next++] : CaseBuilder::kNobody);
      }
    }
    return builder_.indices("cache.page_table", entries,
                            {static_cast<std::int64_t>(lengths_.size()), columns_});
  }

  // Tokens at or beyond a row's length, and pages that no row has.
  void poison_unread(std::initializer_list<TensorView> halves) const {
    std::size_t next = 0;
    const auto poison_tail = [&](std::int64_t block, std::int64_t tokens) {
      for (const TensorView& view : halves) {
        if (!view.present()) continue;
        poison(view.slice(0, block, 1).slice(1, tokens, page_ - tokens));
      }
    };
    for (std::int64_t length : lengths_) {
      std::int64_t left = length;
      do {
        if (left == 0 && spec_.page != 0) break;
        poison_tail(pages_[next++], std::min(left, page_));
        left -= std::min(left, page_);
      } while (left > 0);
    }
    while (next < pages_.size()) poison_tail(pages_[next++], 0);
  }

  CaseBuilder& builder_;
  const ProblemSpec& spec_;
  const std::vector<std::int64_t>& lengths_;
  const bool empty_;
  std::int64_t page_ = 0, columns_ = 0, used_ = 0, blocks_ = 0;
  std::vector<std::int64_t> pages_;
};

}  // namespace

Call random_attention(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const std::vector<std::int64_t> keys = kv_lengths(spec);
  attention::RunParams p;
  Rows rows = builder.rows(row_lengths(spec), true);
  std::fill(rows.padded.begin(), rows.padded.end(), false);  // attention has no padding rows
  p.q = builder.normal("q", spec.io, {rows.total, spec.hq, spec.d}, 0, 1);
  p.out = builder.output("out", spec.io, {rows.total, spec.hq, spec.d});
  builder.set_sequences(p, rows);
  p.kv_lengths = builder.indices("kv_lengths", keys);
  p.cache = CacheMaker(builder, keys, false).make();
  p.causal = spec.mask != Mask::kNone;
  if (spec.mask == Mask::kWindow) p.window = spec.window;
  if (spec.mask == Mask::kChunked) p.chunk = spec.window;
  if (builder.options().extras) {
    p.sinks = builder.normal("sinks", DType::kFloat32, {spec.hq}, 0, 1);
    p.lse = builder.output("lse", DType::kFloat32, {rows.total, spec.hq});
    p.softcap = 30;
  }
  builder.poison_tokens(p.q, rows, true);
  return std::move(builder).finish(p);
}

Call random_append(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const std::vector<std::int64_t> keys = kv_lengths(spec);
  attention::AppendParams p;
  Rows rows = builder.rows(row_lengths(spec), true);
  std::fill(rows.padded.begin(), rows.padded.end(), false);
  p.k = builder.normal("k", spec.io, {rows.total, spec.hk, spec.d}, 0, 1);
  p.v = builder.normal("v", spec.io, {rows.total, spec.hk, spec.d}, 0, 1);
  builder.set_sequences(p, rows);
  p.kv_lengths = builder.indices("kv_lengths", keys);
  p.cache = CacheMaker(builder, keys, true).make();
  if (spec.rope != Rope::kNone) {
    // Some models rotate a part of each key only.
    const std::int64_t pairs = builder.options().extras ? spec.d / 4 : spec.d / 2;
    const std::int64_t positions =
        keys.empty() ? 1 : std::max<std::int64_t>(1, *std::max_element(keys.begin(), keys.end()));
    p.rope.cos = builder.output("rope.cos", DType::kFloat32, {positions, pairs});
    p.rope.sin = builder.output("rope.sin", DType::kFloat32, {positions, pairs});
    const auto fill = [&](const TensorView& table, double (*function)(double)) {
      for_each_element(table, [&](std::int64_t i, std::int64_t offset) {
        const auto position = static_cast<double>(i / pairs), pair = static_cast<double>(i % pairs);
        const double angle = position * std::pow(10000.0, -pair / static_cast<double>(pairs));
        store_element(table, offset, function(angle));
      });
    };
    fill(p.rope.cos, [](double x) { return std::cos(x); });
    fill(p.rope.sin, [](double x) { return std::sin(x); });
    p.rope.interleaved = spec.rope == Rope::kPairs;
  }
  builder.poison_tokens(p.k, rows, true);
  builder.poison_tokens(p.v, rows, true);
  return std::move(builder).finish(p);
}

}  // namespace hyla::testing
