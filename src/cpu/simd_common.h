// The part of cpu/simd.h that is written in its own vocabulary. Included by it alone, once for each
// target.

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// 2^n * e^r with |r| <= ln(2)/2, e^r by its Taylor polynomial, whose error is below 2^-24 there.
HYLA_INLINE F exp(F x) {
  x = max(set(-87.5f), min(set(89.0f), x));
  const F n = round(mul(x, set(1.44269504f)));
  F r = fma(n, set(-0.693359375f), x);
  r = fma(n, set(2.12194440e-4f), r);
  F y = set(1.0f / 5040);
  y = fma(y, r, set(1.0f / 720));
  y = fma(y, r, set(1.0f / 120));
  y = fma(y, r, set(1.0f / 24));
  y = fma(y, r, set(1.0f / 6));
  y = fma(y, r, set(0.5f));
  y = fma(mul(y, r), r, add(r, set(1.0f)));
  // In two steps, so that the largest results do not overflow on the way.
  return mul(mul(y, power_of_two(sub(n, set(1.0f)))), set(2.0f));
}

// 2^x for x <= 0: 2^n * 2^r with |r| <= 1/2, the latter by a minimax polynomial.
HYLA_INLINE F exp2(F x) {
  x = max(set(-127.0f), x);
  const F n = round(x), r = sub(x, n);
  F y = set(1.11255077e-3f);
  y = fma(y, r, set(9.66628252e-3f));
  y = fma(y, r, set(5.55740047e-2f));
  y = fma(y, r, set(0.240223507f));
  y = fma(y, r, set(0.693142831f));
  y = fma(y, r, set(1.0f));
  return times_power_of_two(y, n);
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
