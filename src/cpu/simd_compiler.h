// cpu/simd.h over the compiler's vector types. Included by it alone, once for each target.

#if defined(__x86_64__) && !HYLA_TARGET_USES_HIGHWAY && !defined(HYLA_HAS_HIGHWAY)
#include <immintrin.h>
#endif

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

#ifdef HYLA_HAS_HIGHWAY
constexpr int kLanes = 4;
#elif HYLA_COMPILED_TARGET == 1
constexpr int kLanes = 8;
#elif HYLA_COMPILED_TARGET >= 2
constexpr int kLanes = 16;
#else
constexpr int kLanes = 4;
#endif

typedef float F __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t Bits __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t HalfBits __attribute__((vector_size(kLanes * 2)));

HYLA_INLINE F zero() { return F{}; }
HYLA_INLINE F set(float x) { return F{} + x; }
HYLA_INLINE F add(F a, F b) { return a + b; }
HYLA_INLINE F sub(F a, F b) { return a - b; }
HYLA_INLINE F mul(F a, F b) { return a * b; }
HYLA_INLINE F div(F a, F b) { return a / b; }
HYLA_INLINE F fma(F a, F b, F c) {
#if !defined(HYLA_HAS_HIGHWAY) && HYLA_COMPILED_TARGET == 1
  return F(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif HYLA_TARGET_HAS_AVX512
  return F(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#else
  return a * b + c;
#endif
}
HYLA_INLINE F max(F a, F b) { return a > b ? a : b; }
HYLA_INLINE F min(F a, F b) { return a < b ? a : b; }
HYLA_INLINE F abs(F a) { return F(Bits(a) & 0x7fffffffu); }
// The baseline's is right for magnitudes below 2^22, which is all that exp needs.
HYLA_INLINE F round(F a) {
#if !defined(HYLA_HAS_HIGHWAY) && HYLA_COMPILED_TARGET == 1
  return F(_mm256_round_ps(__m256(a), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif HYLA_TARGET_HAS_AVX512
  return F(_mm512_roundscale_ps(__m512(a), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  const F magic = set(12582912.0f);
  F shifted = a + magic;
#if defined(__SSE2__)
  asm("" : "+x"(shifted));  // not to be simplified away, whatever the flags
#endif
  return shifted - magic;
#endif
}
HYLA_INLINE F power_of_two(F n) { return F((__builtin_convertvector(n, Ints) + 127) << 23); }
// The two halves of 2^u: u - floor(u), and x 2^floor(u) for u of -127 (then 0) to 127. Without
// AVX-512 the floor is that of u - 1/2 rounded: a whole u may be 1 + (u - 1).
HYLA_INLINE F fraction(F u) {
#if HYLA_TARGET_HAS_AVX512
  return F(_mm512_reduce_ps(__m512(u), _MM_FROUND_TO_NEG_INF));
#else
  return u - round(u - 0.5f);
#endif
}
HYLA_INLINE F scale_by_floor(F x, F u) {
#if HYLA_TARGET_HAS_AVX512
  // g++ warns of what the unmasked one leaves undefined.
  return F(_mm512_maskz_scalef_ps(0xffff, __m512(x), __m512(u)));
#else
  return x * power_of_two(round(u - 0.5f));
#endif
}

HYLA_INLINE F raw(F x) { return x; }
HYLA_INLINE F from_raw(F x) { return x; }

HYLA_INLINE bool any_greater(F a, F b) {
#if !defined(HYLA_HAS_HIGHWAY) && HYLA_COMPILED_TARGET == 1
  return _mm256_movemask_ps(_mm256_cmp_ps(__m256(a), __m256(b), _CMP_GT_OQ)) != 0;
#elif HYLA_TARGET_HAS_AVX512
  return _mm512_cmp_ps_mask(__m512(a), __m512(b), _CMP_GT_OQ) != 0;
#else
  const Ints greater = a > b;
  std::int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= greater[i];
  return any != 0;
#endif
}

HYLA_INLINE F load(const float* from) {
  F x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
HYLA_INLINE void store(F x, float* to) { std::memcpy(to, &x, sizeof x); }

HYLA_INLINE F load(const bfloat16* from) {
  HalfBits bits;
  std::memcpy(&bits, from, sizeof bits);
  return F(__builtin_convertvector(bits, Bits) << 16);
}
HYLA_INLINE void store(F x, bfloat16* to) {
  const Bits bits = Bits(x);
  const Bits rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Bits quiet = bits | 0x400000u;
  const Bits chosen = x != x ? quiet : rounded;
  const HalfBits half = __builtin_convertvector(chosen >> 16, HalfBits);
  std::memcpy(static_cast<void*>(to), &half, sizeof half);
}

HYLA_INLINE F load(const float16* from) {
#if !defined(HYLA_HAS_HIGHWAY) && HYLA_COMPILED_TARGET == 1
  return F(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif HYLA_TARGET_HAS_AVX512
  return F(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#else
  F x;
  for (int i = 0; i < kLanes; ++i) x[i] = static_cast<float>(from[i]);
  return x;
#endif
}
HYLA_INLINE void store(F x, float16* to) {
#if !defined(HYLA_HAS_HIGHWAY) && HYLA_COMPILED_TARGET == 1
  const __m128i half = _mm256_cvtps_ph(__m256(x), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(static_cast<void*>(to), &half, sizeof half);
#elif HYLA_TARGET_HAS_AVX512
  const __m256i half = _mm512_cvtps_ph(__m512(x), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(static_cast<void*>(to), &half, sizeof half);
#else
  for (int i = 0; i < kLanes; ++i) to[i] = float16(x[i]);
#endif
}

#if !defined(HYLA_HAS_HIGHWAY) && HYLA_COMPILED_TARGET >= 1
// Bytes, for vectors of 8 lanes and more.
HYLA_INLINE F load(const std::int8_t* from) {
  typedef std::int8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes x;
  std::memcpy(&x, from, sizeof x);
  return __builtin_convertvector(x, F);
}
// e4m3 with its exponent in the place of float16's is 2^-8 of itself, subnormal numbers too.
HYLA_INLINE F load(const float8_e4m3* from) {
  typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  const HalfBits bits = __builtin_convertvector(bytes, HalfBits), magnitude = bits & 0x7f;
  const HalfBits nan = HalfBits{} + 0x7e00;
  const HalfBits number = (magnitude == 0x7f ? nan : magnitude << 7) | ((bits << 8) & 0x8000);
#if HYLA_COMPILED_TARGET == 1
  return F(_mm256_cvtph_ps(__m128i(number))) * 256.0f;
#else
  return F(_mm512_cvtph_ps(__m256i(number))) * 256.0f;
#endif
}
#endif

// Past the caches, to an address that is a multiple of the bytes of kLanes elements. After the last
// one flush_stream() lets other threads see them.
template <class T>
HYLA_INLINE void stream(F x, T* to) {
#if !defined(HYLA_HAS_HIGHWAY) && HYLA_COMPILED_TARGET >= 1
  alignas(64) T lanes[kLanes];
  store(x, lanes);
  constexpr std::size_t kPart = sizeof lanes < 32 ? 16 : 32;
  for (std::size_t i = 0; i < sizeof lanes; i += kPart) {
    const char* from = reinterpret_cast<const char*>(lanes) + i;
    char* part = reinterpret_cast<char*>(to) + i;
    if constexpr (kPart == 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(part),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from)));
    } else {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(part),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(from)));
    }
  }
#else
  store(x, to);
#endif
}
HYLA_INLINE void flush_stream() {
#if !defined(HYLA_HAS_HIGHWAY) && HYLA_COMPILED_TARGET >= 1
  _mm_sfence();
#endif
}

// Blocks are four lanes, as over Highway: {a0 b0 a1 b1} of each block, or {a2 b2 a3 b3}; with kWide
// {a0 a1 b0 b1}, or {a2 a3 b2 b3}.
template <bool kUpper, bool kWide, int... kLane>
HYLA_INLINE F interleave(F a, F b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(
      a, b,
      (kLane / 4 * 4 + (kUpper ? 2 : 0) +
       (kWide ? kLane % 2 + kLane % 4 / 2 * kLanes : kLane % 4 / 2 + kLane % 2 * kLanes))...);
}
template <bool kWide>
HYLA_INLINE F add_interleaved(F a, F b) {
  constexpr std::make_integer_sequence<int, kLanes> lanes{};
  return interleave<false, kWide>(a, b, lanes) + interleave<true, kWide>(a, b, lanes);
}
// In every block of four lanes: to[c] holds lane c of a, b, c and d.
HYLA_INLINE void transpose4(F a, F b, F c, F d, float (*to)[kLanes]) {
  constexpr std::make_integer_sequence<int, kLanes> lanes{};
  const F ab = interleave<false, false>(a, b, lanes), cd = interleave<false, false>(c, d, lanes);
  const F ab2 = interleave<true, false>(a, b, lanes), cd2 = interleave<true, false>(c, d, lanes);
  store(interleave<false, true>(ab, cd, lanes), to[0]);
  store(interleave<true, true>(ab, cd, lanes), to[1]);
  store(interleave<false, true>(ab2, cd2, lanes), to[2]);
  store(interleave<true, true>(ab2, cd2, lanes), to[3]);
}
typedef float Four __attribute__((vector_size(16)));
HYLA_INLINE Four sum_blocks(F x) {
  Four blocks[kLanes / 4];
  std::memcpy(blocks, &x, sizeof x);
  if constexpr (kLanes == 16) return (blocks[0] + blocks[2]) + (blocks[1] + blocks[3]);
  if constexpr (kLanes == 8) return blocks[0] + blocks[1];
  return blocks[0];
}
HYLA_INLINE F sum_in_blocks(F a, F b, F c, F d) {
  return add_interleaved<true>(add_interleaved<false>(a, b), add_interleaved<false>(c, d));
}
HYLA_INLINE void sum4(F a, F b, F c, F d, float* to) {
  const Four sums = sum_blocks(sum_in_blocks(a, b, c, d));
  std::memcpy(to, &sums, sizeof sums);
}

// Lanes of a and b by their blocks of four: block i is block kBlock[i], those of b counted on.
template <int kBlock0, int kBlock1, int kBlock2, int kBlock3, int... kLane>
HYLA_INLINE F choose_blocks(F a, F b, std::integer_sequence<int, kLane...>) {
  constexpr int kBlocks[] = {kBlock0, kBlock1, kBlock2, kBlock3};
  return __builtin_shufflevector(a, b, (kBlocks[kLane / 4] * 4 + kLane % 4)...);
}
#if !HYLA_TARGET_HAS_AVX512
// Lane i: the sum of x[i].
HYLA_INLINE F sum_each(const F (&x)[kLanes]) {
  constexpr std::make_integer_sequence<int, kLanes> lanes{};
  F parts[kLanes / 4];
#pragma GCC unroll 2
  for (int i = 0; i < kLanes / 4; ++i) {
    parts[i] = sum_in_blocks(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
  if constexpr (kLanes == 8) {
    return choose_blocks<0, 2, 0, 0>(parts[0], parts[1], lanes) +
           choose_blocks<1, 3, 0, 0>(parts[0], parts[1], lanes);
  } else {
    return parts[0];
  }
}
#endif

// The largest of the lanes whose numbers are equal modulo kPeriod, in each of them.
template <int kPeriod>
HYLA_INLINE F max_modulo(F x) {
  static_assert(kPeriod % 4 == 0 && kLanes / kPeriod <= 4);
  constexpr std::make_integer_sequence<int, kLanes> lanes{};
  if constexpr (kLanes == 16 && kPeriod < 16) x = max(x, choose_blocks<2, 3, 0, 1>(x, x, lanes));
  if constexpr (kLanes == 2 * kPeriod && kLanes == 8) {
    x = max(x, choose_blocks<1, 0, 0, 0>(x, x, lanes));
  }
  if constexpr (kLanes == 4 * kPeriod) x = max(x, choose_blocks<1, 0, 3, 2>(x, x, lanes));
  return x;
}
HYLA_INLINE float sum(F x) {
  const Four block = sum_blocks(x);
  return (block[0] + block[2]) + (block[1] + block[3]);
}
HYLA_INLINE float max_lane(F x) {
  float result = x[0];
  for (int i = 1; i < kLanes; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

#if HYLA_TARGET_HAS_PAIRS
using P = Bits;
HYLA_INLINE __m512i words(P x) { return __m512i(x); }
HYLA_INLINE P from_words(__m512i x) { return P(x); }
HYLA_INLINE __m512 floats(F x) { return __m512(x); }
HYLA_INLINE F from_floats(__m512 x) { return F(x); }
HYLA_INLINE P load_pairs(const void* from) {
  P x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
HYLA_INLINE void store_pairs(P x, void* to) { std::memcpy(to, &x, sizeof x); }
HYLA_INLINE P set_pair(std::uint32_t x) { return P{} + x; }
HYLA_INLINE F even(P x) { return F(x << 16); }
HYLA_INLINE F odd(P x) { return F(x & 0xffff0000u); }
HYLA_INLINE F dot_pairs(F sum, P a, P b) {
  return F(_mm512_dpbf16_ps(__m512(sum), (__m512bh)(a), (__m512bh)(b)));
}
HYLA_INLINE void zip_pairs(P a, P b, P& lower, P& upper) {
  lower = P(_mm512_permutex2var_epi16((__m512i)(a), _mm512_load_si512(kZip.lower), (__m512i)(b)));
  upper = P(_mm512_permutex2var_epi16((__m512i)(a), _mm512_load_si512(kZip.upper), (__m512i)(b)));
}
HYLA_INLINE void interleave_pairs(P a, P b, P& lower, P& upper) {
  lower = P(_mm512_unpacklo_epi16((__m512i)(a), (__m512i)(b)));
  upper = P(_mm512_unpackhi_epi16((__m512i)(a), (__m512i)(b)));
}
HYLA_INLINE P pack_pairs(F low, F high) {
  alignas(64) static constexpr std::uint16_t kInterleave[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto both = (__m512i)(_mm512_cvtne2ps_pbh(__m512(high), __m512(low)));
  return P(_mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), both));
}
HYLA_INLINE P zip_lower(P a, P b) { return P(_mm512_unpacklo_epi16(__m512i(a), __m512i(b))); }
HYLA_INLINE P zip_upper(P a, P b) { return P(_mm512_unpackhi_epi16(__m512i(a), __m512i(b))); }
#endif

template <class T>
HYLA_INLINE F load_n(const T* from, int n) {
  T lanes[kLanes] = {};
  std::memcpy(static_cast<void*>(lanes), from, static_cast<std::size_t>(n) * sizeof(T));
  return load(lanes);
}
template <class T>
HYLA_INLINE void store_n(F x, T* to, int n) {
  T lanes[kLanes];
  store(x, lanes);
  std::memcpy(static_cast<void*>(to), lanes, static_cast<std::size_t>(n) * sizeof(T));
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
