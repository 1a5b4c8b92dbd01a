// Floats as one-byte numbers: e4m3 and int8, rounded to nearest even, what is too large to the
// largest. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_QUANTISE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_QUANTISE_H_
#undef HYLA_CPU_QUANTISE_H_
#else
#define HYLA_CPU_QUANTISE_H_
#endif

#include "cpu/simd.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Both without branches, so that the compiler makes vectors of loops over them.
//
// A multiple n of the distance of neighbours around a number, 2^(e-3) with e = -6 for the smallest,
// is the mantissa of its sum with 2^(e+20), rounded to nearest even as it has to be. The code is
// n + 8 (e + 6): its carry into the next exponent and numbers below 2^-6 come out by themselves.
// Whatever stands above the low byte falls away; 56 makes up for the biases there.
HYLA_INLINE std::uint8_t e4m3_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t most = 0x43e00000u, least = 0x3c800000u;  // 448, 2^-6
  const std::uint32_t near = magnitude < most ? magnitude : most;
  const std::uint32_t own = near & 0x7f800000u;
  const std::uint32_t exponent = own > least ? own : least;
  const std::uint32_t far = exponent + (20u << 23) + 56u;
  float a, b;
  std::memcpy(&a, &near, sizeof a);
  std::memcpy(&b, &far, sizeof b);
  const float sum = a + b;
  std::uint32_t code;
  std::memcpy(&code, &sum, sizeof code);
  code += exponent >> 20;
  code = magnitude > 0x7f800000u ? 0x7fu : code;
  return static_cast<std::uint8_t>(code | (bits >> 24 & 0x80u));
}
HYLA_INLINE std::int8_t int8_value(float value) {
  value = value > 127.0f ? 127.0f : value;
  value = value > -127.0f ? value : -127.0f;
  // To the nearest even integer: the last bit of the sum is worth one.
  const float sum = value + 12582912.0f;
  std::int32_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  return static_cast<std::int8_t>(bits);
}
HYLA_INLINE void quantise(float value, std::uint8_t& to) { to = e4m3_bits(value); }
HYLA_INLINE void quantise(float value, std::int8_t& to) { to = int8_value(value); }

template <class Stored>
void store_quantised(const float* __restrict from, std::int64_t count, Stored* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) quantise(from[i], to[i]);
}
template <class Stored>
void store_quotients(const float* __restrict from, std::int64_t count, float scale,
                     Stored* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) quantise(from[i] / scale, to[i]);
}

// By any scale; of what is divided by 0 nothing is kept.
template <class Stored>
void store_divided(const float* from, std::int64_t count, float scale, Stored* to) {
  if (scale == 0.0f) {
    std::memset(to, 0, static_cast<std::size_t>(count));
  } else {
    store_quotients(from, count, scale, to);
  }
}

// NaN is no magnitude.
inline float largest_magnitude(const float* line, std::int64_t count) {
  F most = zero(), others[3] = {zero(), zero(), zero()};  // a chain each
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    most = max(abs(load(line + i)), most);
#pragma GCC unroll 3
    for (int n = 0; n < 3; ++n) others[n] = max(abs(load(line + i + (n + 1) * kLanes)), others[n]);
  }
#pragma GCC unroll 3
  for (int n = 0; n < 3; ++n) most = max(others[n], most);
  for (; i + kLanes <= count; i += kLanes) most = max(abs(load(line + i)), most);
  if (i < count) most = max(abs(load_n(line + i, static_cast<int>(count - i))), most);
  return max_lane(most);
}

template <class Stored>
constexpr float kLargestStored = std::is_signed_v<Stored> ? 127.0f : 448.0f;

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_HAS_AVX512
#include "cpu/quantise_avx512.h"
#elif HYLA_TARGET_HAS_WORDS
#include "cpu/quantise_avx2.h"
#endif

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Whether store_plain takes numbers whose largest magnitude has these bits.
inline bool is_plain(std::uint32_t bits) {
  return bits > (127u - 80) << 23 && bits < (127u + 80) << 23;
}

// Numbers divided by their scale, which makes the largest of them the largest that can be stored
// and is returned.
template <class Stored>
float store_run(const float* line, std::int64_t count, Stored* to) {
#if HYLA_TARGET_HAS_WORDS
  if (count % (4 * kLanes) == 0) {
    const std::uint32_t bits = largest_bits(line, count);
    if (is_plain(bits)) {
      float largest;
      std::memcpy(&largest, &bits, sizeof largest);
      return store_plain(line, count, largest, to);
    }
  }
#endif
  const float scale = largest_magnitude(line, count) / kLargestStored<Stored>;
  store_divided(line, count, scale, to);
  return scale;
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_QUANTISE_H_
