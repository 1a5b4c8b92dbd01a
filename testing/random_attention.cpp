// Random calls of attention over dense and paged caches, and of append.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

// Stored values of a quantised cache use most of its range; the scales bring them back to about 1.
constexpr std::int64_t kValueDims[] = {8, 16, 64, 72, 128, 192, 200, 256};
constexpr double kE4m3Deviation = 100.0, kInt8Deviation = 36.0;

void zero(const TensorView& view) {
  for_each_element(view,
                   [&](std::int64_t, std::int64_t offset) { store_element(view, offset, 0); });
}

bool quantised(DType dtype) { return dtype == DType::kFloat8E4M3 || dtype == DType::kInt8; }

double deviation(DType dtype) {
  return dtype == DType::kFloat8E4M3 ? kE4m3Deviation : dtype == DType::kInt8 ? kInt8Deviation : 1;
}

// One of keys and values: [blocks, tokens, Hk, D] with its scales, whatever the cache's layout; of
// a ragged cache one block of all tokens.
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
    ragged_ = spec_.page == 0 && builder.has("ragged cache", 0.5);
    heads_first_ = !ragged_ && builder.has("heads first", 0.4);
    given_ = empty && spec_.given_scales;
    shared_ = !empty && builder.has("one scale serves many", 0.2);
    with_scales_ = given_ || (quantised(spec_.kv) && !(empty && builder.options().packed) &&
                              !builder.has("no scales", 0.2));
    value_dim_ = spec_.dv == 0 && builder.has("value dim", 0.3)
                     ? kValueDims[builder.kind("which value dim", 8)]
                     : testing::value_dim(spec_);
    const bool mla = spec_.d == kMlaDim && spec_.dv == kMlaValueDim;
    const bool latent = mla && !builder.has("values elsewhere", 0.3);
    inside_ = latent && !empty;
    with_values_ = !(empty && (latent || builder.has("keys only", 0.15)));
  }

  std::int64_t value_dim() const { return value_dim_; }
  bool with_values() const { return with_values_; }
  // The rows of a ragged cache are as long as they are, and those of a dense one if all are.
  bool knows_lengths() const {
    const bool full = std::all_of(lengths_.begin(), lengths_.end(),
                                  [&](std::int64_t length) { return length == page_; });
    return (ragged_ || (spec_.page == 0 && full)) && builder_.has("no kv_lengths", 0.5);
  }

  attention::KvCache make() {
    with_zeros_ = spec_.page != 0 && !empty_ && builder_.has("page of zeros", 0.3);
    const std::int64_t spare =
        (spec_.page != 0 && builder_.options().shuffled ? 3 : 0) + (with_zeros_ ? 1 : 0);
    blocks_ = std::max<std::int64_t>(used_ + spare, spec_.page != 0 ? 1 : 0);
    pages_.resize(static_cast<std::size_t>(blocks_));
    std::iota(pages_.begin(), pages_.end(), 0);
    if (builder_.options().shuffled && spec_.page != 0) shuffle();
    Half k, v;
    if (with_values_ && !ragged_ && value_dim_ == spec_.d && builder_.has("fused", 0.3)) {
      fused(k, v);
    } else {
      k = half("cache.k", spec_.d);
      if (inside_) {
        v = inside(k);
      } else if (with_values_) {
        v = half("cache.v", value_dim_);
      }
    }
    attention::KvCache cache;
    cache.k = as_given(k.values);
    cache.v = as_given(v.values);
    cache.k_scales = as_given(k.scales);
    cache.v_scales = as_given(v.scales);
    if (heads_first_) cache.layout = attention::KvLayout::kHND;
    if (ragged_) {
      cache.kind = attention::KvCache::Kind::kRagged;
      cache.cu_kv = offsets();
      return cache;  // every token is some row's
    }
    cache.kind =
        spec_.page == 0 ? attention::KvCache::Kind::kDense : attention::KvCache::Kind::kPaged;
    if (spec_.page != 0) cache.page_table = table();
    poison_unread({k.values, v.values});
    if (!one_serves_many_) poison_unread({k.scales, v.scales});
    if (with_zeros_) {
      for (const TensorView& view : {k.values, v.values}) {
        if (view.present()) zero(view.slice(0, pages_.back(), 1));
      }
      for (const TensorView& view : {k.scales, v.scales}) {
        if (view.present() && !one_serves_many_) zero(view.slice(0, pages_.back(), 1));
      }
    }
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

  // [blocks, tokens, Hk, last]; an empty cache holds poison.
  TensorView tensor(const std::string& name, DType dtype, std::int64_t last, double mean,
                    double spread) {
    const std::int64_t blocks = ragged_ ? 1 : blocks_, tokens = ragged_ ? total() : page_;
    std::vector<std::int64_t> shape{blocks, tokens, spec_.hk, last};
    if (heads_first_) std::swap(shape[1], shape[2]);
    const TensorView made = empty_ ? builder_.output(name, dtype, shape)
                                   : builder_.normal(name, dtype, shape, mean, spread);
    return heads_first_ ? made.swap(1, 2) : made;
  }

  // Keys and values of a page side by side, in one of the layers of a block.
  void fused(Half& k, Half& v) {
    const std::int64_t layers = 1 + builder_.kind("layers", 3),
                       layer = builder_.kind("layer", layers);
    const auto both = [&](const std::string& name, DType dtype, std::int64_t last, double mean,
                          double spread, TensorView& keys, TensorView& values) {
      std::vector<std::int64_t> shape{blocks_, 2, layers, page_, spec_.hk, last};
      if (heads_first_) std::swap(shape[3], shape[4]);
      const TensorView made = empty_ ? builder_.output(name, dtype, shape)
                                     : builder_.normal(name, dtype, shape, mean, spread);
      for (std::int64_t other = 0; other < layers; ++other) {
        if (other != layer) poison(made.slice(2, other, 1));
      }
      const auto part = [&](std::int64_t index) {
        const TensorView view = made.select(1, index).select(1, layer);
        return heads_first_ ? view.swap(1, 2) : view;
      };
      keys = part(0);
      values = part(1);
    };
    const double size = with_scales_ ? deviation(spec_.kv) : 1;
    both("cache", spec_.kv, spec_.d, 0, size, k.values, v.values);
    if (given_ || (shared_ && with_scales_)) {
      k.scales = given_scales("cache.k_scales", spec_.d);
      v.scales = given_scales("cache.v_scales", spec_.d);
    } else if (with_scales_) {
      both("cache_scales", DType::kFloat32, groups(spec_.d), 1 / size, 0.1 / size, k.scales,
           v.scales);
    }
  }

  // Stored values use most of a quantised cache's range where scales bring them back.
  Half half(const std::string& name, std::int64_t dim) {
    const double size = with_scales_ ? deviation(spec_.kv) : 1;
    Half result;
    result.values = tensor(name, spec_.kv, dim, 0, size);
    if (given_ || (shared_ && with_scales_)) {
      result.scales = given_scales(name + "_scales", dim);
    } else if (with_scales_) {
      result.scales = tensor(name + "_scales", DType::kFloat32, groups(dim), 1 / size, 0.1 / size);
    }
    return result;
  }

  // One for all, one a head, or as many as append would write; some of them with few bits, whose
  // quotients are ties. Normal numbers divided by them use the format's range, and some are beyond.
  TensorView given_scales(const std::string& name, std::int64_t dim) {
    const std::int64_t whose = builder_.kind("whose scales", 3);
    const double mean = 2.5 / (spec_.kv == DType::kInt8 ? 127 : 448);
    const std::int64_t last = whose == 0 ? 1 : groups(dim);
    one_serves_many_ = whose < 2;
    TensorView made;
    const std::int64_t blocks = ragged_ ? 1 : blocks_, tokens = ragged_ ? total() : page_;
    if (whose < 2) {
      made = builder_.normal(name, DType::kFloat32, {1, 1, whose == 0 ? 1 : spec_.hk, last}, mean,
                             0.1 * mean);
    } else {
      std::vector<std::int64_t> shape{blocks, tokens, spec_.hk, last};
      if (heads_first_) std::swap(shape[1], shape[2]);
      made = builder_.normal(name, DType::kFloat32, shape, mean, 0.1 * mean);
      if (heads_first_) made = made.swap(1, 2);
    }
    const std::int64_t bits = builder_.kind("bits of scales", 3);  // all, as of bfloat16, one
    for_each_element(made, [&](std::int64_t, std::int64_t offset) {
      const auto scale = static_cast<float>(load_element(made, offset));
      if (bits == 1) store_element(made, offset, static_cast<float>(bfloat16(scale)));
      if (bits == 2) store_element(made, offset, std::exp2(std::round(std::log2(std::abs(scale)))));
    });
    const std::int64_t shape[] = {blocks, tokens, spec_.hk};
    for (int d = 0; d < 3; ++d) {
      if (made.shape[d] != shape[d]) made.shape[d] = shape[d], made.strides[d] = 0;
    }
    return made;
  }

  // Values that are the first part of their keys.
  Half inside(const Half& k) const {
    Half result{k.values.slice(3, 0, value_dim_), k.scales};
    const std::int64_t scales = with_scales_ ? k.scales.shape[3] : 1;
    if (scales > 1) result.scales = k.scales.slice(3, 0, value_dim_ / (spec_.d / scales));
    return result;
  }

  TensorView as_given(const TensorView& view) const {
    if (!view.present()) return view;
    return ragged_ ? view.select(0, 0) : heads_first_ ? view.swap(1, 2) : view;
  }

  std::int64_t total() const {
    return std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0});
  }

  TensorView offsets() {
    std::vector<std::int64_t> values{0};
    for (std::int64_t length : lengths_) values.push_back(values.back() + length);
    return builder_.indices("cache.cu_kv", values);
  }

  // Scales of a head: one, two, or one for each eight values, or for more.
  std::int64_t groups(std::int64_t dim) const {
    if (builder_.has("fine scales", 0.4)) {
      const std::int64_t run = std::int64_t{8} << builder_.kind("run of a scale", 4);
      return dim % run == 0 ? dim / run : dim / 8;
    }
    return builder_.options().extras && dim % 16 == 0 && !inside_ ? 2 : 1;
  }

  // Entries that are not needed point nowhere, some of them below zero; there may be more of them.
  TensorView table() {
    const std::int64_t spare = builder_.has("spare pages", 0.3) ? 3 : 0;
    const bool negative = builder_.has("negative pages", 0.5);
    const Random draw = builder_.random("pages of zeros");
    std::vector<std::int64_t> entries;
    std::size_t next = 0;
    for (std::int64_t length : lengths_) {
      for (std::int64_t c = 0; c < columns_ + spare; ++c) {
        const std::int64_t nowhere = negative && c % 2 == 0 ? -1 - c : CaseBuilder::kNobody;
        entries.push_back(c * page_ < length ? pages_[next++] : nowhere);
        // The last page, of zeros, is any row's.
        const auto at = static_cast<std::int64_t>(entries.size());
        if (c * page_ < length && with_zeros_ && draw.chance(at, 0.2)) {
          entries.back() = pages_.back();
        }
      }
    }
    return builder_.indices("cache.page_table", entries,
                            {static_cast<std::int64_t>(lengths_.size()), columns_ + spare});
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
  bool with_zeros_ = false, ragged_ = false, heads_first_ = false, with_scales_ = false,
       with_values_ = true, inside_ = false, given_ = false, shared_ = false,
       one_serves_many_ = false;
  std::int64_t value_dim_ = 0;
  std::int64_t page_ = 0, columns_ = 0, used_ = 0, blocks_ = 0;
  std::vector<std::int64_t> pages_;
};

