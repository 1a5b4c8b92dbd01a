// The memory of a Case: pools with poison wherever nothing may be read, and the parameters over it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "ops/attention_case.h"

namespace attention_test {

class Memory {
 public:
  explicit Memory(const Case& c) : c_(c), rng_(c.seed) {
    lay_out_rows();
    make_pool();
    make_queries();
  }

  hyla::attention::RunParams params() {
    hyla::attention::RunParams p;
    const std::int64_t tokens = total_;
    p.q = q_.view({tokens, c_.query_heads + 1, c_.dim + 3})
              .slice(1, 1, c_.query_heads)
              .slice(2, 0, c_.dim);
    p.out = out_.view({tokens, c_.query_heads, c_.value_dim + kPad}).slice(2, 0, c_.value_dim);
    p.cache = cache();
    set_rows(p);
    p.kv_lengths = kv_lengths_.view({rows()});
    p.causal = c_.causal;
    p.window = c_.window;
    p.chunk = c_.chunk;
    if (c_.sinks) p.sinks = sinks_.view({c_.query_heads});
    p.softcap = c_.softcap;
    p.scale = c_.scale;
    if (c_.lse) p.lse = lse_.view({tokens, c_.query_heads + 1}).slice(1, 0, c_.query_heads);
    return p;
  }

  template <class Params>
  void set_rows(Params& p) {
    if (c_.by_starts) {
      p.starts = starts_.view({rows()});
      p.lengths = lengths_.view({rows()});
    } else {
      p.cu_seqlens = offsets_.view({rows() + 1});
    }
  }

  KvCache cache() {
    const std::int64_t s = size_, h = c_.kv_heads, a = heads_first() ? h : s,
                       b = heads_first() ? s : h;
    const TensorView table =
        c_.pool >= Pool::kPaged ? table_.view({rows(), columns_}) : TensorView();
    KvCache cache;
    switch (c_.pool) {
      case Pool::kDense:
        cache = KvCache::dense(k_.view({outers_, a, b, c_.dim}), {}, c_.layout);
        cache.v = v_.view({outers_, a, b, c_.value_dim});
        break;
      case Pool::kRagged:
        cache = KvCache::ragged(k_.view({s, h, c_.dim}), v_.view({s, h, c_.value_dim}),
                                cu_kv_.view({rows() + 1}));
        break;
      case Pool::kPaged:
        cache = KvCache::paged(k_.view({outers_, a, b, c_.dim}), {}, table, c_.layout);
        cache.v =
            c_.mla ? cache.k.slice(3, 0, c_.value_dim) : v_.view({outers_, a, b, c_.value_dim});
        break;
      case Pool::kFused:
        cache = KvCache::fused(k_.view({outers_, 2, a, b, c_.dim}), table, c_.layout);
        break;
      case Pool::kBlocks:
        cache = KvCache::blocks(k_.view({outers_, 2, c_.layers, s, h, c_.dim}), c_.layer, table);
        break;
    }
    if (c_.granularity > 0) {
      const std::int64_t nk = c_.dim / c_.granularity, nv = c_.value_dim / c_.granularity;
      if (c_.pool == Pool::kRagged) {
        cache.k_scales = k_scales_.view({s, h, nk});
        cache.v_scales = v_scales_.view({s, h, nv});
      } else {
        cache.k_scales = k_scales_.view({outers_, a, b, nk});
        cache.v_scales =
            c_.mla ? cache.k_scales.slice(3, 0, nv) : v_scales_.view({outers_, a, b, nv});
      }
    }
    return cache;
  }

  // Runs the matrix formulas and compares every element, and that everything else is untouched.
  void check() const {
    std::vector<bool> covered(static_cast<std::size_t>(total_), false);
    for (std::int64_t row = 0; row < rows(); ++row) {
      for (std::int64_t h = 0; h < c_.query_heads; ++h) check_head(row, h);
      for (std::int64_t i = 0; i < c_.queries[static_cast<std::size_t>(row)]; ++i) {
        covered[static_cast<std::size_t>(start(row) + i)] = true;
      }
    }
    for (std::int64_t t = 0; t < total_; ++t) {
      for (std::int64_t h = 0; h < c_.query_heads; ++h) {
        const std::int64_t at = (t * c_.query_heads + h) * (c_.value_dim + kPad);
        for (std::int64_t d = covered[static_cast<std::size_t>(t)] ? c_.value_dim : 0;
             d < c_.value_dim + kPad; ++d) {
          ASSERT_TRUE(std::isnan(out_.get(at + d))) << "token " << t << " was written outside out";
        }
      }
      ASSERT_TRUE(std::isnan(lse_.get(t * (c_.query_heads + 1) + c_.query_heads)));
      if (!covered[static_cast<std::size_t>(t)] || !c_.lse) {
        ASSERT_TRUE(std::isnan(lse_.get(t * (c_.query_heads + 1))));
      }
    }
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(c_.queries.size()); }
  std::int64_t start(std::int64_t row) const { return begin_[static_cast<std::size_t>(row)]; }
  std::int64_t total() const { return total_; }
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(rng_);
  }

