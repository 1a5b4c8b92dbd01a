#include "problem/gdn_checks.h"

#include <cmath>

#include "problem/norm_checks.h"

namespace hyla::gdn {

using core::Access;
using core::Inner;
using core::Shapes;
using core::VectorView;

namespace {

void check_vector(VectorView& result, std::string_view argument, const TensorView& view,
                  core::DTypes dtypes, const core::Pattern& pattern, Shapes& shapes,
                  const Context& context) {
  core::check_tensor(argument, view, dtypes, context, Inner::kAny, Access::kRead);
  shapes.match(argument, view, pattern);
  result.data = view.data;
  result.dtype = view.dtype;
  result.stride = view.strides[0];
}

// A number that came through another language need not be one of the enumerators.
template <class Enum>
void check_enumerator(std::string_view argument, Enum value, Enum last, std::string_view expected) {
  const int number = static_cast<int>(value);
  if (number < 0 || number > static_cast<int>(last)) {
    core::fail(argument, expected, core::text(std::int64_t{number}));
  }
}

}  // namespace

void check_gate(GateView& result, const Gate& gate, const core::Pattern& pattern, Shapes& shapes,
                bool ragged, const Context& context) {
  check_enumerator("gate.kind", gate.kind, Gate::Kind::kRaw, "kNone, kLinear, kLog or kRaw");
  result.kind = gate.kind;
  if (gate.kind != Gate::Kind::kRaw) {
    core::check_absent("A_log", gate.A_log, "unless the gate is raw");
    core::check_absent("dt_bias", gate.dt_bias, "unless the gate is raw");
  }
  if (gate.kind == Gate::Kind::kNone) {
    core::check_absent("gate", gate.value, "for a gate of kind kNone");
    return;
  }
  core::check_tensor("gate", gate.value, core::kFloatTypes, context, Inner::kAny, Access::kRead);
  shapes.match("gate", gate.value, pattern);
  set_tokens(result.value, gate.value, ragged, false);
  if (gate.kind == Gate::Kind::kRaw) {
    const core::Pattern heads = pattern.last();
    check_vector(result.A_log, "A_log", gate.A_log, core::kFloatTypes, heads, shapes, context);
    check_vector(result.dt_bias, "dt_bias", gate.dt_bias, core::kFloatTypes, heads, shapes,
                 context);
  }
}

void check_beta(BetaView& result, const Beta& beta, const core::Pattern& pattern, Shapes& shapes,
                bool ragged, const Context& context) {
  check_enumerator("beta.kind", beta.kind, Beta::Kind::kLogit, "kNone, kProbability or kLogit");
  result.kind = beta.kind;
  if (beta.kind == Beta::Kind::kNone) {
    core::check_absent("beta", beta.value, "for a beta of kind kNone");
    return;
  }
  core::check_tensor("beta", beta.value, core::kFloatTypes, context, Inner::kAny, Access::kRead);
  shapes.match("beta", beta.value, pattern);
  set_tokens(result.value, beta.value, ragged, false);
}

void check_norm(NormView& result, const norm::GatedNorm& norm, const core::Pattern& pattern,
                Shapes& shapes, bool ragged, const Context& context) {
  if (!norm.z.present()) {
    core::check_absent("norm.weight", norm.weight, "without norm.z");
    return;
  }
  core::check_tensor("norm.z", norm.z, core::kFloatTypes, context, Inner::kContiguous,
                     Access::kRead);
  shapes.match("norm.z", norm.z, pattern);
  set_tokens(result.z, norm.z, ragged, true);
  check_vector(result.weight, "norm.weight", norm.weight, core::kFloatTypes, "V", shapes, context);
  core::check_positive("norm.eps", norm.eps);
  norm::check_activation("norm.gate", norm.gate);
  result.eps = norm.eps;
  result.gate = norm.gate;
}

void check_pool(PoolView& result, std::string_view argument, const TensorView& view,
                const core::Pattern& pattern, StateLayout layout, Inner inner, Access access,
                Shapes& shapes, const Context& context) {
  core::check_tensor(argument, view, core::kFloatTypes, context, inner, access);
  shapes.match(argument, view, pattern);
  const int d = view.rank - 3;  // heads
  result.data = view.data;
  result.dtype = view.dtype;
  result.slots = view.shape[d - 1];
  result.slot_stride = view.strides[d - 1];
  result.head_stride = view.strides[d];
  result.k_stride = view.strides[layout == StateLayout::kKV ? d + 1 : d + 2];
  result.v_stride = view.strides[layout == StateLayout::kKV ? d + 2 : d + 1];
}

void check_options(Problem& problem, StateLayout layout, const std::optional<double>& scale,
                   bool l2norm, double l2norm_eps) {
  check_enumerator("layout", layout, StateLayout::kVK, "kKV or kVK");
  problem.layout = layout;
  core::check_scale(scale);
  if (l2norm) core::check_positive("l2norm_eps", l2norm_eps);
  problem.scale = scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.K)));
  problem.l2norm = l2norm;
  problem.l2norm_eps = l2norm_eps;
}

void check_value_heads(std::int64_t H, std::int64_t HV) {
  if (H < 1) core::fail("q", "at least one head", core::text(H));
  if (HV < 1 || HV % H != 0) {
    core::fail("v", "heads that are a multiple of the " + core::text(H) + " heads of q and k",
               core::text(HV));
  }
}

}  // namespace hyla::gdn
