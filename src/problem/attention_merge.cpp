#include "problem/attention_merge.h"

#include "core/check.h"
#include "problem/tokens.h"

namespace hyla::attention {

MergeProblem validate(const MergeParams& params, const Context& context) {
  using core::Access;
  using core::Inner;
  core::check_context(context);
  core::Shapes shapes;
  const auto values = [&](core::TokenView& result, const char* argument, const TensorView& view,
                          core::DTypes dtypes, Access access) {
    core::check_tensor(argument, view, dtypes, context, Inner::kContiguous, access);
    shapes.match(argument, view, "total Hq DV");
    core::set_tokens(result, view, true, true);
  };
  const auto logarithms = [&](core::TokenView& result, const char* argument, const TensorView& view,
                              Access access) {
    core::check_tensor(argument, view, {DType::kFloat32}, context, Inner::kAny, access);
    shapes.match(argument, view, "total Hq");
    core::set_tokens(result, view, true, false);
  };
  MergeProblem p;
  values(p.a, "a", params.a, core::kFloatTypes, Access::kRead);
  logarithms(p.a_lse, "a_lse", params.a_lse, Access::kRead);
  values(p.b, "b", params.b, {params.a.dtype}, Access::kRead);
  logarithms(p.b_lse, "b_lse", params.b_lse, Access::kRead);
  values(p.out, "out", params.out, core::kFloatTypes, Access::kWrite);
  if (params.lse.present()) logarithms(p.lse, "lse", params.lse, Access::kWrite);
  p.tokens = shapes["total"];
  p.heads = shapes["Hq"];
  p.dim = shapes["DV"];

  core::Overlaps overlaps;
  overlaps.writes("out", params.out);
  overlaps.writes("lse", params.lse);
  if (!core::same_elements(params.a, params.out)) overlaps.reads("a", params.a);
  if (!core::same_elements(params.b, params.out)) overlaps.reads("b", params.b);
  if (!core::same_elements(params.a_lse, params.lse)) overlaps.reads("a_lse", params.a_lse);
  if (!core::same_elements(params.b_lse, params.lse)) overlaps.reads("b_lse", params.b_lse);
  overlaps.check();
  return p;
}

}  // namespace hyla::attention
