#include <cmath>
#include <limits>

#include "testing/naive.h"

namespace hyla::testing {
namespace {

using attention::KvCache;
using std::int64_t;

// Logits first, all of them, then their largest, then the sums: three passes without any trick.
template <class Real>
class Attention {
 public:
  Attention(const attention::RunParams& p, DType operands) : p_(p), operands_(operands) {}

  void run() {
    for (int64_t row = 0; row < naive_rows(p_); ++row) {
      const int64_t begin = naive_begin(p_, row), length = naive_length(p_, row);
      if (length == 0) continue;
      const int64_t group = p_.q.shape[1] / kv_heads();
      for (int64_t kv_head = 0; kv_head < kv_heads(); ++kv_head) {
        const std::vector<Real> k = matrix(p_.cache.k, p_.cache.k_scales, row, kv_head);
        const std::vector<Real> v = matrix(p_.cache.v, p_.cache.v_scales, row, kv_head);
        for (int64_t i = 0; i < length; ++i) {
          for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
            query(row, begin + i, keys(row) - length + i, head, k, v);
          }
        }
      }
    }
  }

 private:
  int64_t keys(int64_t row) const { return naive_keys(p_, row); }

  // [D] of one key or value.
  TensorView vector(const TensorView& x, int64_t row, int64_t token, int64_t head) const {
    if (p_.cache.kind == KvCache::Kind::kRagged) {
      return x.select(0, integer(p_.cache.cu_kv, {row}) + token).select(0, head);
    }
    const TensorView nhd = p_.cache.layout == attention::KvLayout::kHND ? x.swap(1, 2) : x;
    if (p_.cache.kind == KvCache::Kind::kDense) {
      return nhd.select(0, row).select(0, token).select(0, head);
    }
    const int64_t page = nhd.shape[1];
    const int64_t block = integer(p_.cache.page_table, {row, token / page});
    return nhd.select(0, block).select(0, token % page).select(0, head);
  }

  Real stored(const TensorView& values, const TensorView& scales, int64_t i) const {
    const double value = number(values, {i});
    if (!scales.present()) return static_cast<Real>(value);
    const int64_t run = values.shape[0] / scales.shape[0];
    return static_cast<Real>(value) * static_cast<Real>(number(scales, {i / run}));
  }

  bool visible(int64_t query, int64_t key) const {
    if (p_.causal && key > query) return false;
    if (p_.window > 0 && std::abs(query - key) >= p_.window) return false;
    // A query before the first key is in no run of a key.
    if (p_.chunk > 0 && (query < 0 || query / p_.chunk != key / p_.chunk)) return false;
    return true;
  }

  Real operand(Real value) const { return static_cast<Real>(rounded(value, operands_)); }

  // Keys or values of one row and head as an implementation may see them, one after the other.
  std::vector<Real> matrix(const TensorView& x, const TensorView& scales, int64_t row,
                           int64_t head) const {
    std::vector<Real> result;
    for (int64_t key = 0; key < keys(row); ++key) {
      if (!needed(row, key)) {
        result.insert(result.end(), static_cast<std::size_t>(x.shape[x.rank - 1]), Real(0));
        continue;
      }
      const TensorView values = vector(x, row, key, head);
      const TensorView scale = scales.present() ? vector(scales, row, key, head) : TensorView();
      for (int64_t i = 0; i < values.shape[0]; ++i) {
        result.push_back(operand(stored(values, scale, i)));
      }
    }
    return result;
  }

  bool needed(int64_t row, int64_t key) const {
    const int64_t length = naive_length(p_, row);
    for (int64_t i = 0; i < length; ++i) {
      if (visible(keys(row) - length + i, key)) return true;
    }
    return false;
  }

  Real logit(const std::vector<Real>& q, const Real* k) const {
    Real sum = 0;
    for (std::size_t i = 0; i < q.size(); ++i) sum += q[i] * k[i];
    sum *= static_cast<Real>(p_.scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size()))));
    if (p_.softcap <= 0) return sum;
    const auto cap = static_cast<Real>(p_.softcap);
    return cap * std::tanh(sum / cap);
  }

  void query(int64_t row, int64_t token, int64_t position, int64_t head, const std::vector<Real>& k,
             const std::vector<Real>& v) {
    std::vector<Real> q;
    for (int64_t i = 0; i < p_.q.shape[2]; ++i) {
      q.push_back(static_cast<Real>(number(p_.q, {token, head, i})));
    }
    std::vector<int64_t> seen;
    std::vector<Real> logits;
    Real top = -std::numeric_limits<Real>::infinity();
    for (int64_t key = 0; key < keys(row); ++key) {
      if (!visible(position, key)) continue;
      seen.push_back(key);
      logits.push_back(logit(q, k.data() + key * p_.q.shape[2]));
      top = std::max(top, logits.back());
    }
    const TensorView out = p_.out.select(0, token).select(0, head);
    std::vector<Real> sums(static_cast<std::size_t>(out.shape[0]), Real(0));
    Real denominator = 0;
    for (Real& x : logits) {
      x = std::exp(x - top);
      denominator += x;
    }
    if (p_.sinks.present()) {
      denominator += std::exp(static_cast<Real>(number(p_.sinks, {head})) - top);
    }
    for (std::size_t n = 0; n < seen.size(); ++n) {
      const Real* value = v.data() + seen[n] * out.shape[0];
      const Real weight = operand(logits[n]);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * value[i];
    }
    const bool empty = seen.empty();
    for (int64_t i = 0; i < out.shape[0]; ++i) {
      put(out, {i},
          empty ? 0.0 : static_cast<double>(sums[static_cast<std::size_t>(i)] / denominator));
    }
    if (p_.lse.present()) {
      put(p_.lse, {token, head},
          empty ? -std::numeric_limits<double>::infinity()
                : static_cast<double>(top + std::log(denominator)));
    }
  }

  int64_t kv_heads() const {
    const TensorView& k = p_.cache.k;
    return p_.cache.layout == attention::KvLayout::kHND ? k.shape[1] : k.shape[k.rank - 2];
  }

  const attention::RunParams& p_;
  DType operands_;
};

}  // namespace

void naive_attention(const attention::RunParams& p, const NaiveOptions& options) {
  if (options.float64) {
    Attention<double>(p, DType::kFloat32).run();
  } else {
    Attention<float>(p, options.operands).run();
  }
}

}  // namespace hyla::testing
