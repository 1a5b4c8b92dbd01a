#include "testing/replay_call.h"

#include <algorithm>
#include <stdexcept>

namespace hyla::testing {
namespace {

void rotate(std::vector<std::int64_t>& lengths, int steps) {
  if (lengths.size() < 2) return;
  std::rotate(lengths.begin(),
              lengths.begin() + steps % static_cast<std::ptrdiff_t>(lengths.size()), lengths.end());
}

// first_slot is an argument of the call, so it is captured; slots and lengths are not.
bool same_shapes(const Call& a, const Call& b) {
  return first_slot(a) == first_slot(b) &&
         std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    [](const Buffer& x, const Buffer& y) {
                      return x.name() == y.name() && x.memory().size() == y.memory().size();
                    });
}

}  // namespace

Call replay_call(const ProblemSpec& spec, const CaseOptions& options, const Call& first,
                 int replay) {
  constexpr int kDraws = 32;
  ProblemSpec next = spec;
  rotate(next.lens, replay);
  rotate(next.kvlen, replay);
  for (int draw = 0; draw < kDraws; ++draw) {
    next.seed = spec.seed + replay + 4 * draw;
    Call call = random_call(next, options);
    if (same_shapes(first, call)) return call;
  }
  throw std::logic_error("no second call has the shapes of " + to_string(spec));
}

}  // namespace hyla::testing
