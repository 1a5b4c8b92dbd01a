// cpu/simd.h over Highway. Included by it alone, once for each target.

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<float> kTag;
constexpr hn::Rebind<std::uint32_t, decltype(kTag)> kBitsTag;
constexpr hn::Rebind<std::int32_t, decltype(kTag)> kIntTag;
constexpr hn::Rebind<std::uint16_t, decltype(kTag)> kHalfBitsTag;
constexpr hn::Rebind<hwy::float16_t, decltype(kTag)> kHalfTag;
constexpr hn::Rebind<std::int8_t, decltype(kTag)> kByteTag;
constexpr hn::Rebind<std::uint8_t, decltype(kTag)> kByteBitsTag;

using F = hn::Vec<decltype(kTag)>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(kTag));

HYLA_INLINE F zero() { return hn::Zero(kTag); }
HYLA_INLINE F set(float x) { return hn::Set(kTag, x); }
HYLA_INLINE F add(F a, F b) { return hn::Add(a, b); }
HYLA_INLINE F sub(F a, F b) { return hn::Sub(a, b); }
HYLA_INLINE F mul(F a, F b) { return hn::Mul(a, b); }
HYLA_INLINE F div(F a, F b) { return hn::Div(a, b); }
HYLA_INLINE F fma(F a, F b, F c) { return hn::MulAdd(a, b, c); }
// Where one is NaN, b.
HYLA_INLINE F max(F a, F b) { return hn::Max(a, b); }
HYLA_INLINE F min(F a, F b) { return hn::Min(a, b); }
HYLA_INLINE F abs(F a) { return hn::Abs(a); }
HYLA_INLINE F round(F a) { return hn::Round(a); }
// 2^n for integers n of -127 (then 0) to 127.
HYLA_INLINE F power_of_two(F n) {
  const auto exponent = hn::Add(hn::ConvertTo(kIntTag, n), hn::Set(kIntTag, 127));
  return hn::BitCast(kTag, hn::ShiftLeft<23>(exponent));
}

HYLA_INLINE bool any_greater(F a, F b) { return !hn::AllFalse(kTag, hn::Gt(a, b)); }

// The two halves of 2^u: u - floor(u), and x 2^floor(u) for u of -127 (then 0) to 127.
HYLA_INLINE F fraction(F u) {
#if HYLA_TARGET_HAS_AVX512
  return F{_mm512_reduce_ps(u.raw, _MM_FROUND_TO_NEG_INF)};
#else
  return sub(u, hn::Floor(u));
#endif
}
HYLA_INLINE F scale_by_floor(F x, F u) {
#if HYLA_TARGET_HAS_AVX512
  return F{_mm512_scalef_ps(x.raw, u.raw)};
#else
  return mul(x, power_of_two(hn::Floor(u)));
#endif
}

HYLA_INLINE auto raw(F x) { return x.raw; }
template <class Raw>
HYLA_INLINE F from_raw(Raw x) {
  return F{x};
}

HYLA_INLINE F load(const float* from) { return hn::LoadU(kTag, from); }
HYLA_INLINE void store(F x, float* to) { hn::StoreU(x, kTag, to); }

