#include "problem/norm.h"

#include "problem/tokens.h"

namespace hyla::norm {

void check_activation(std::string_view argument, Activation gate) {
  if (gate != Activation::kSilu && gate != Activation::kSigmoid) {
    core::fail(argument, "kSilu or kSigmoid", core::text(static_cast<std::int64_t>(gate)));
  }
}

namespace {

// The same elements at the same places.
bool same_elements(const TensorView& a, const TensorView& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d) {
    if (a.shape[d] != b.shape[d]) return false;
    if (a.shape[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

}  // namespace

GatedRmsProblem validate(const GatedRmsParams& params, const Context& context) {
  using core::Access;
  using core::Inner;
  core::check_context(context);
  core::Shapes shapes;
  const std::string_view pattern = params.x.rank == 2 ? "rows D" : "tokens heads D";
  const auto check = [&](const char* argument, const TensorView& view, Access access) {
    core::check_tensor(argument, view, core::kFloatTypes, context, Inner::kContiguous, access);
    shapes.match(argument, view, pattern);
    return core::token_view(view, true, true);
  };
  GatedRmsProblem p;
  p.x = check("x", params.x, Access::kRead);
  p.gate.z = check("z", params.z, Access::kRead);
  core::check_tensor("weight", params.weight, core::kFloatTypes, context, Inner::kAny,
                     Access::kRead);
  shapes.match("weight", params.weight, "D");
  p.gate.weight = {params.weight.data, params.weight.dtype, params.weight.strides[0]};
  p.out = check("out", params.out, Access::kWrite);
  p.tokens = params.x.rank == 2 ? 1 : shapes["tokens"];
  p.heads = shapes[params.x.rank == 2 ? "rows" : "heads"];
  p.D = shapes["D"];
  core::check_positive("eps", params.eps);
  p.gate.eps = params.eps;
  check_activation("gate", params.gate);
  p.gate.gate = params.gate;

  core::Overlaps overlaps;
  overlaps.writes("out", params.out);
  if (!same_elements(params.x, params.out)) overlaps.reads("x", params.x);
  overlaps.reads("z", params.z);
  overlaps.reads("weight", params.weight);
  overlaps.check();
  return p;
}

}  // namespace hyla::norm
