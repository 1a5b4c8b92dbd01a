// The part of cpu/simd.h that is written in its own vocabulary. Included by it alone, once for each
// target.

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// e^x = 2^n * e^r with |r| <= ln(2)/2, e^r = 1 + r + square * r^2 by its Taylor polynomial, whose
// error is below 2^-24 there.
struct ExpParts {
  F n, r, square;
};
HYLA_INLINE ExpParts exp_parts(F x) {
  const F n = round(mul(x, set(1.44269504f)));
  F r = fma(n, set(-0.693359375f), x);
  r = fma(n, set(2.12194440e-4f), r);
  F y = set(1.0f / 5040);
  y = fma(y, r, set(1.0f / 720));
  y = fma(y, r, set(1.0f / 120));
  y = fma(y, r, set(1.0f / 24));
  y = fma(y, r, set(1.0f / 6));
  y = fma(y, r, set(0.5f));
  return {n, r, y};
}
HYLA_INLINE F exp(F x) {
  const ExpParts e = exp_parts(max(set(-87.5f), min(set(89.0f), x)));
  const F y = fma(mul(e.square, e.r), e.r, add(e.r, set(1.0f)));
  // In two steps, so that the largest results do not overflow on the way.
  return mul(mul(y, power_of_two(sub(e.n, set(1.0f)))), set(2.0f));
}

// m / (m + 2) with m = e^2x - 1, which is taken as 2^n (e^r - 1) + (2^n - 1): a small m keeps its
// digits, and with them a small result, where 1 - 2 / (e^2x + 1) would lose them.
HYLA_INLINE F tanh(F x) {
  const ExpParts e = exp_parts(max(set(-40.0f), min(set(40.0f), add(x, x))));
  const F power = power_of_two(e.n);
  const F m = fma(power, fma(mul(e.square, e.r), e.r, e.r), sub(power, set(1.0f)));
  return div(m, add(m, set(2.0f)));
}

// 2^x for x <= 0: 2^floor(x) times that of the rest by a minimax polynomial, which is exact for 0.
HYLA_INLINE F exp2(F x) {
  if constexpr (kLanes != 16) x = max(set(-126.5f), x);  // AVX-512 saturates by itself
  const F r = fraction(x);
  F y = set(1.86713074e-3f);
  y = fma(y, r, set(9.01702855e-3f));
  y = fma(y, r, set(5.57999148e-2f));
  y = fma(y, r, set(0.24016445f));
  y = fma(y, r, set(0.693151312f));
  y = fma(y, r, set(1.0f));
  return scale_by_floor(y, x);
}

HYLA_INLINE F sigmoid(F x) { return div(set(1.0f), add(set(1.0f), exp(sub(zero(), x)))); }

// As many lanes of n as there are.
template <class T>
HYLA_INLINE F load_some(const T* from, std::int64_t n) {
  return n >= kLanes ? load(from) : load_n(from, static_cast<int>(n));
}
template <class T>
HYLA_INLINE void store_some(F x, T* to, std::int64_t n) {
  n >= kLanes ? store(x, to) : store_n(x, to, static_cast<int>(n));
}

// `count` values as floats, and back.
template <class T>
HYLA_INLINE void load_all(const T* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(from + i), to + i);
  if (i < count)
    store_n(load_n(from + i, static_cast<int>(count - i)), to + i, static_cast<int>(count - i));
}
template <class T>
HYLA_INLINE void store_all(const float* from, std::int64_t count, T* to) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(from + i), to + i);
  if (i < count)
    store_n(load_n(from + i, static_cast<int>(count - i)), to + i, static_cast<int>(count - i));
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