  // Offsets of [row's token, head] in the storage of keys and values, by the layout's formula; the
  // head's values follow.
  std::int64_t k_offset(std::int64_t row, std::int64_t token, std::int64_t h) const {
    return offset(row, token, h, c_.dim, 0);
  }
  std::int64_t v_offset(std::int64_t row, std::int64_t token, std::int64_t h) const {
    if (c_.mla) return k_offset(row, token, h);
    return offset(row, token, h, c_.value_dim, in_one_pool() ? 1 : 0);
  }
  // The same in the scales, which have pools of their own.
  std::int64_t scale_offset(std::int64_t row, std::int64_t token, std::int64_t h,
                            std::int64_t dim) const {
    const auto [outer, s] = place(row, token);
    if (c_.pool == Pool::kRagged) return (s * c_.kv_heads + h) * dim;
    const std::int64_t inner = heads_first() ? h * size_ + s : s * c_.kv_heads + h;
    return (outer * size_ * c_.kv_heads + inner) * dim;
  }
  bool in_one_pool() const { return c_.pool == Pool::kFused || c_.pool == Pool::kBlocks; }
  Storage& k_storage() { return k_; }
  Storage& v_storage() { return in_one_pool() || c_.mla ? k_ : v_; }
  Storage& k_scale_storage() { return k_scales_; }
  Storage& v_scale_storage() { return v_scales_; }

 private:
  static constexpr std::int64_t kPad = 5;
  struct Place {
    std::int64_t outer, token;
  };

  bool heads_first() const {
    return c_.layout == KvLayout::kHND && c_.pool != Pool::kRagged && c_.pool != Pool::kBlocks;
  }

  Storage indices(const std::vector<std::int64_t>& values) const {
    Storage result(c_.index, static_cast<std::int64_t>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      result.set(static_cast<std::int64_t>(i), static_cast<double>(values[i]));
    }
    return result;
  }

  void lay_out_rows() {
    std::vector<std::int64_t> offsets = {2};  // the first two tokens belong to nobody
    for (std::int64_t n : c_.queries) offsets.push_back(offsets.back() + n);
    begin_.assign(offsets.begin(), offsets.end() - 1);
    total_ = offsets.back() + 1;  // nor does the last
    if (c_.by_starts) {           // back to front
      std::int64_t at = total_;
      for (std::size_t r = 0; r < c_.queries.size(); ++r) begin_[r] = at -= c_.queries[r];
    }
    offsets_ = indices(offsets);
    starts_ = indices(begin_);
    lengths_ = indices(c_.queries);
    kv_lengths_ = indices(c_.keys);
  }

  // Which keys of a row any of its queries sees.
  bool needed(std::int64_t row, std::int64_t key) const {
    const std::int64_t queries = c_.queries[static_cast<std::size_t>(row)];
    const std::int64_t keys = c_.keys[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < queries; ++i) {
      if (sees(c_, keys - queries + i, key)) return true;
    }
    return false;
  }

