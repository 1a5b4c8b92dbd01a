// Random merges of two attentions, some of whose rows saw no key.
#include <cmath>

#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

// Mostly sums of some keys; now and then the sides are so far apart that one hardly counts.
void fill(const TensorView& view, const Random& draw) {
  for_each_element(view, [&](std::int64_t i, std::int64_t offset) {
    const double size = draw.chance(4 * i, 0.1) ? 60 : 3;
    store_element(view, offset, 4 + size * draw.normal(4 * i + 1));
    if (draw.chance(4 * i + 2, 0.12)) {
      store_element(view, offset, draw.chance(4 * i + 3, 0.3) ? INFINITY : -INFINITY);
    }
  });
}

}  // namespace

Call random_merge(CaseBuilder builder) {
  const ProblemSpec spec = builder.spec();
  const std::vector<std::int64_t> rows{spec.b, spec.hq}, shape{spec.b, spec.hq, spec.d};
  attention::MergeParams p;
  p.a = builder.normal("a", spec.io, shape, 0, 1);
  p.b = builder.normal("b", spec.io, shape, 0, 1);
  const auto logarithms = [&](const char* name) {
    const TensorView view = builder.add_loose(name, DType::kFloat32, rows).view();
    fill(view, builder.random(name));
    return view;
  };
  p.a_lse = logarithms("a_lse");
  p.b_lse = logarithms("b_lse");
  // What a side without keys holds does not count.
  for (const auto& [values, lse] : {std::pair{p.a, p.a_lse}, std::pair{p.b, p.b_lse}}) {
    for (std::int64_t i = 0; i < spec.b * spec.hq; ++i) {
      const TensorView one = lse.select(0, i / spec.hq).select(0, i % spec.hq);
      if (std::isinf(load_element(one, 0))) {
        poison(values.slice(0, i / spec.hq, 1).slice(1, i % spec.hq, 1));
      }
    }
  }
  if (spec.in_place) {
    const bool second = builder.has("out is b", 0.5);
    p.out = second ? p.b : p.a;
    p.lse = builder.has("lse is b_lse", 0.5) ? p.b_lse : p.a_lse;
  } else {
    p.out = builder.output("out", builder.any_float("out", spec.io), shape);
    if (!builder.has("no lse", 0.3)) {
      p.lse = builder.add_loose("lse", DType::kFloat32, rows).view();
    }
  }
  return std::move(builder).finish(p);
}

}  // namespace hyla::testing
