#include <algorithm>
#include <cmath>
#include <complex>

#include "testing/naive.h"

namespace hyla::testing {
namespace {

using std::int64_t;

template <class Real>
class Append {
 public:
  explicit Append(const attention::AppendParams& p) : p_(p) {}

  void run() const {
    if (p_.slots.present()) {
      for (int64_t i = 0; i < p_.k.shape[0]; ++i) {
        const int64_t slot = integer(p_.slots, {i});
        if (slot < 0) continue;
        const int64_t position = p_.positions.present() ? integer(p_.positions, {i}) : 0;
        append(i, position, [&](const TensorView& x) { return flat(x, slot); });
      }
      return;
    }
    for (int64_t row = 0; row < naive_rows(p_); ++row) {
      const int64_t begin = naive_begin(p_, row), length = naive_length(p_, row);
      for (int64_t i = 0; i < length; ++i) {
        const int64_t position = naive_keys(p_, row) - length + i;
        append(begin + i, position, [&](const TensorView& x) { return place(x, row, position); });
      }
    }
  }

 private:
  // `place`: [heads, D] of a tensor of the cache.
  template <class Place>
  void append(int64_t token, int64_t position, Place place) const {
    const auto both = [&](const TensorView& values, const TensorView& scales, int64_t head) {
      return Target{place(values).select(0, head),
                    scales.present() ? place(scales).select(0, head) : TensorView{}};
    };
    for (int64_t head = 0; head < p_.k.shape[1]; ++head) {
      std::vector<Real> key = vector(p_.k, token, head);
      if (p_.rope.cos.present()) rotate(key, position);
      write(key, both(p_.cache.k, p_.cache.k_scales, head));
      if (!p_.v.present()) continue;
      write(vector(p_.v, token, head), both(p_.cache.v, p_.cache.v_scales, head));
    }
  }

  struct Target {
    TensorView values, scales;
  };

  // The tokens of all pages, or rows, counted through.
  TensorView flat(const TensorView& x, int64_t slot) const {
    if (x.rank == 3) return x.select(0, slot);
    const TensorView nhd = p_.cache.layout == attention::KvLayout::kHND ? x.swap(1, 2) : x;
    int64_t outer = 0;
    for (; slot >= nhd.shape[1]; ++outer) slot -= nhd.shape[1];
    return nhd.select(0, outer).select(0, slot);
  }

  static std::vector<Real> vector(const TensorView& x, int64_t token, int64_t head) {
    std::vector<Real> result;
    for (int64_t d = 0; d < x.shape[2]; ++d) {
      result.push_back(static_cast<Real>(number(x, {token, head, d})));
    }
    return result;
  }

  // Pairs as complex numbers, turned by a complex number.
  void rotate(std::vector<Real>& key, int64_t position) const {
    const auto pairs = static_cast<std::size_t>(p_.rope.cos.shape[1]);
    for (std::size_t i = 0; i < pairs; ++i) {
      Real& re = key[p_.rope.interleaved ? 2 * i : i];
      Real& im = key[p_.rope.interleaved ? 2 * i + 1 : i + pairs];
      const auto column = static_cast<int64_t>(i);
      const std::complex<Real> turn(static_cast<Real>(number(p_.rope.cos, {position, column})),
                                    static_cast<Real>(number(p_.rope.sin, {position, column})));
      const std::complex<Real> turned = std::complex<Real>(re, im) * turn;
      re = turned.real();
      im = turned.imag();
    }
  }

  TensorView place(const TensorView& x, int64_t row, int64_t position) const {
    if (p_.cache.kind == attention::KvCache::Kind::kRagged) {
      return x.select(0, integer(p_.cache.cu_kv, {row}) + position);
    }
    const TensorView nhd = p_.cache.layout == attention::KvLayout::kHND ? x.swap(1, 2) : x;
    if (p_.cache.kind == attention::KvCache::Kind::kDense) {
      return nhd.select(0, row).select(0, position);
    }
    const int64_t block = integer(p_.cache.page_table, {row, position / nhd.shape[1]});
    return nhd.select(0, block).select(0, position % nhd.shape[1]);
  }

  static float own_scale(const std::vector<Real>& values, int64_t begin, int64_t run, DType dtype) {
    Real largest = 0;
    for (int64_t e = begin; e < begin + run; ++e) {
      largest = std::max(largest, std::abs(values[static_cast<std::size_t>(e)]));
    }
    return static_cast<float>(largest / static_cast<Real>(dtype == DType::kInt8 ? 127 : 448));
  }

  void write(const std::vector<Real>& values, const Target& target) const {
    const TensorView &to = target.values, &stored = target.scales;
    const auto dim = static_cast<int64_t>(values.size());
    const int64_t runs = stored.present() ? stored.shape[0] : 1;
    for (int64_t d = 0; d < dim; ++d) {
      Real value = values[static_cast<std::size_t>(d)];
      if (stored.present()) {
        const int64_t run = dim / runs, r = d / run;
        const float scale = p_.given_scales ? static_cast<float>(number(stored, {r}))
                                            : own_scale(values, r * run, run, to.dtype);
        if (!p_.given_scales) put(stored, {r}, scale);
        value = scale == 0 ? Real(0) : value / static_cast<Real>(scale);
      }
      put(to, {d}, static_cast<double>(value));
    }
  }

  const attention::AppendParams& p_;
};

}  // namespace

void naive_append(const attention::AppendParams& p, const NaiveOptions& options) {
  if (options.float64) {
    Append<double>(p).run();
  } else {
    Append<float>(p).run();
  }
}

}  // namespace hyla::testing
