#if defined(HYLA_OTHER_CPUS) && defined(__x86_64__)

#include "cpu/amx_emulated.h"

#include <immintrin.h>

#include <cstring>
#include <limits>

namespace hyla::cpu::amx {

Tiles& tiles_of_thread() {
  thread_local Tiles tiles{};
  return tiles;
}

void configure(const Shape (&tiles)[8]) {
  for (int i = 0; i < 8; ++i) tiles_of_thread().tile[i] = {tiles[i], {}};
}
void release() { tiles_of_thread() = {}; }

void load(Tile& tile, const float* from, std::int64_t stride) {
  std::memset(tile.at, 0, sizeof tile.at);
  for (int i = 0; i < tile.shape.lines; ++i) {
    std::memcpy(tile.at[i], from + i * stride, tile.shape.line_bytes);
  }
}

void store(const Tile& tile, float* to, std::int64_t stride) {
  for (int i = 0; i < tile.shape.lines; ++i) {
    std::memcpy(to + i * stride, tile.at[i], tile.shape.line_bytes);
  }
}

namespace {

__attribute__((target("avx512f"))) __m512 lower(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
__attribute__((target("avx512f"))) __m512 upper(__m512i pairs) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

}  // namespace

// The first and the second numbers of pairs are summed apart, then both are added.
__attribute__((target("avx512f"))) void add_product(Tile& c, const Tile& a, const Tile& b) {
  const bool fits = a.shape.lines == c.shape.lines && b.shape.line_bytes == c.shape.line_bytes &&
                    a.shape.line_bytes == 4 * b.shape.lines;
  const __mmask16 columns = static_cast<__mmask16>((1u << (c.shape.line_bytes / 4)) - 1);
  for (int i = 0; i < c.shape.lines; ++i) {
    __m512 first = _mm512_setzero_ps(), second = first;
    for (int j = 0; j < b.shape.lines; ++j) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(a.at[i][j]));
      const __m512i y = _mm512_load_si512(b.at[j]);
      first = _mm512_fmadd_ps(lower(x), lower(y), first);
      second = _mm512_fmadd_ps(upper(x), upper(y), second);
    }
    __m512 sum = _mm512_add_ps(_mm512_load_ps(c.at[i]), _mm512_add_ps(first, second));
    // The processor refuses shapes that do not fit.
    if (!fits) sum = _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN());
    _mm512_mask_store_ps(c.at[i], columns, sum);
  }
}

}  // namespace hyla::cpu::amx

#endif
