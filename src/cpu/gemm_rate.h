// What the tiles of cpu/gemm.h, or those of AMX, reach on operands in a near cache: the yardstick of
// kernels that are matrix products.
#pragma once

#include "cpu/target.h"

namespace hyla::cpu {

struct GemmRateKernels {
  // `rounds` products of [64, 128] by [128, 128] into [64, 128]. `memory`: kGemmRateFloats.
  void (*singles)(int rounds, float* memory);
  void (*pairs)(int rounds, float* memory);  // of bfloat16; null where the target has none
  void (*amx)(int rounds, float* memory);    // of bfloat16, for a machine that has it
};
const GemmRateKernels& gemm_rate_kernels(Target target);

inline constexpr int kGemmRateFloats = 64 * 128 + 128 * 128 + 64 * 128;
inline constexpr double kGemmRateFlops = 2.0 * 64 * 128 * 128;

}  // namespace hyla::cpu