HYLA_INLINE F load(const bfloat16* from) {
  const auto bits = hn::LoadU(kHalfBitsTag, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(kTag, hn::ShiftLeft<16>(hn::PromoteTo(kBitsTag, bits)));
}
HYLA_INLINE void store(F x, bfloat16* to) {
#if HYLA_TARGET_HAS_PAIRS
  const __m256bh rounded = _mm512_cvtneps_pbh(x.raw);
  std::memcpy(static_cast<void*>(to), &rounded, sizeof rounded);
#else
  const auto bits = hn::BitCast(kBitsTag, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kBitsTag, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(kBitsTag, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(kBitsTag, 0x400000));
  const auto chosen = hn::IfThenElse(hn::RebindMask(kBitsTag, hn::IsNaN(x)), quiet, rounded);
  const auto shifted = hn::BitCast(kIntTag, hn::ShiftRight<16>(chosen));
  hn::StoreU(hn::DemoteTo(kHalfBitsTag, shifted), kHalfBitsTag,
             reinterpret_cast<std::uint16_t*>(to));
#endif
}

HYLA_INLINE F load(const float16* from) {
  const auto bits = hn::LoadU(kHalfBitsTag, reinterpret_cast<const std::uint16_t*>(from));
  return hn::PromoteTo(kTag, hn::BitCast(kHalfTag, bits));
}
HYLA_INLINE void store(F x, float16* to) {
  hn::StoreU(hn::BitCast(kHalfBitsTag, hn::DemoteTo(kHalfTag, x)), kHalfBitsTag,
             reinterpret_cast<std::uint16_t*>(to));
}

// Bytes, for vectors of 8 lanes and more.
HYLA_INLINE F load(const std::int8_t* from) {
  return hn::ConvertTo(kTag, hn::PromoteTo(kIntTag, hn::LoadU(kByteTag, from)));
}
// e4m3 with its exponent in the place of float16's is 2^-8 of itself, subnormal numbers too.
HYLA_INLINE F load(const float8_e4m3* from) {
  const auto bytes = hn::LoadU(kByteBitsTag, reinterpret_cast<const std::uint8_t*>(from));
  const auto bits = hn::PromoteTo(kHalfBitsTag, bytes);
  const auto sign = hn::And(hn::ShiftLeft<8>(bits), hn::Set(kHalfBitsTag, 0x8000));
  const auto magnitude = hn::And(bits, hn::Set(kHalfBitsTag, 0x7f));
  const auto nan = hn::Eq(magnitude, hn::Set(kHalfBitsTag, 0x7f));
  const auto number =
      hn::IfThenElse(nan, hn::Set(kHalfBitsTag, 0x7e00), hn::ShiftLeft<7>(magnitude));
  const F x = hn::PromoteTo(kTag, hn::BitCast(kHalfTag, hn::Or(number, sign)));
  return mul(x, set(256.0f));
}

// Past the caches, to an address that is a multiple of the bytes of kLanes elements. After the last
// one flush_stream() lets other threads see them.
HYLA_INLINE void stream(F x, float* to) { hn::Stream(x, kTag, to); }
template <class T>
HYLA_INLINE void stream(F x, T* to) {
  alignas(64) T lanes[kLanes];
  store(x, lanes);
  const auto bits = hn::Load(kHalfBitsTag, reinterpret_cast<const std::uint16_t*>(lanes));
  hn::Stream(bits, kHalfBitsTag, reinterpret_cast<std::uint16_t*>(to));
}
HYLA_INLINE void flush_stream() { hwy::FlushStream(); }

// Sums within blocks of four lanes, then over blocks.
HYLA_INLINE auto sum_blocks(F x) {
  if constexpr (kLanes == 16) {
    constexpr hn::Half<decltype(kTag)> half;
    constexpr hn::Half<decltype(half)> quarter;
    const auto h = hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x));
    return hn::Add(hn::LowerHalf(quarter, h), hn::UpperHalf(quarter, h));
  } else if constexpr (kLanes == 8) {
    constexpr hn::Half<decltype(kTag)> half;
    return hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x));
  } else {
    return x;
  }
}

// In every block of four lanes, the sums of its lanes of a, b, c and d.
HYLA_INLINE F sum_in_blocks(F a, F b, F c, F d) {
  constexpr hn::Repartition<double, decltype(kTag)> wide;
  const F ab = add(hn::InterleaveLower(kTag, a, b), hn::InterleaveUpper(kTag, a, b));
  const F cd = add(hn::InterleaveLower(kTag, c, d), hn::InterleaveUpper(kTag, c, d));
  const auto x = hn::BitCast(wide, ab), y = hn::BitCast(wide, cd);
  return add(hn::BitCast(kTag, hn::InterleaveLower(wide, x, y)),
             hn::BitCast(kTag, hn::InterleaveUpper(wide, x, y)));
}
HYLA_INLINE void sum4(F a, F b, F c, F d, float* to) {
  constexpr hn::CappedTag<float, 4> four;
  hn::StoreU(sum_blocks(sum_in_blocks(a, b, c, d)), four, to);
}

