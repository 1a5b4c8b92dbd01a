// What cpu/simd.h does on AVX-512 whether it stands on Highway or on the compiler. Included by it
// alone.

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// The sum of both halves. The upper one comes through memory: where products keep the pipes busy
// that shuffle, stores and loads are free.
HYLA_INLINE __m256 fold_halves(F x, float* memory) {
  store(x, memory);
  return _mm256_add_ps(_mm512_castps512_ps256(__m512(raw(x))), _mm256_load_ps(memory + kLanes / 2));
}

// In both blocks of four lanes, the sums of its lanes of a, b, c and d.
HYLA_INLINE __m256 sum_in_halves(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256d x = _mm256_castps_pd(ab), y = _mm256_castps_pd(cd);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                       _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}

// Lane i: the sum of x[i].
HYLA_INLINE F sum_each(const F (&x)[kLanes]) {
  alignas(64) float memory[kLanes][kLanes];
  __m256 halves[kLanes], sums[4];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) halves[i] = fold_halves(x[i], memory[i]);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    sums[i] = sum_in_halves(halves[4 * i], halves[4 * i + 1], halves[4 * i + 2], halves[4 * i + 3]);
  }
  const __m256 lower = _mm256_add_ps(_mm256_permute2f128_ps(sums[0], sums[1], 0x20),
                                     _mm256_permute2f128_ps(sums[0], sums[1], 0x31));
  const __m256 upper = _mm256_add_ps(_mm256_permute2f128_ps(sums[2], sums[3], 0x20),
                                     _mm256_permute2f128_ps(sums[2], sums[3], 0x31));
  return from_raw(_mm512_insertf32x8(_mm512_castps256_ps512(lower), upper, 1));
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
