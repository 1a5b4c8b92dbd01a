// Random numbers that depend on nothing but (seed, name, index): the same on every machine, in any
// order, however many threads draw them.
#pragma once

#include <cstdint>
#include <string_view>

namespace hyla::testing {

// The finaliser of SplitMix64: every input bit changes every output bit with probability near 1/2.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  constexpr Random(std::uint64_t seed, std::string_view name) : key_(mix(seed)) {
    for (char c : name) key_ = mix(key_ ^ static_cast<unsigned char>(c));
  }

  constexpr std::uint64_t bits(std::int64_t index) const {
    return mix(key_ ^ mix(static_cast<std::uint64_t>(index)));
  }
  constexpr double uniform(std::int64_t index) const {  // [0, 1)
    return static_cast<double>(bits(index) >> 11) * 0x1p-53;
  }
  constexpr std::int64_t below(std::int64_t index, std::int64_t limit) const {  // [0, limit)
    return static_cast<std::int64_t>(bits(index) % static_cast<std::uint64_t>(limit));
  }
  constexpr bool chance(std::int64_t index, double probability) const {
    return uniform(index) < probability;
  }
  // Mean 0, variance 1, within +-3.47: four 16-bit uniforms added up (each of variance 1/12). Close
  // enough to a normal distribution, ten times as fast, and without rare giants.
  constexpr double normal(std::int64_t index) const {
    const std::uint64_t x = bits(index);
    const auto sum =
        static_cast<double>((x & 0xffff) + ((x >> 16) & 0xffff) + ((x >> 32) & 0xffff) + (x >> 48));
    return (sum * 0x1p-16 - 2.0 + 0x1p-15) * 1.7320508075688772;
  }

 private:
  std::uint64_t key_;
};

}  // namespace hyla::testing
