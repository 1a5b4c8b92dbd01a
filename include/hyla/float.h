// The small floating-point formats as storage types: bfloat16, float16, float8 e4m3 (finite only,
// NaN = 0x7f / 0xff). Conversions are exact: to float without loss, from float by round to nearest,
// ties to even. Float8 saturates to +-448 (as inference engines quantise); infinities become +-448
// too.
#ifndef HYLA_FLOAT_H_
#define HYLA_FLOAT_H_

#include <bit>
#include <cstdint>

namespace hyla {
namespace detail {

constexpr float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);  // keep it a NaN, quiet
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Decodes sign | exponent | mantissa with the given widths into float; all these formats fit.
constexpr float decode_small(std::uint32_t sign, std::uint32_t exponent, std::uint32_t mantissa,
                             int mantissa_bits, int bias) {
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign << 31);
    int shift = 0;
    while (((mantissa << shift) >> mantissa_bits) == 0) ++shift;
    mantissa = (mantissa << shift) & ((1u << mantissa_bits) - 1u);
    const auto e = static_cast<std::uint32_t>(1 - shift - bias + 127);
    return std::bit_cast<float>((sign << 31) | (e << 23) | (mantissa << (23 - mantissa_bits)));
  }
  const auto e = static_cast<std::uint32_t>(static_cast<int>(exponent) - bias + 127);
  return std::bit_cast<float>((sign << 31) | (e << 23) | (mantissa << (23 - mantissa_bits)));
}

constexpr float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = bits >> 15, exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) {
    return std::bit_cast<float>((sign << 31) | 0x7f800000u | (mantissa << 13));
  }
  return decode_small(sign, exponent, mantissa, 10, 15);
}

// Magnitude of a finite float rounded to a format with `mantissa_bits` and exponent bias `bias`,
// as exponent|mantissa bits. A carry into the next exponent comes out right by itself; the caller
// handles what lies beyond the largest finite value.
constexpr std::uint32_t encode_small(std::uint32_t magnitude, int mantissa_bits, int bias) {
  const int exponent = static_cast<int>(magnitude >> 23) - 127 + bias;
  const int drop = 23 - mantissa_bits;
  std::uint64_t mantissa = magnitude & 0x7fffffu;
  std::uint64_t base = 0;
  int shift = drop;
  if (exponent <= 0) {  // subnormal in the small format
    if ((magnitude >> 23) != 0) mantissa |= 0x800000u;
    shift = drop + 1 - exponent;
    if (shift > 40) return 0;
  } else {
    base = static_cast<std::uint64_t>(exponent) << mantissa_bits;
  }
  const std::uint64_t kept = mantissa >> shift;
  const std::uint64_t rest = mantissa & ((1ull << shift) - 1ull);
  const std::uint64_t half = 1ull << (shift - 1);
  const std::uint64_t up = (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
  return static_cast<std::uint32_t>(base + kept + up);
}

constexpr std::uint16_t float_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  std::uint32_t small = magnitude >= 0x47800000u ? 0x7c00u : encode_small(magnitude, 10, 15);
  if (small > 0x7c00u) small = 0x7c00u;
  return static_cast<std::uint16_t>(sign | small);
}

constexpr float e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t sign = bits >> 7, exponent = (bits >> 3) & 0xfu, mantissa = bits & 7u;
  if (exponent == 0xf && mantissa == 7) return std::bit_cast<float>((sign << 31) | 0x7fc00000u);
  return decode_small(sign, exponent, mantissa, 3, 7);
}

constexpr std::uint8_t float_to_e4m3(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  std::uint32_t small = magnitude >= 0x43f00000u ? 0x7eu : encode_small(magnitude, 3, 7);
  if (small > 0x7eu) small = 0x7eu;  // 448, the largest finite value
  return static_cast<std::uint8_t>(sign | small);
}

}  // namespace detail

struct bfloat16 {
  std::uint16_t bits = 0;
  constexpr bfloat16() = default;
  constexpr explicit bfloat16(float value) : bits(detail::float_to_bf16(value)) {}
  constexpr explicit operator float() const { return detail::bf16_to_float(bits); }
};

struct float16 {
  std::uint16_t bits = 0;
  constexpr float16() = default;
  constexpr explicit float16(float value) : bits(detail::float_to_f16(value)) {}
  constexpr explicit operator float() const { return detail::f16_to_float(bits); }
};

struct float8_e4m3 {
  std::uint8_t bits = 0;
  constexpr float8_e4m3() = default;
  constexpr explicit float8_e4m3(float value) : bits(detail::float_to_e4m3(value)) {}
  constexpr explicit operator float() const { return detail::e4m3_to_float(bits); }
};

}  // namespace hyla

#endif  // HYLA_FLOAT_H_