  void make_pool() {
    const std::int64_t longest = *std::max_element(c_.keys.begin(), c_.keys.end());
    if (c_.pool == Pool::kDense) {
      outers_ = rows();
      size_ = longest + 3;
    } else if (c_.pool == Pool::kRagged) {
      std::vector<std::int64_t> cu = {1};
      for (std::int64_t n : c_.keys) cu.push_back(cu.back() + n + 2);
      outers_ = 1;
      size_ = cu.back() + 1;
      cu_values_ = cu;
      cu_kv_ = indices(cu);
    } else {
      size_ = c_.page;
      columns_ = (longest + size_ - 1) / size_ + 2;
      make_table();
    }
    const std::int64_t tokens = outers_ * size_ * c_.kv_heads;
    const std::int64_t copies = c_.pool == Pool::kBlocks  ? 2 * c_.layers
                                : c_.pool == Pool::kFused ? 2
                                                          : 1;
    k_ = Storage(c_.kv, tokens * c_.dim * copies);
    v_ = Storage(c_.kv, tokens * c_.value_dim);
    k_.fill(kNaN);
    v_.fill(kNaN);
    if (c_.granularity > 0) {
      k_scales_ = Storage(DType::kFloat32, tokens * (c_.dim / c_.granularity));
      v_scales_ = Storage(DType::kFloat32, tokens * (c_.value_dim / c_.granularity));
      k_scales_.fill(kNaN);
      v_scales_.fill(kNaN);
    }
    for (std::int64_t row = 0; row < rows(); ++row) {
      for (std::int64_t t = 0; t < c_.keys[static_cast<std::size_t>(row)]; ++t) {
        if (!needed(row, t)) continue;  // stays poison
        for (std::int64_t h = 0; h < c_.kv_heads; ++h) {
          fill(k_, k_offset(row, t, h), c_.dim);
          if (!c_.mla) fill(v_storage(), v_offset(row, t, h), c_.value_dim);
          if (c_.granularity == 0) continue;
          const std::int64_t nk = c_.dim / c_.granularity, nv = c_.value_dim / c_.granularity;
          for (std::int64_t i = 0; i < nk; ++i)
            k_scales_.set(scale_offset(row, t, h, nk) + i, uniform(0.01, 0.03));
          for (std::int64_t i = 0; i < nv; ++i)
            v_scales_.set(scale_offset(row, t, h, nv) + i, uniform(0.01, 0.03));
        }
      }
    }
  }

