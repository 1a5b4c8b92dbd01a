#include "reference/attention_merge.h"

#include <algorithm>
#include <cmath>

#include "reference/scalar.h"

namespace hyla {
namespace {

// What each side counts; an empty one, which saw no key, may hold anything.
struct Shares {
  bool a_empty, b_empty;
  double a = 0, b = 0, lse = -INFINITY;

  Shares(double a_lse, double b_lse) : a_empty(std::isinf(a_lse)), b_empty(std::isinf(b_lse)) {
    if (a_empty && b_empty) return;
    if (a_empty || b_empty) {
      (a_empty ? b : a) = 1;
      lse = a_empty ? b_lse : a_lse;
      return;
    }
    const double largest = std::max(a_lse, b_lse);
    const double of_a = std::exp(a_lse - largest), of_b = std::exp(b_lse - largest);
    a = of_a / (of_a + of_b);
    b = of_b / (of_a + of_b);
    lse = largest + std::log(of_a + of_b);
  }
};

}  // namespace

void reference::attention_merge(const attention::MergeProblem& p, const Workspace&,
                                const Context&) {
  for (std::int64_t token = 0; token < p.tokens; ++token) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const Shares share(load(p.a_lse, 0, token, head), load(p.b_lse, 0, token, head));
      for (std::int64_t d = 0; d < p.dim; ++d) {
        const double a = share.a_empty ? 0 : share.a * load(p.a, 0, token, head, d);
        const double b = share.b_empty ? 0 : share.b * load(p.b, 0, token, head, d);
        store(p.out.data, p.out.dtype, p.out.offset(0, token, head, d), a + b);
      }
      if (p.lse.present()) {
        store(p.lse.data, p.lse.dtype, p.lse.offset(0, token, head), share.lse);
      }
    }
  }
}

}  // namespace hyla
