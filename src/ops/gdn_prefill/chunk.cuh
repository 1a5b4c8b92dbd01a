// What belongs to a chunk of 64 tokens of one head: tiles of its data, factors made of its gates,
// and the parts of its inverse.
#pragma once

#include <cuda_fp16.h>

namespace hyla::gdn {

inline constexpr int kChunk = 64;  // tokens

inline constexpr int kTile = 64 * 64;  // elements: 64 rows of 128 bytes, swizzled
inline constexpr int kTileBytes = kTile * 2;

// Columns 0-63 of K and of Q, columns 64-127 of K and of Q.
template <class Io>
using KeyTiles = Io[4][kTile];

// A chunk is mild when it decays by at most so much. Then T' and P are made without decays inside
// (chunk_gates.cuh), which is exact algebra but needs the range of bfloat16.
inline constexpr float kMildLog2 = -12.0f;

// What the state warpgroups multiply by; g is the running sum of log2(alpha) in the chunk, a and b
// are the inverse lengths of k and q (1 without the L2 norm).
struct Factors {
  float entry[64];  // 2^g a: decay from the start of the chunk
  float query[64];  // 2^g b scale
  float exit[64];   // 2^(g_last - g): decay to the end of the chunk; not there when mild
  float decay[4];   // [0]: 2^g_last; [1]: 1 when mild, else 0
};

// What an auxiliary warpgroup multiplies by. Not mild: inside a diagonal block of 16 tokens decays
// are exponentials of differences; between blocks they are a row factor, from the last token r of
// the block before the row's, times a column factor, to r.
struct MaskFactors {
  float key[64];    // a; only where lengths differ too much
  float row_p[64];  // scale b; mild: times 2^(g - g_last)
  float
      column_t[64];   // beta a; mild: times 2^(g_last - g); where lengths differ too much without a
  float block_l[64];  // beta 2^(g - g_r)
  float block_p[64];  // scale b 2^(g - g_r)
  float column[96];   // 2^(g_r - g), of block row 1, 2, 3: from column_start on
};

// Where the column factors of block row 1, 2, 3 start.
__host__ __device__ constexpr int column_start(int block_row) {
  return 8 * block_row * (block_row - 1);
}

// L off the diagonal, diagonal blocks of L, inverses of the diagonal blocks. Rows of 24 halves, so
// that eight rows lie in different banks.
inline constexpr int kBlockPitch = 24;
inline constexpr int kBlockBytes = 16 * kBlockPitch * 2;
struct InverseScratch {
  __half lower[6][16 * kBlockPitch];  // block (I, J) at I (I - 1) / 2 + J
  float diagonal[4][16 * 16];
  __half inverse[4][16 * kBlockPitch];
};

}  // namespace hyla::gdn
