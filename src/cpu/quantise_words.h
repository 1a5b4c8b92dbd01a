// Heads of bfloat16 as one-byte numbers without a line of floats in between, with the results of
// quantise.h. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_QUANTISE_WORDS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_QUANTISE_WORDS_H_
#undef HYLA_CPU_QUANTISE_WORDS_H_
#else
#define HYLA_CPU_QUANTISE_WORDS_H_
#endif

#include "cpu/quantise.h"

#if HYLA_TARGET_HAS_PAIRS
HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

constexpr std::int64_t kWordsAtOnce = 64;

// Bits, as a float's, of the largest magnitude of `count` numbers, a multiple of kWordsAtOnce.
HYLA_INLINE std::uint32_t largest_word(const bfloat16* from, std::int64_t count) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i most[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};  // a chain each
  for (std::int64_t i = 0; i < count; i += kWordsAtOnce) {
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
      const __m512i words = _mm512_loadu_si512(from + i + n * 32);
      most[n] = _mm512_max_epu16(_mm512_and_si512(words, magnitude), most[n]);
    }
  }
  const __m512i all = _mm512_max_epu16(most[0], most[1]);
  // Whole masks, as compilers take the plain forms for reads of what nobody has written.
  const __m256i half = _mm256_max_epu16(_mm512_maskz_extracti64x4_epi64(0xff, all, 0),
                                        _mm512_maskz_extracti64x4_epi64(0xff, all, 1));
  const __m128i eight =
      _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // There is an instruction for the least of eight only.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));
  return (~static_cast<std::uint32_t>(_mm_cvtsi128_si32(least)) & 0xffffu) << 16;
}

// The low bytes of even and odd numbers, in turn; the high bytes of words.
struct ByteOrders {
  alignas(64) std::uint8_t turns[64], high[64];
  constexpr ByteOrders() : turns(), high() {
    for (int i = 0; i < 64; ++i) {
      turns[i] = static_cast<std::uint8_t>(i % 32 / 2 * 4 + i % 2 * 64);
      high[i] = static_cast<std::uint8_t>(2 * i + 1);
    }
  }
};
inline constexpr ByteOrders kByteOrders;

// Codes of 32 numbers, in the lower half.
template <class Stored>
HYLA_INLINE __m512i codes_of(__m512i words, const RunScale<Stored>& scale) {
  const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  const __m512 odd = _mm512_castsi512_ps(
      _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  const __m512 a = scale.divide(even), b = scale.divide(odd);
  const __m512i turns = _mm512_load_si512(kByteOrders.turns);
  if constexpr (std::is_signed_v<Stored>) {
    return _mm512_permutex2var_epi8(code_of(a, even, Stored{}), turns, code_of(b, odd, Stored{}));
  } else {
    return _mm512_permutex2var_epi8(code_of_magnitude(a), turns, code_of_magnitude(b));
  }
}

// As store_plain.
template <class Stored>
HYLA_INLINE float store_words(const bfloat16* from, std::int64_t count, float largest, Stored* to) {
  const RunScale<Stored> scale(largest);
  for (std::int64_t i = 0; i < count; i += kWordsAtOnce) {
    __m512i a = _mm512_loadu_si512(from + i), b = _mm512_loadu_si512(from + i + 32);
    // The signs' bytes: e4m3 keeps them as they are.
    const __m512i signs = _mm512_permutex2var_epi8(a, _mm512_load_si512(kByteOrders.high), b);
    if constexpr (!std::is_signed_v<Stored>) {
      const __m512i magnitude = _mm512_set1_epi16(0x7fff);
      a = _mm512_and_si512(a, magnitude);
      b = _mm512_and_si512(b, magnitude);
    }
    const __m512i lower = codes_of(a, scale);
    const __m512i upper = codes_of(b, scale);
    __m512i codes = _mm512_maskz_shuffle_i64x2(0xff, lower, upper, 0x44);
    if constexpr (!std::is_signed_v<Stored>) {
      // codes | (signs & 0x80)
      codes = _mm512_ternarylogic_epi32(codes, signs, _mm512_set1_epi8(-128), 0xf8);
    }
    _mm512_storeu_si512(to + i, codes);
  }
  return scale.value;
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_TARGET_HAS_PAIRS
#endif  // HYLA_CPU_QUANTISE_WORDS_H_
