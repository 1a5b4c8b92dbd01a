// Runs of numbers divided by their scale and rounded to bytes, by AVX2. Included by cpu/quantise.h
// alone.

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Bits of the largest magnitude of whole vectors; more than those of infinity where there is NaN.
inline std::uint32_t largest_bits(const float* line, std::int64_t count) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most[4];  // a chain each
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) most[n] = _mm256_setzero_si256();
  for (std::int64_t i = 0; i < count; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      const __m256i bits = load_words(line + i + n * kLanes);
      most[n] = _mm256_max_epu32(_mm256_and_si256(bits, magnitude), most[n]);
    }
  }
  alignas(32) std::uint32_t lanes[kLanes];
  store_words(
      _mm256_max_epu32(_mm256_max_epu32(most[0], most[1]), _mm256_max_epu32(most[2], most[3])),
      lanes);
  std::uint32_t largest = 0;
  for (const std::uint32_t lane : lanes) largest = std::max(largest, lane);
  return largest;
}

// Quotients of magnitude 448 (e4m3) or 127 (int8) at most, up to what rounding does to them, as
// codes: of e4m3 in 0 to 255 (see e4m3_bits). `from`: of what they are quotients, whose sign a zero
// keeps.
HYLA_INLINE __m256i code_of(F x, F from, std::uint8_t) {
  const F magnitude = abs(x);
  const __m256i own = bits_of(max(magnitude, set(0x1p-6f)));
  const __m256i exponent = _mm256_and_si256(own, _mm256_set1_epi32(0x7f800000));
  const __m256i far = _mm256_add_epi32(exponent, _mm256_set1_epi32((20 << 23) + 56));
  const __m256i sum = bits_of(add(magnitude, from_raw(_mm256_castsi256_ps(far))));
  const __m256i code = _mm256_add_epi32(sum, _mm256_srli_epi32(exponent, 20));
  const __m256i sign = _mm256_srli_epi32(bits_of(from), 24);
  return _mm256_or_si256(_mm256_and_si256(code, _mm256_set1_epi32(0x7f)),
                         _mm256_and_si256(sign, _mm256_set1_epi32(0x80)));
}
HYLA_INLINE __m256i code_of(F x, F, std::int8_t) { return _mm256_cvtps_epi32(__m256(raw(x))); }

HYLA_INLINE __m256i pack_codes(__m256i a, __m256i b, std::uint8_t) {
  return _mm256_packus_epi16(a, b);
}
HYLA_INLINE __m256i pack_codes(__m256i a, __m256i b, std::int8_t) {
  return _mm256_packs_epi16(a, b);
}

// Whole fours of vectors of finite numbers, the largest of them far from what is denormal. Returns
// the scale. A quotient is a product with the inverse, which may be off by its last bit, and what is
// left of x divided the same way.
template <class Stored>
inline float store_plain(const float* from, std::int64_t count, float largest, Stored* to) {
  const float value = largest / kLargestStored<Stored>;
  const F scale = set(-value), inverse = set(kLargestStored<Stored> / largest);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs keep halves apart
  for (std::int64_t i = 0; i < count; i += 4 * kLanes) {
    __m256i codes[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      const F x = load(from + i + n * kLanes), near = mul(x, inverse);
      codes[n] = code_of(fma(fma(near, scale, x), inverse, near), x, Stored{});
    }
    const __m256i bytes = pack_codes(_mm256_packs_epi32(codes[0], codes[1]),
                                     _mm256_packs_epi32(codes[2], codes[3]), Stored{});
    store_words(_mm256_permutevar8x32_epi32(bytes, order), to + i);
  }
  return value;
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
