// Gates as numbers, a vector of heads or tokens at a time. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_GDN_GATES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_GATES_H_
#undef HYLA_CPU_GDN_GATES_H_
#else
#define HYLA_CPU_GDN_GATES_H_
#endif

#include "cpu/simd.h"
#include "cpu/values.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// ln(1 + x) for x of 0 to 1, by 2 atanh(s) with s = x / (2 + x) of at most 1/3: the first term that
// is left out is s^15 / 15, below 2^-26 of the sum.
HYLA_INLINE F log_1_plus(F x) {
  const F s = div(x, add(x, set(2.0f))), z = mul(s, s);
  F y = set(2.0f / 13);
  y = fma(y, z, set(2.0f / 11));
  y = fma(y, z, set(2.0f / 9));
  y = fma(y, z, set(2.0f / 7));
  y = fma(y, z, set(2.0f / 5));
  y = fma(y, z, set(2.0f / 3));
  y = fma(y, z, set(2.0f));
  return mul(s, y);
}
// A NaN stays one: the exponential has it.
HYLA_INLINE F softplus(F x) { return add(max(x, zero()), log_1_plus(exp(sub(zero(), abs(x))))); }

// Whose gates lie in the lanes of a vector: heads of a token, or tokens of a head.
struct GateLanes {
  std::int64_t row, token, head;       // of the first lane
  std::int64_t token_step, head_step;  // from one to the next: 0 and 1, or 1 and 0
  int count;                           // at most kLanes

  std::int64_t token_of(int lane) const { return token + lane * token_step; }
  std::int64_t head_of(int lane) const { return head + lane * head_step; }
  F load(const core::TokenView& view) const {
    alignas(64) float lanes[kLanes] = {};
    for (int i = 0; i < count; ++i) {
      lanes[i] = load_number(view.data, view.dtype, view.offset(row, token_of(i), head_of(i)));
    }
    return HYLA_TARGET_NAMESPACE::load(lanes);
  }
  F load(const core::VectorView& view) const {
    alignas(64) float lanes[kLanes] = {};
    for (int i = 0; i < count; ++i) lanes[i] = load_number(view, head_of(i));
    return HYLA_TARGET_NAMESPACE::load(lanes);
  }
};

inline F alphas_of(const gdn::GateView& gate, const GateLanes& lanes) {
  using Kind = gdn::Gate::Kind;
  if (gate.kind == Kind::kNone) return set(1.0f);
  const F value = lanes.load(gate.value);
  if (gate.kind == Kind::kLinear) return value;
  if (gate.kind == Kind::kLog) return exp(value);
  const F rate = exp(lanes.load(gate.A_log));
  const F passed = mul(rate, softplus(add(value, lanes.load(gate.dt_bias))));
  return exp(sub(zero(), passed));
}

inline F betas_of(const gdn::BetaView& beta, const GateLanes& lanes) {
  using Kind = gdn::Beta::Kind;
  if (beta.kind == Kind::kNone) return set(1.0f);
  const F value = lanes.load(beta.value);
  return beta.kind == Kind::kLogit ? sigmoid(value) : value;
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_GATES_H_