// The slot of every token of the input, instead of rows; of some that have one, and of those
// between rows, none. Those are poison.
void set_slots(CaseBuilder& builder, attention::AppendParams& p, const Rows& rows,
               const std::vector<std::int64_t>& keys) {
  const Random draw = builder.random("skipped tokens");
  const attention::KvCache& cache = p.cache;
  const std::int64_t size = cache.k.shape[cache.layout == attention::KvLayout::kHND ? 2 : 1];
  const auto count = static_cast<std::size_t>(rows.total);
  std::vector<std::int64_t> slots(count, -1), positions(count, CaseBuilder::kNobody);
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    const auto r = static_cast<std::size_t>(row);
    for (std::int64_t i = 0; i < rows.lengths[r]; ++i) {
      const std::int64_t position = keys[r] - rows.lengths[r] + i;
      const std::int64_t number = rows.begins[r] + i;
      if (builder.options().padding && draw.chance(number, 0.2)) continue;
      std::int64_t slot = row * size + position;
      if (cache.kind == attention::KvCache::Kind::kRagged) {
        slot = static_cast<std::int64_t>(load_element(cache.cu_kv, row * cache.cu_kv.strides[0])) +
               position;
      } else if (cache.kind == attention::KvCache::Kind::kPaged) {
        const TensorView& table = cache.page_table;
        const auto page = static_cast<std::int64_t>(
            load_element(table, row * table.strides[0] + position / size * table.strides[1]));
        slot = page * size + position % size;
      }
      slots[static_cast<std::size_t>(number)] = slot;
      positions[static_cast<std::size_t>(number)] = position;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (slots[i] >= 0) continue;
    poison(p.k.slice(0, static_cast<std::int64_t>(i), 1));
    if (p.v.present()) poison(p.v.slice(0, static_cast<std::int64_t>(i), 1));
    slots[i] = builder.has("other negative slots", 0.5) ? -1 - static_cast<std::int64_t>(i) : -1;
  }
  p.slots = builder.indices("slots", slots);
  if (p.rope.cos.present()) p.positions = builder.indices("positions", positions);
  p.cache.page_table = p.cache.cu_kv = TensorView{};
}

}  // namespace

