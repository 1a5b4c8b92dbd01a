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

// Lane i: the sum over the lower half of x[i], and over the upper one. 44 instructions for 32 sums,
// where sum_each takes 59 for 16.
HYLA_INLINE void sum_each_half(const F (&x)[kLanes], F& lower, F& upper) {
  __m512 pairs[kLanes / 2], fours[kLanes / 4], halves[2];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; ++i) {
    const __m512 a = raw(x[2 * i]), b = raw(x[2 * i + 1]);
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
#pragma GCC unroll 4
  for (int i = 0; i < kLanes / 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // lower and upper half of one, of the next
    const __m512 a = fours[2 * i], b = fours[2 * i + 1];
    halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  lower = from_raw(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88));
  upper = from_raw(_mm512_shuffle_f32x4(halves[0], halves[1], 0xdd));
}
// Lane i: the largest lane of x[i].
HYLA_INLINE F max_each(const F (&x)[kLanes]) {
  __m512 pairs[kLanes / 2], fours[kLanes / 4], halves[2];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; ++i) {
    const __m512 a = raw(x[2 * i]), b = raw(x[2 * i + 1]);
    pairs[i] = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
#pragma GCC unroll 4
  for (int i = 0; i < kLanes / 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 a = fours[2 * i], b = fours[2 * i + 1];
    halves[i] = _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
  return from_raw(_mm512_max_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88),
                                _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd)));
}
// Lane j of x[i] becomes lane i of x[j].
HYLA_INLINE void transpose_lanes(F (&x)[kLanes]) {
  __m512 pairs[kLanes], fours[kLanes];
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(raw(x[i]), raw(x[i + 1]));
    pairs[i + 1] = _mm512_unpackhi_ps(raw(x[i]), raw(x[i + 1]));
  }
  // fours[4 n + c]: in every block of four lanes, lane c of x[4 n .. 4 n + 3]
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 4) {
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      const __m512d a = _mm512_castps_pd(pairs[i + c]), b = _mm512_castps_pd(pairs[i + 2 + c]);
      fours[i + 2 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      fours[i + 2 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  // Blocks, as a matrix of four by four of them.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0xee);
    const __m512 d = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0x44);
    const __m512 e = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0xee);
    x[c] = from_raw(_mm512_shuffle_f32x4(a, d, 0x88));
    x[4 + c] = from_raw(_mm512_shuffle_f32x4(a, d, 0xdd));
    x[8 + c] = from_raw(_mm512_shuffle_f32x4(b, e, 0x88));
    x[12 + c] = from_raw(_mm512_shuffle_f32x4(b, e, 0xdd));
  }
}
// Blocks of four lanes: the sum of the blocks of a, of b, c and d.
HYLA_INLINE F sum_blocks(F a, F b, F c, F d) {
  const __m512 x = raw(a), y = raw(b), z = raw(c), w = raw(d);
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xee));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(z, w, 0x44), _mm512_shuffle_f32x4(z, w, 0xee));
  return from_raw(
      _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)));
}
// Lane i: the sum of the even lanes of x[i], lane 8 + i: of its odd ones.
HYLA_INLINE F sum_even_and_odd(const F (&x)[8]) {
  F both[4];  // in every block of four lanes even, odd of x[2 i], then of x[2 i + 1]
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(raw(x[2 * i])), b = _mm512_castps_pd(raw(x[2 * i + 1]));
    both[i] = from_raw(_mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(a, b))));
  }
  const __m512i order = _mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
  return from_raw(
      _mm512_permutexvar_ps(order, raw(sum_blocks(both[0], both[1], both[2], both[3]))));
}
HYLA_INLINE void store_halves(F x, float* lower, float* upper) {
  _mm256_storeu_ps(lower, _mm512_castps512_ps256(raw(x)));
  _mm256_storeu_ps(upper, _mm512_extractf32x8_ps(raw(x), 1));
}
// The same half in both halves.
HYLA_INLINE F load_half_twice(const float* from) {
  return from_raw(_mm512_broadcast_f32x8(_mm256_loadu_ps(from)));
}

