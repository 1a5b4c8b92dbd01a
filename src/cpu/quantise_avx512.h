// Runs of numbers divided by their scale and rounded to bytes, by AVX-512. Included by
// cpu/quantise.h alone.

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Bits of the largest magnitude of whole vectors; more than those of infinity where there is NaN.
inline std::uint32_t largest_bits(const float* line, std::int64_t count) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most[4];  // a chain each
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) most[n] = _mm512_setzero_si512();
  for (std::int64_t i = 0; i < count; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      const __m512i bits = _mm512_loadu_si512(line + i + n * kLanes);
      most[n] = _mm512_max_epu32(_mm512_and_si512(bits, magnitude), most[n]);
    }
  }
  return _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3])));
}

// 2^(e+20) + 8 (e + 6) of its last bits' worth (see e4m3_bits), by the last four bits of the biased
// exponent, for e of -6 to 8.
struct FarNumbers {
  alignas(64) std::uint32_t bits[16];
  constexpr FarNumbers() : bits() {
    for (std::uint32_t e = 121; e <= 135; ++e) bits[e % 16] = ((e + 20) << 23) + 8 * (e - 121);
  }
};
inline constexpr FarNumbers kFar;

// As code_of for e4m3, of what is not negative.
HYLA_INLINE __m512i code_of_magnitude(__m512 x) {
  const __m512 own = _mm512_max_ps(x, _mm512_set1_ps(0x1p-6f));
  const __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(own), 23);
  const __m512i far = _mm512_permutexvar_epi32(exponent, _mm512_load_si512(kFar.bits));
  return _mm512_castps_si512(_mm512_add_ps(x, _mm512_castsi512_ps(far)));
}

// Quotients of magnitude 448 (e4m3) or 127 (int8) at most, up to what rounding does to them, as
// codes in the low bytes; what stands above them is to be dropped. `from`: of what they are
// quotients, whose sign a zero keeps.
HYLA_INLINE __m512i code_of(__m512 x, __m512 from, std::uint8_t) {
  const __m512i code = code_of_magnitude(_mm512_abs_ps(x));
  const __m512i sign = _mm512_srli_epi32(_mm512_castps_si512(from), 24);
  // code | (sign & 0x80)
  return _mm512_ternarylogic_epi32(code, sign, _mm512_set1_epi32(0x80), 0xf8);
}
HYLA_INLINE __m512i code_of(__m512 x, __m512, std::int8_t) { return _mm512_cvtps_epi32(x); }

// x / scale: a product with the inverse, which may be off by its last bit, and what is left of x
// divided the same way. The error is below 2^-43 before the result is rounded, as long as nothing
// on the way is denormal.
HYLA_INLINE __m512 quotient(__m512 x, __m512 scale, __m512 inverse) {
  const __m512 near = _mm512_mul_ps(x, inverse);
  return _mm512_fmadd_ps(_mm512_fnmadd_ps(near, scale, x), inverse, near);
}

// What a run is divided by, found from its largest magnitude.
template <class Stored>
struct RunScale {
  float value;
  __m512 scale, inverse;

  HYLA_INLINE explicit RunScale(float largest)
      : value(largest / kLargestStored<Stored>),
        scale(_mm512_set1_ps(value)),
        inverse(_mm512_set1_ps(kLargestStored<Stored> / largest)) {}
  HYLA_INLINE __m512 divide(__m512 x) const { return quotient(x, scale, inverse); }
};

// Whole vectors of finite numbers, the largest of them far from what is denormal. Returns the
// scale.
template <class Stored>
inline float store_plain(const float* from, std::int64_t count, float largest, Stored* to) {
  const RunScale<Stored> scale(largest);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __m512 x = _mm512_loadu_ps(from + i);
    const __m512i codes = code_of(scale.divide(x), x, Stored{});
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm512_cvtepi32_epi8(codes));
  }
  return scale.value;
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