Call random_attention(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const std::vector<std::int64_t> keys = kv_lengths(spec);
  attention::RunParams p;
  Rows rows = builder.rows(row_lengths(spec), true);
  std::fill(rows.padded.begin(), rows.padded.end(), false);  // attention has no padding rows
  CacheMaker maker(builder, keys, false);
  // Some models project a gate beside every head's queries.
  const std::int64_t beside = builder.has("gates beside queries", 0.2) ? spec.d : 0;
  const TensorView q = builder.normal("q", spec.io, {rows.total, spec.hq, spec.d + beside}, 0, 1);
  p.q = q.slice(2, 0, spec.d);
  if (beside > 0) poison(q.slice(2, spec.d, beside));
  p.out = builder.output("out", spec.io, {rows.total, spec.hq, maker.value_dim()});
  builder.set_sequences(p, rows);
  p.cache = maker.make();
  if (!maker.knows_lengths()) p.kv_lengths = builder.indices("kv_lengths", keys);
  // Windows and chunks without a causal mask look in both directions.
  p.causal = spec.mask != Mask::kNone && (spec.mask == Mask::kCausal || !builder.has("both", 0.3));
  constexpr double kScales[] = {0.21, 0.0, -0.3};
  if (builder.has("scale", 0.3)) p.scale = kScales[builder.kind("which scale", 3)];
  if (spec.mask == Mask::kWindow) p.window = spec.window;
  if (spec.mask == Mask::kChunked) p.chunk = spec.window;
  // Together, and with variety one without the other.
  const bool extras = builder.options().extras;
  if (extras != builder.has("other sinks", 0.3)) {
    const DType sinks = builder.any_float("sinks", DType::kFloat32);
    p.sinks = builder.loose_normal("sinks", sinks, {spec.hq}, 0, 1);
  }
  if (extras != builder.has("other lse", 0.3)) {
    p.lse = builder.add_loose("lse", DType::kFloat32, {rows.total, spec.hq}).view();
  }
  constexpr double kCaps[] = {30, 50, 1.5};
  if (extras != builder.has("other softcap", 0.3)) p.softcap = kCaps[builder.kind("cap", 3)];
  builder.poison_tokens(p.q, rows, true);
  return std::move(builder).finish(p);
}

