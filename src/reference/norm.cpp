#include "reference/norm.h"

namespace hyla::reference {

void gated_rms(const norm::GatedRmsProblem& p, const Workspace&, const Context&) {
  std::vector<double> x(static_cast<std::size_t>(p.D));
  for (std::int64_t token = 0; token < p.tokens; ++token) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      for (std::int64_t i = 0; i < p.D; ++i) {
        x[static_cast<std::size_t>(i)] = load(p.x, 0, token, head, i);
      }
      gated_norm(x, p.gate, 0, token, head);
      for (std::int64_t i = 0; i < p.D; ++i) {
        store(p.out.data, p.out.dtype, p.out.offset(0, token, head, i),
              x[static_cast<std::size_t>(i)]);
      }
    }
  }
}

}  // namespace hyla::reference
