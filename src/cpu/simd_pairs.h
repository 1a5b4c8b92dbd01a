// What cpu/simd.h knows of pairs of bfloat16 beyond the basics: bytes that become
// bfloat16. Included by it alone, for targets with pairs.

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// Half a vector of each.
HYLA_INLINE P load_halves(const void* lower, const void* upper) {
  const __m256i a = _mm256_loadu_si256(static_cast<const __m256i*>(lower));
  const __m256i b = _mm256_loadu_si256(static_cast<const __m256i*>(upper));
  return from_words(_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1));
}

// Pairs of x, y, z and w as a matrix of four by four: within each block of four lanes, and with
// blocks as its elements.
HYLA_INLINE void transpose_in_blocks(P x, P y, P z, P w, P (&to)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(words(x), words(y));
  const __m512i b = _mm512_unpackhi_epi32(words(x), words(y));
  const __m512i c = _mm512_unpacklo_epi32(words(z), words(w));
  const __m512i d = _mm512_unpackhi_epi32(words(z), words(w));
  to[0] = from_words(_mm512_unpacklo_epi64(a, c));
  to[1] = from_words(_mm512_unpackhi_epi64(a, c));
  to[2] = from_words(_mm512_unpacklo_epi64(b, d));
  to[3] = from_words(_mm512_unpackhi_epi64(b, d));
}
HYLA_INLINE void transpose_blocks(P x, P y, P z, P w, P (&to)[4]) {
  const __m512i a = _mm512_shuffle_i32x4(words(x), words(y), 0x44);
  const __m512i b = _mm512_shuffle_i32x4(words(x), words(y), 0xee);
  const __m512i c = _mm512_shuffle_i32x4(words(z), words(w), 0x44);
  const __m512i d = _mm512_shuffle_i32x4(words(z), words(w), 0xee);
  to[0] = from_words(_mm512_shuffle_i32x4(a, c, 0x88));
  to[1] = from_words(_mm512_shuffle_i32x4(a, c, 0xdd));
  to[2] = from_words(_mm512_shuffle_i32x4(b, d, 0x88));
  to[3] = from_words(_mm512_shuffle_i32x4(b, d, 0xdd));
}

// Pairs of a and of b in turn: of every block of four lanes the first two, then the others.
HYLA_INLINE void alternate_pairs(P a, P b, P& lower, P& upper) {
  lower = from_words(_mm512_unpacklo_epi32(words(a), words(b)));
  upper = from_words(_mm512_unpackhi_epi32(words(a), words(b)));
}

// What alternate_pairs took for a and for b.
HYLA_INLINE P even_pairs(P lower, P upper) {
  return from_words(_mm512_castps_si512(_mm512_shuffle_ps(
      _mm512_castsi512_ps(words(lower)), _mm512_castsi512_ps(words(upper)), 0x88)));
}
HYLA_INLINE P odd_pairs(P lower, P upper) {
  return from_words(_mm512_castps_si512(_mm512_shuffle_ps(
      _mm512_castsi512_ps(words(lower)), _mm512_castsi512_ps(words(upper)), 0xdd)));
}

// Floats in the order of zip_lower and zip_upper as a line of bfloat16; `to` of stream_zipped begins a
// cache line, see flush_stream().
HYLA_INLINE __m512i unzipped(F lower, F upper) {
  const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(floats(upper), floats(lower)));
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), both);
}
HYLA_INLINE void store_zipped(F lower, F upper, void* to) {
  _mm512_storeu_si512(to, unzipped(lower, upper));
}
HYLA_INLINE void stream_zipped(F lower, F upper, void* to) {
  _mm512_stream_si512(static_cast<__m512i*>(to), unzipped(lower, upper));
}

// Both as bfloat16, one after the other.
HYLA_INLINE void store_in_order(F first, F second, void* to) {
  const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(floats(second), floats(first)));
  _mm512_storeu_si512(to, both);
}

// The bfloat16 of the bytes of a one-byte dtype, low and high bytes apart, and those of bytes from
// 128 on. All of them are exact.
struct ByteTable {
  alignas(64) std::uint8_t low[128], high[128];
};
constexpr ByteTable byte_table(std::uint16_t (*bits)(unsigned)) {
  ByteTable table{};
  for (unsigned i = 0; i < 128; ++i) {
    table.low[i] = static_cast<std::uint8_t>(bits(i) & 0xff);
    table.high[i] = static_cast<std::uint8_t>(bits(i) >> 8);
  }
  return table;
}
constexpr std::uint16_t e4m3_bits_at(unsigned i) {
  return bfloat16(hyla::detail::e4m3_to_float(static_cast<std::uint8_t>(i))).bits;
}
constexpr std::uint16_t natural_bits_at(unsigned i) { return bfloat16(static_cast<float>(i)).bits; }
constexpr std::uint16_t negative_bits_at(unsigned i) {
  return bfloat16(static_cast<float>(i) - 128.0f).bits;
}
inline constexpr ByteTable kE4m3 = byte_table(e4m3_bits_at);
inline constexpr ByteTable kNatural = byte_table(natural_bits_at);
inline constexpr ByteTable kNegative = byte_table(negative_bits_at);

HYLA_INLINE __m512i look_up(const std::uint8_t (&table)[128], __m512i bytes) {
  return _mm512_permutex2var_epi8(_mm512_load_si512(table), bytes, _mm512_load_si512(table + 64));
}

// Bytes as bfloat16: of each block of 16 bytes the first eight, and the other eight.
struct E4m3Bytes {
  static HYLA_INLINE void widen(P x, P& lower, P& upper) {
    const __m512i bytes = words(x), sign = _mm512_set1_epi8(-128);
    const __m512i low = look_up(kE4m3.low, bytes);
    // high | (bytes & sign)
    const __m512i high = _mm512_ternarylogic_epi32(look_up(kE4m3.high, bytes), bytes, sign, 0xf8);
    lower = from_words(_mm512_unpacklo_epi8(low, high));
    upper = from_words(_mm512_unpackhi_epi8(low, high));
  }
};
struct Int8Bytes {
  static HYLA_INLINE void widen(P x, P& lower, P& upper) {
    const __m512i bytes = words(x);
    const __mmask64 negative = _mm512_movepi8_mask(bytes);
    const __m512i low = _mm512_mask_blend_epi8(negative, look_up(kNatural.low, bytes),
                                               look_up(kNegative.low, bytes));
    const __m512i high = _mm512_mask_blend_epi8(negative, look_up(kNatural.high, bytes),
                                                look_up(kNegative.high, bytes));
    lower = from_words(_mm512_unpacklo_epi8(low, high));
    upper = from_words(_mm512_unpackhi_epi8(low, high));
  }
};
// The same of 64 bytes in their order: the first 32, and the others.
template <class Bytes>
HYLA_INLINE void widen_in_order(const void* from, P& first, P& second) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  Bytes::widen(from_words(_mm512_permutexvar_epi64(order, _mm512_loadu_si512(from))), first,
               second);
}
HYLA_INLINE P times(P x, F factor) { return pack_pairs(mul(even(x), factor), mul(odd(x), factor)); }
// The bytes of the halves of x in turn: {lower 0, upper 0, lower 1, ...}.
HYLA_INLINE P alternate_halves(P x) {
  alignas(64) std::uint8_t from[64];
#pragma GCC unroll 64
  for (int i = 0; i < 64; ++i) from[i] = static_cast<std::uint8_t>(i / 2 + i % 2 * 32);
  return from_words(_mm512_permutexvar_epi8(_mm512_load_si512(from), words(x)));
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