Call random_append(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const std::vector<std::int64_t> keys = kv_lengths(spec);
  attention::AppendParams p;
  Rows rows = builder.rows(row_lengths(spec), true);
  std::fill(rows.padded.begin(), rows.padded.end(), false);
  CacheMaker maker(builder, keys, true);
  p.k = builder.normal("k", spec.io, {rows.total, spec.hk, spec.d}, 0, 1);
  if (maker.with_values()) {
    p.v = builder.normal("v", spec.io, {rows.total, spec.hk, maker.value_dim()}, 0, 1);
  }
  if (!spec.by_slots) builder.set_sequences(p, rows);
  p.cache = maker.make();
  p.given_scales = spec.given_scales;
  if (!spec.by_slots && !maker.knows_lengths()) {
    p.kv_lengths = builder.indices("kv_lengths", keys);
  }
  if (spec.rope != Rope::kNone) {
    // Some models rotate a part of each key only.
    const std::int64_t pairs = builder.options().extras ? spec.d / 4 : spec.d / 2;
    const std::int64_t positions =
        keys.empty() ? 1 : std::max<std::int64_t>(1, *std::max_element(keys.begin(), keys.end()));
    p.rope.cos = builder.add_loose("rope.cos", DType::kFloat32, {positions, pairs}).view();
    p.rope.sin = builder.add_loose("rope.sin", DType::kFloat32, {positions, pairs}).view();
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
  if (spec.by_slots) set_slots(builder, p, rows, keys);
  builder.poison_tokens(p.k, rows, true);
  if (p.v.present()) builder.poison_tokens(p.v, rows, true);
  return std::move(builder).finish(p);
}

}  // namespace hyla::testing