#if !HYLA_TARGET_HAS_AVX512
// Lane i: the sum of x[i].
HYLA_INLINE F sum_each(const F (&x)[kLanes]) {
  F parts[kLanes / 4];
#pragma GCC unroll 2
  for (int i = 0; i < kLanes / 4; ++i) {
    parts[i] = sum_in_blocks(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
  if constexpr (kLanes == 8) {
    return add(hn::ConcatLowerLower(kTag, parts[1], parts[0]),
               hn::ConcatUpperUpper(kTag, parts[1], parts[0]));
  } else {
    return parts[0];
  }
}
#endif

// The largest of the lanes whose numbers are equal modulo kPeriod, in each of them.
template <int kPeriod>
HYLA_INLINE F max_modulo(F x) {
  static_assert(kPeriod % 4 == 0 && kLanes / kPeriod <= 4);
  if constexpr (kLanes >= 2 * kPeriod) x = max(x, hn::ConcatLowerUpper(kTag, x, x));
#if HYLA_TARGET_HAS_AVX512
  if constexpr (kLanes == 4 * kPeriod) x = max(x, hn::SwapAdjacentBlocks(x));
#endif
  return x;
}

// In every block of four lanes: to[c] holds lane c of a, b, c and d.
HYLA_INLINE void transpose4(F a, F b, F c, F d, float (*to)[kLanes]) {
  constexpr hn::Repartition<double, decltype(kTag)> wide;
  const auto ab = hn::BitCast(wide, hn::InterleaveLower(kTag, a, b));
  const auto cd = hn::BitCast(wide, hn::InterleaveLower(kTag, c, d));
  const auto ab2 = hn::BitCast(wide, hn::InterleaveUpper(kTag, a, b));
  const auto cd2 = hn::BitCast(wide, hn::InterleaveUpper(kTag, c, d));
  store(hn::BitCast(kTag, hn::InterleaveLower(wide, ab, cd)), to[0]);
  store(hn::BitCast(kTag, hn::InterleaveUpper(wide, ab, cd)), to[1]);
  store(hn::BitCast(kTag, hn::InterleaveLower(wide, ab2, cd2)), to[2]);
  store(hn::BitCast(kTag, hn::InterleaveUpper(wide, ab2, cd2)), to[3]);
}

HYLA_INLINE float sum(F x) { return hn::GetLane(hn::SumOfLanes(kTag, x)); }
HYLA_INLINE float max_lane(F x) { return hn::GetLane(hn::MaxOfLanes(kTag, x)); }

#if HYLA_TARGET_HAS_PAIRS
using P = hn::Vec<decltype(kBitsTag)>;
HYLA_INLINE __m512i words(P x) { return x.raw; }
HYLA_INLINE P from_words(__m512i x) { return P{x}; }
HYLA_INLINE __m512 floats(F x) { return x.raw; }
HYLA_INLINE F from_floats(__m512 x) { return F{x}; }
HYLA_INLINE P load_pairs(const void* from) { return P{_mm512_loadu_si512(from)}; }
HYLA_INLINE void store_pairs(P x, void* to) { _mm512_storeu_si512(to, x.raw); }
HYLA_INLINE P set_pair(std::uint32_t x) { return hn::Set(kBitsTag, x); }
HYLA_INLINE F even(P x) { return hn::BitCast(kTag, hn::ShiftLeft<16>(x)); }
HYLA_INLINE F odd(P x) { return hn::BitCast(kTag, hn::And(x, hn::Set(kBitsTag, 0xffff0000u))); }
HYLA_INLINE F dot_pairs(F sum, P a, P b) {
  return F{_mm512_dpbf16_ps(sum.raw, reinterpret_cast<__m512bh>(a.raw),
                            reinterpret_cast<__m512bh>(b.raw))};
}
// {a[i], b[i]} of the bfloat16 i of the lower halves of a and b, and of the upper ones.
HYLA_INLINE void zip_pairs(P a, P b, P& lower, P& upper) {
  lower = P{_mm512_permutex2var_epi16(a.raw, _mm512_load_si512(kZip.lower), b.raw)};
  upper = P{_mm512_permutex2var_epi16(a.raw, _mm512_load_si512(kZip.upper), b.raw)};
}
// The same within blocks of eight bfloat16 of a and b: the lower halves of all blocks, the upper.
HYLA_INLINE void interleave_pairs(P a, P b, P& lower, P& upper) {
  lower = P{_mm512_unpacklo_epi16(a.raw, b.raw)};
  upper = P{_mm512_unpackhi_epi16(a.raw, b.raw)};
}
HYLA_INLINE P pack_pairs(F low, F high) {
  alignas(64) static constexpr std::uint16_t kInterleave[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.raw, low.raw));
  return P{_mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), both)};
}
// {a0 b0 a1 b1 ...} of two lines of bfloat16, in blocks of eight: the lower or the upper four of
// each. store_zipped brings floats of that order back into a line.
HYLA_INLINE P zip_lower(P a, P b) { return P{_mm512_unpacklo_epi16(a.raw, b.raw)}; }
HYLA_INLINE P zip_upper(P a, P b) { return P{_mm512_unpackhi_epi16(a.raw, b.raw)}; }
#endif

template <class T>
HYLA_INLINE F load_n(const T* from, int n) {
  if constexpr (kLanes == 16 && sizeof(T) == 4) {
    return hn::MaskedLoad(hn::FirstN(kTag, static_cast<std::size_t>(n)), kTag, from);
  } else {
    T lanes[kLanes] = {};
    std::memcpy(static_cast<void*>(lanes), from, static_cast<std::size_t>(n) * sizeof(T));
    return load(lanes);
  }
}
template <class T>
HYLA_INLINE void store_n(F x, T* to, int n) {
  if constexpr (kLanes == 16 && sizeof(T) == 4) {
    hn::BlendedStore(x, hn::FirstN(kTag, static_cast<std::size_t>(n)), kTag, to);
  } else {
    T lanes[kLanes];
    store(x, lanes);
    std::memcpy(static_cast<void*>(to), lanes, static_cast<std::size_t>(n) * sizeof(T));
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