  // Every needed page its own, in random order, with pages between them that belong to nobody.
  void make_table() {
    std::vector<std::int64_t> table(static_cast<std::size_t>(rows() * columns_));
    std::int64_t used = 0;
    for (std::int64_t row = 0; row < rows(); ++row) {
      for (std::int64_t col = 0; col < columns_; ++col) {
        bool wanted = false;
        for (std::int64_t t = col * size_;
             t < (col + 1) * size_ && t < c_.keys[static_cast<std::size_t>(row)]; ++t) {
          wanted = wanted || needed(row, t);
        }
        // Not needed: an id no pool has. As uint32 both are huge.
        const std::int64_t nowhere = col % 2 == 0 ? -1 : std::int64_t{2'000'000'000};
        table[static_cast<std::size_t>(row * columns_ + col)] = wanted ? used++ : nowhere;
      }
    }
    outers_ = used + 2;
    std::vector<std::int64_t> order(static_cast<std::size_t>(outers_));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
    std::shuffle(order.begin(), order.end(), rng_);
    for (auto& entry : table) {
      if (entry >= 0 && entry < used) entry = order[static_cast<std::size_t>(entry)];
    }
    table_values_ = table;
    table_ = indices(table);
  }

  Place place(std::int64_t row, std::int64_t token) const {
    if (c_.pool == Pool::kDense) return {row, token};
    if (c_.pool == Pool::kRagged) return {0, cu_values_[static_cast<std::size_t>(row)] + token};
    return {table_values_[static_cast<std::size_t>(row * columns_ + token / size_)], token % size_};
  }

  std::int64_t offset(std::int64_t row, std::int64_t token, std::int64_t h, std::int64_t dim,
                      std::int64_t which) const {
    const auto [outer, s] = place(row, token);
    const std::int64_t inner = heads_first() ? h * size_ + s : s * c_.kv_heads + h;
    const std::int64_t page = size_ * c_.kv_heads;
    if (c_.pool == Pool::kFused) return ((outer * 2 + which) * page + inner) * dim;
    if (c_.pool == Pool::kBlocks)
      return (((outer * 2 + which) * c_.layers + c_.layer) * page + inner) * dim;
    return (outer * page + inner) * dim;
  }

  void fill(Storage& storage, std::int64_t at, std::int64_t count) {
    const bool coarse = c_.kv == DType::kInt8 || c_.granularity > 0;
    for (std::int64_t d = 0; d < count; ++d) {
      storage.set(at + d, coarse && c_.granularity > 0 ? uniform(-100, 100)
                          : coarse                     ? uniform(-3, 3)
                                                       : uniform(-2, 2));
    }
  }

  void make_queries() {
    q_ = Storage(c_.io, total_ * (c_.query_heads + 1) * (c_.dim + 3));
    q_.fill(kNaN);
    for (std::int64_t row = 0; row < rows(); ++row) {
      for (std::int64_t i = 0; i < c_.queries[static_cast<std::size_t>(row)]; ++i) {
        for (std::int64_t h = 0; h < c_.query_heads; ++h) {
          for (std::int64_t d = 0; d < c_.dim; ++d)
            q_.set(q_offset(start(row) + i, h) + d, uniform(-2, 2));
        }
      }
    }
    out_ = Storage(c_.io, total_ * c_.query_heads * (c_.value_dim + kPad));
    out_.fill(kNaN);
    lse_ = Storage(DType::kFloat32, total_ * (c_.query_heads + 1));
    lse_.fill(kNaN);
    sinks_ = Storage(c_.io, c_.query_heads);
    for (std::int64_t h = 0; h < c_.query_heads; ++h) sinks_.set(h, uniform(-2, 4));
  }

  std::int64_t q_offset(std::int64_t token, std::int64_t h) const {
    return (token * (c_.query_heads + 1) + h + 1) * (c_.dim + 3);
  }

  Matrix gather(std::int64_t row, std::int64_t h, bool values) const {
    Matrix result;
    const std::int64_t dim = values ? c_.value_dim : c_.dim;
    const Storage& storage = values && !in_one_pool() && !c_.mla ? v_ : k_;
    const std::int64_t k_scale_count = c_.granularity > 0 ? c_.dim / c_.granularity : 0;
    for (std::int64_t t = 0; t < c_.keys[static_cast<std::size_t>(row)]; ++t) {
      std::vector<double> one(static_cast<std::size_t>(dim), kNaN);
      if (needed(row, t)) {
        const std::int64_t at = values ? v_offset(row, t, h) : k_offset(row, t, h);
        for (std::int64_t d = 0; d < dim; ++d) {
          double value = storage.get(at + d);
          if (c_.granularity > 0) {
            const bool from_k = !values || c_.mla;
            const std::int64_t count = from_k ? k_scale_count : c_.value_dim / c_.granularity;
            value *= (from_k ? k_scales_ : v_scales_)
                         .get(scale_offset(row, t, h, count) + d / c_.granularity);
          }
          one[static_cast<std::size_t>(d)] = value;
        }
      }
      result.push_back(one);
    }
    return result;
  }

  void check_head(std::int64_t row, std::int64_t h) const {
    Matrix q;
    for (std::int64_t i = 0; i < c_.queries[static_cast<std::size_t>(row)]; ++i) {
      std::vector<double> one;
      for (std::int64_t d = 0; d < c_.dim; ++d)
        one.push_back(q_.get(q_offset(start(row) + i, h) + d));
      q.push_back(one);
    }
    const std::int64_t kv_head = h * c_.kv_heads / c_.query_heads;
    const double scale = c_.scale.value_or(std::pow(static_cast<double>(c_.dim), -0.5));
    const Expected want =
        attend(c_, q, gather(row, kv_head, false), gather(row, kv_head, true), scale,
               c_.sinks ? std::optional<double>(sinks_.get(h)) : std::nullopt);
    // Both sides compute in float64: a logit is off by D roundings of its terms, a sum by one a
    // key.
    const double keys = static_cast<double>(c_.keys[static_cast<std::size_t>(row)]);
    const double relative =
        0x1p-52 * (static_cast<double>(c_.dim) * (want.largest_logit + 1) + keys + 16);
    for (std::size_t i = 0; i < q.size(); ++i) {
      const std::int64_t token = start(row) + static_cast<std::int64_t>(i);
      for (std::size_t d = 0; d < want.out[i].size(); ++d) {
        const double got = out_.get((token * c_.query_heads + h) * (c_.value_dim + kPad) +
                                    static_cast<std::int64_t>(d));
        const double exact = want.out[i][d];
        ASSERT_LE(std::fabs(got - exact), half_ulp(c_.io, exact) + relative * want.largest_value)
            << "row " << row << " head " << h << " query " << i << " dim " << d << ": " << got
            << " for " << exact;
      }
      if (!c_.lse) continue;
      const double got = lse_.get(token * (c_.query_heads + 1) + h);
      if (std::isinf(want.lse[i])) {
        ASSERT_EQ(got, want.lse[i]);
      } else {
        ASSERT_LE(std::fabs(got - want.lse[i]), half_ulp(DType::kFloat32, want.lse[i]) + relative)
            << "row " << row;
      }
    }
  }

  Case c_;
  std::mt19937 rng_;
  std::int64_t total_ = 0, outers_ = 0, size_ = 0, columns_ = 0;
  std::vector<std::int64_t> begin_, cu_values_, table_values_;
  Storage q_, out_, lse_, sinks_, k_, v_, k_scales_, v_scales_;
  Storage offsets_, starts_, lengths_, kv_lengths_, cu_kv_, table_;
};

}  // namespace attention_test
