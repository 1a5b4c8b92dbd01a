#include "problem/gdn.h"

#include <cmath>

namespace hyla::gdn {

using core::Access;
using core::Inner;
using core::Shapes;
using core::VectorView;

namespace {

VectorView check_vector(std::string_view argument, const TensorView& view, core::DTypes dtypes,
                        std::string_view pattern, Shapes& shapes, const Context& context) {
  core::check_tensor(argument, view, dtypes, context, Inner::kAny, Access::kRead);
  shapes.match(argument, view, pattern);
  return {view.data, view.dtype, view.strides[0]};
}

// The heads of gates and states go by the letter that ends a gate's pattern.
std::string_view heads_letter(std::string_view pattern) {
  return pattern.substr(pattern.rfind(' ') + 1);
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

GateView check_gate(const Gate& gate, std::string_view pattern, Shapes& shapes, bool ragged,
                    const Context& context) {
  check_enumerator("gate.kind", gate.kind, Gate::Kind::kRaw, "kNone, kLinear, kLog or kRaw");
  GateView result;
  result.kind = gate.kind;
  if (gate.kind != Gate::Kind::kRaw) {
    core::check_absent("A_log", gate.A_log, "unless the gate is raw");
    core::check_absent("dt_bias", gate.dt_bias, "unless the gate is raw");
  }
  if (gate.kind == Gate::Kind::kNone) {
    core::check_absent("gate", gate.value, "for a gate of kind kNone");
    return result;
  }
  core::check_tensor("gate", gate.value, core::kFloatTypes, context, Inner::kAny, Access::kRead);
  shapes.match("gate", gate.value, pattern);
  result.value = token_view(gate.value, ragged, false);
  if (gate.kind == Gate::Kind::kRaw) {
    const std::string_view heads = heads_letter(pattern);
    result.A_log = check_vector("A_log", gate.A_log, core::kParameterTypes, heads, shapes, context);
    result.dt_bias =
        check_vector("dt_bias", gate.dt_bias, core::kParameterTypes, heads, shapes, context);
  }
  return result;
}

BetaView check_beta(const Beta& beta, std::string_view pattern, Shapes& shapes, bool ragged,
                    const Context& context) {
  check_enumerator("beta.kind", beta.kind, Beta::Kind::kLogit, "kNone, kProbability or kLogit");
  BetaView result;
  result.kind = beta.kind;
  if (beta.kind == Beta::Kind::kNone) {
    core::check_absent("beta", beta.value, "for a beta of kind kNone");
    return result;
  }
  core::check_tensor("beta", beta.value, core::kFloatTypes, context, Inner::kAny, Access::kRead);
  shapes.match("beta", beta.value, pattern);
  result.value = token_view(beta.value, ragged, false);
  return result;
}

NormView check_norm(const norm::GatedNorm& norm, std::string_view pattern, Shapes& shapes,
                    bool ragged, const Context& context) {
  NormView result;
  if (!norm.z.present()) {
    core::check_absent("norm.weight", norm.weight, "without norm.z");
    return result;
  }
  core::check_tensor("norm.z", norm.z, core::kFloatTypes, context, Inner::kContiguous,
                     Access::kRead);
  shapes.match("norm.z", norm.z, pattern);
  result.z = token_view(norm.z, ragged, true);
  result.weight = check_vector("norm.weight", norm.weight, core::kFloatTypes, "V", shapes, context);
  core::check_positive("norm.eps", norm.eps);
  norm::check_activation("norm.gate", norm.gate);
  result.eps = norm.eps;
  result.gate = norm.gate;
  return result;
}

PoolView check_pool(std::string_view argument, const TensorView& view, std::string_view pattern,
                    StateLayout layout, Inner inner, Access access, Shapes& shapes,
                    const Context& context) {
  core::check_tensor(argument, view, core::kFloatTypes, context, inner, access);
  shapes.match(argument, view, pattern);
  const int d = view.rank - 3;  // heads
  PoolView pool{view.data, view.dtype, view.shape[d - 1], view.strides[d - 1], view.strides[d],
                0,         0};
  pool.k_stride = view.strides[layout == StateLayout::kKV ? d + 1 : d + 2];
  pool.v_stride = view.strides[layout == StateLayout::kKV ? d + 2 : d + 1];
  return pool;
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
