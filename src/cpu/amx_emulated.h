// What the instructions of AMX do (amx_tiles.h), by AVX-512 over arrays: for tests of the kernels that
// use tiles on machines without them, and under sanitizers, which do not see what tiles load.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
namespace hyla::cpu::amx {

struct Shape {
  std::uint8_t lines, line_bytes;
};

// Of a thread. Outside of a scope shapes are empty: nothing is loaded or stored, which tests see.
struct Tile {
  Shape shape;
  alignas(64) std::uint32_t at[16][16];
};
struct Tiles {
  Tile tile[8];
};
Tiles& tiles_of_thread();

void configure(const Shape (&tiles)[8]);
void release();

void load(Tile& tile, const float* from, std::int64_t stride);
void store(const Tile& tile, float* to, std::int64_t stride);
void add_product(Tile& c, const Tile& a, const Tile& b);

template <int kTile>
inline void zero() {
  Tile& tile = tiles_of_thread().tile[kTile];
  tile = {tile.shape, {}};
}
template <int kTile>
inline void load(const float* from, std::int64_t stride) {
  load(tiles_of_thread().tile[kTile], from, stride);
}
template <int kTile>
inline void load_once(const float* from, std::int64_t stride) {
  load<kTile>(from, stride);
}
template <int kTile>
inline void store(float* to, std::int64_t stride) {
  store(tiles_of_thread().tile[kTile], to, stride);
}
template <int kC, int kA, int kB>
inline void add_product() {
  Tile(&tile)[8] = tiles_of_thread().tile;
  add_product(tile[kC], tile[kA], tile[kB]);
}

}  // namespace hyla::cpu::amx
#endif
