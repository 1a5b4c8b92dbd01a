// What cpu/simd.h does on AVX2 whether it stands on Highway or on the compiler: words of bfloat16 as
// simd_avx512.h has them. Included by it alone.

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

using Words = __m256i;
HYLA_INLINE Words load_words(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
HYLA_INLINE void store_words(Words x, void* to) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), x);
}
// The first n; a load's other words are zero.
HYLA_INLINE Words load_some_words(const bfloat16* from, std::int64_t n) {
  if (n >= 2 * kLanes) return load_words(from);
  alignas(32) bfloat16 words[2 * kLanes] = {};
  std::memcpy(static_cast<void*>(words), from, static_cast<std::size_t>(n) * sizeof(bfloat16));
  return load_words(words);
}
HYLA_INLINE void store_some_words(Words x, bfloat16* to, std::int64_t n) {
  if (n >= 2 * kLanes) return store_words(x, to);
  alignas(32) bfloat16 words[2 * kLanes];
  store_words(x, words);
  std::memcpy(static_cast<void*>(to), words, static_cast<std::size_t>(n) * sizeof(bfloat16));
}

// A vector of bfloat16 as floats, those with even numbers and those with odd ones; and back, rounded
// to nearest, a tie away from zero. NaN must be clean: other bits of one may overflow.
HYLA_INLINE F even_words(Words x) {
  return from_raw(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)));
}
HYLA_INLINE F odd_words(Words x) {
  return from_raw(_mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536))));
}
HYLA_INLINE Words bits_of(F x) { return _mm256_castps_si256(__m256(raw(x))); }
HYLA_INLINE Words join_words(F even, F odd) {
  const Words half = _mm256_set1_epi32(0x8000);
  const Words lower = _mm256_srli_epi32(_mm256_add_epi32(bits_of(even), half), 16);
  return _mm256_blend_epi16(lower, _mm256_add_epi32(bits_of(odd), half), 0xaa);
}
HYLA_INLINE bool any_nan(F x, F y) {
  return _mm256_movemask_ps(_mm256_cmp_ps(__m256(raw(x)), __m256(raw(y)), _CMP_UNORD_Q)) != 0;
}
// What join_words() rounds to even.
HYLA_INLINE F with_tie(F x) {
  const Words bits = bits_of(x), below = _mm256_set1_epi32(0x7fff - 0x8000);
  const Words last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return from_raw(_mm256_castsi256_ps(_mm256_add_epi32(_mm256_add_epi32(bits, below), last)));
}

// Quarters 0, 2, 1 and 3: of two vectors whose halves alternate, one after the other.
HYLA_INLINE F swap_middle(__m256 x) {
  return from_raw(_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8)));
}
// Of the 16 floats of a and b: the even ones, and the odd ones. And back.
HYLA_INLINE void split_lanes(F& a, F& b) {
  const __m256 x = raw(a), y = raw(b);
  a = swap_middle(_mm256_shuffle_ps(x, y, 0x88));
  b = swap_middle(_mm256_shuffle_ps(x, y, 0xdd));
}
HYLA_INLINE void zip_lanes(F& a, F& b) {
  const __m256 x = raw(a), y = raw(b);
  const __m256 lower = _mm256_unpacklo_ps(x, y), upper = _mm256_unpackhi_ps(x, y);
  a = from_raw(_mm256_permute2f128_ps(lower, upper, 0x20));
  b = from_raw(_mm256_permute2f128_ps(lower, upper, 0x31));
}

// NaN with only its first bit set.
HYLA_INLINE F clean_nan(F x) {
  const __m256 y = raw(x);
  return from_raw(_mm256_blendv_ps(y, raw(set(std::numeric_limits<float>::quiet_NaN())),
                                   _mm256_cmp_ps(y, y, _CMP_UNORD_Q)));
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
