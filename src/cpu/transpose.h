// Transposed copies of matrices of 32-bit elements. Compiled for each target (see
// foreach_target.h).
#if defined(HYLA_CPU_TRANSPOSE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_TRANSPOSE_H_
#undef HYLA_CPU_TRANSPOSE_H_
#else
#define HYLA_CPU_TRANSPOSE_H_
#endif

#include "cpu/simd.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// to[j][i] = from[i][j]; `rows` and `columns` are multiples of 4.
inline void transpose(const float* from, std::int64_t from_stride, std::int64_t rows,
                      std::int64_t columns, float* to, std::int64_t to_stride) {
  alignas(64) float quads[4][kLanes];
  for (std::int64_t i = 0; i < rows; i += 4) {
    const float* line = from + i * from_stride;
    std::int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) {
      transpose4(load(line + j), load(line + from_stride + j), load(line + 2 * from_stride + j),
                 load(line + 3 * from_stride + j), quads);
      for (std::int64_t block = 0; block < kLanes; block += 4) {
        for (std::int64_t c = 0; c < 4; ++c) {
          std::memcpy(to + (j + block + c) * to_stride + i, &quads[c][block], 4 * sizeof(float));
        }
      }
    }
    for (; j < columns; ++j) {
      for (std::int64_t r = 0; r < 4; ++r) {
        std::memcpy(to + j * to_stride + i + r, line + r * from_stride + j, sizeof(float));
      }
    }
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_TRANSPOSE_H_
