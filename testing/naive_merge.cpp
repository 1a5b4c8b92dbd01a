#include <cmath>

#include "testing/naive.h"

namespace hyla::testing {
namespace {

using std::int64_t;

// By what each side's softmax would have summed up, the larger sum taken as 1.
template <class Real>
void merge(const attention::MergeParams& p) {
  for (int64_t token = 0; token < p.a.shape[0]; ++token) {
    for (int64_t head = 0; head < p.a.shape[1]; ++head) {
      const auto lse_a = static_cast<Real>(number(p.a_lse, {token, head}));
      const auto lse_b = static_cast<Real>(number(p.b_lse, {token, head}));
      const bool keys_a = !std::isinf(lse_a), keys_b = !std::isinf(lse_b);
      const Real base = !keys_a ? lse_b : !keys_b ? lse_a : lse_a < lse_b ? lse_b : lse_a;
      const Real sum_a = keys_a ? std::exp(lse_a - base) : Real(0);
      const Real sum_b = keys_b ? std::exp(lse_b - base) : Real(0);
      for (int64_t d = 0; d < p.a.shape[2]; ++d) {
        Real sum = 0;
        if (keys_a) sum += sum_a * static_cast<Real>(number(p.a, {token, head, d}));
        if (keys_b) sum += sum_b * static_cast<Real>(number(p.b, {token, head, d}));
        if (keys_a || keys_b) sum /= sum_a + sum_b;
        put(p.out, {token, head, d}, static_cast<double>(sum));
      }
      if (!p.lse.present()) continue;
      const Real lse = base + std::log(sum_a + sum_b);
      put(p.lse, {token, head}, keys_a || keys_b ? static_cast<double>(lse) : -INFINITY);
    }
  }
}

}  // namespace

void naive_merge(const attention::MergeParams& p, const NaiveOptions& options) {
  if (options.float64) {
    merge<double>(p);
  } else {
    merge<float>(p);
  }
}

}  // namespace hyla::testing