using Words = __m512i;
// Half a vector of each.
HYLA_INLINE Words load_half_words(const void* lower, const void* upper) {
  const __m256i a = _mm256_loadu_si256(static_cast<const __m256i*>(lower));
  const __m256i b = _mm256_loadu_si256(static_cast<const __m256i*>(upper));
  return _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(a), 0xf0, b);
}
HYLA_INLINE Words load_words(const void* from) { return _mm512_loadu_si512(from); }
HYLA_INLINE void store_words(Words x, void* to) { _mm512_storeu_si512(to, x); }
// The first n; a load's other words are zero.
HYLA_INLINE __mmask32 first_words(std::int64_t n) {
  return n >= 2 * kLanes ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
}
HYLA_INLINE Words load_some_words(const bfloat16* from, std::int64_t n) {
  return _mm512_maskz_loadu_epi16(first_words(n), from);
}
HYLA_INLINE void store_some_words(Words x, bfloat16* to, std::int64_t n) {
  _mm512_mask_storeu_epi16(static_cast<void*>(to), first_words(n), x);
}

// A vector of bfloat16 as floats, those with even numbers and those with odd ones; and back, rounded
// to nearest, a tie away from zero: instructions for bfloat16, which know better, take 2.2 cycles on
// some processors. NaN must be clean: other bits of one may overflow.
HYLA_INLINE F even_words(Words x) {
  // Whole masks, as compilers take the plain forms for reads of what nobody has written.
  return from_raw(_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, x, 16)));
}
HYLA_INLINE F odd_words(Words x) {
  return from_raw(_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536))));
}
HYLA_INLINE Words join_words(F even, F odd) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i lower = _mm512_add_epi32(_mm512_castps_si512(__m512(raw(even))), half);
  const __m512i upper = _mm512_add_epi32(_mm512_castps_si512(__m512(raw(odd))), half);
  // The upper half of every number of `lower` goes below that of `upper`.
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi32(0x03020302, 0x07060706, 0x0b0a0b0a, 0x0f0e0f0e));
  return _mm512_mask_shuffle_epi8(upper, 0x3333333333333333u, lower, order);
}
HYLA_INLINE bool any_nan(F x, F y) {
  return _mm512_cmp_ps_mask(__m512(raw(x)), __m512(raw(y)), _CMP_UNORD_Q) != 0;
}
// What join_words() rounds to even.
HYLA_INLINE F with_tie(F x) {
  const __m512i bits = _mm512_castps_si512(__m512(raw(x)));
  const __m512i one = _mm512_set1_epi32(1), below = _mm512_set1_epi32(0x7fff - 0x8000);
  const __m512i last = _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, bits, 16), one);
  return from_raw(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_add_epi32(bits, below), last)));
}
// Of the 32 floats of a and b: the even ones, and the odd ones. And back.
HYLA_INLINE void split_lanes(F& a, F& b) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512 x = raw(a), y = raw(b);
  a = from_raw(_mm512_permutex2var_ps(x, even, y));
  b = from_raw(_mm512_permutex2var_ps(x, odd, y));
}
HYLA_INLINE void zip_lanes(F& a, F& b) {
  const __m512i lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
  const __m512 x = raw(a), y = raw(b);
  a = from_raw(_mm512_permutex2var_ps(x, lower, y));
  b = from_raw(_mm512_permutex2var_ps(x, upper, y));
}
// Lane i: lane first + i / kColumns of x.
template <int kColumns>
HYLA_INLINE F spread(F x, int first) {
  alignas(64) std::int32_t from[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) from[i] = i / kColumns;
  const __m512i order = _mm512_add_epi32(_mm512_load_si512(from), _mm512_set1_epi32(first));
  return from_raw(_mm512_permutexvar_ps(order, __m512(raw(x))));
}

// NaN with only its first bit set.
HYLA_INLINE F clean_nan(F x) {
  const __m512 y = raw(x);
  return from_raw(_mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q),
                                     raw(set(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
