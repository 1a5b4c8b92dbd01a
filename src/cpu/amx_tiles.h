// The instructions of AMX. By name, as their intrinsics would need functions compiled for them alone.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
namespace hyla::cpu::amx {

struct Shape {
  std::uint8_t lines, line_bytes;
};

inline void configure(const Shape (&tiles)[8]) {
  struct alignas(64) {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t line_bytes[16] = {};
    std::uint8_t lines[16] = {};
  } all;
  for (int i = 0; i < 8; ++i) {
    all.line_bytes[i] = tiles[i].line_bytes;
    all.lines[i] = tiles[i].lines;
  }
  asm volatile("ldtilecfg %0" : : "m"(all));
}
inline void release() { asm volatile("tilerelease"); }

template <int kTile>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// `stride`: between lines, in 32-bit elements.
template <int kTile>
inline void load(const float* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(stride * 4), "i"(kTile)
               : "memory");
}
// What is not read again soon: it does not push other things out of the first cache.
template <int kTile>
inline void load_once(const float* from, std::int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(stride * 4), "i"(kTile)
               : "memory");
}
template <int kTile>
inline void store(float* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(to), "r"(stride * 4), "i"(kTile)
               : "memory");
}
// C += A B, all of them numbers of tiles.
template <int kC, int kA, int kB>
inline void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace hyla::cpu::amx
#endif
