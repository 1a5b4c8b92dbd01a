#include "problem/norm.h"

#include "core/check.h"
#include "problem/norm_checks.h"
#include "problem/tokens.h"

namespace hyla::norm {

void check_activation(std::string_view argument, Activation gate) {
  if (gate != Activation::kSilu && gate != Activation::kSigmoid) {
    core::fail(argument, "kSilu or kSigmoid", core::text(static_cast<std::int64_t>(gate)));
  }
}

GatedRmsProblem validate(const GatedRmsParams& params, const Context& context) {
  using core::Access;
  using core::Inner;
  core::check_context(context);
  core::Shapes shapes;
  const bool flat = params.x.rank == 2;
  const core::Pattern pattern = flat ? core::Pattern("rows D") : core::Pattern("tokens heads D");
  const auto check = [&](core::TokenView& result, const char* argument, const TensorView& view,
                         Access access) {
    core::check_tensor(argument, view, core::kFloatTypes, context, Inner::kContiguous, access);
    shapes.match(argument, view, pattern);
    core::set_tokens(result, view, true, true);
  };
  GatedRmsProblem p;
  check(p.x, "x", params.x, Access::kRead);
  check(p.gate.z, "z", params.z, Access::kRead);
  core::check_tensor("weight", params.weight, core::kFloatTypes, context, Inner::kAny,
                     Access::kRead);
  shapes.match("weight", params.weight, "D");
  p.gate.weight = {params.weight.data, params.weight.dtype, params.weight.strides[0]};
  check(p.out, "out", params.out, Access::kWrite);
  p.tokens = flat ? 1 : shapes["tokens"];
  p.heads = flat ? shapes["rows"] : shapes["heads"];
  p.D = shapes["D"];
  core::check_positive("eps", params.eps);
  p.gate.eps = params.eps;
  check_activation("gate", params.gate);
  p.gate.gate = params.gate;

  core::Overlaps overlaps;
  overlaps.writes("out", params.out);
  if (!core::same_elements(params.x, params.out)) overlaps.reads("x", params.x);
  overlaps.reads("z", params.z);
  overlaps.reads("weight", params.weight);
  overlaps.check();
  return p;
}

}  // namespace hyla::norm
