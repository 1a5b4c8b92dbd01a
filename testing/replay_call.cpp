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
  const std::vector<NamedTensor> x = tensors(a), y = tensors(b);
  const auto same_view = [](const NamedTensor& n, const NamedTensor& m) {
    const TensorView &v = n.view, &w = m.view;
    return n.name == m.name && v.dtype == w.dtype && v.rank == w.rank &&
           std::equal(v.shape, v.shape + v.rank, w.shape) &&
           std::equal(v.strides, v.strides + v.rank, w.strides);
  };
  const auto same_memory = [](const Buffer& n, const Buffer& m) {
    return n.name() == m.name() && n.memory().size() == m.memory().size();
  };
  return first_slot(a) == first_slot(b) &&
         std::equal(x.begin(), x.end(), y.begin(), y.end(), same_view) &&
         std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    same_memory);
}

}  // namespace

std::optional<Call> find_replay_call(const ProblemSpec& spec, const CaseOptions& options,
                                     const Call& first, int replay) {
  constexpr int kDraws = 32;
  ProblemSpec next = spec;
  rotate(next.lens, replay);
  rotate(next.kvlen, replay);
  for (int draw = 0; draw < kDraws; ++draw) {
    next.seed = spec.seed + replay + 4 * draw;
    Call call = random_call(next, options);
    if (same_shapes(first, call)) return call;
  }
  return std::nullopt;
}

Call replay_call(const ProblemSpec& spec, const CaseOptions& options, const Call& first,
                 int replay) {
  std::optional<Call> call = find_replay_call(spec, options, first, replay);
  if (!call.has_value()) {
    throw std::logic_error("no second call has the shapes of " + to_string(spec));
  }
  return std::move(*call);
}

}  // namespace hyla::testing
