#include "cpu/gemm_rate.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/gemm_rate.cpp"
#include "cpu/foreach_target.h"
#include "cpu/gemm.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

template <class Op>
void products(int rounds, float* memory) {
  constexpr std::int64_t kWidth = 128 / Op::kSummed;
  float* a = memory;
  float* b = a + 64 * 128;
  float* c = b + 128 * 128;
  for (int round = 0; round < rounds; ++round) {
    multiply<Op>({a, kWidth, 1}, 64, b, 128, kWidth, 128, c, 128);
  }
}

extern const GemmRateKernels kGemmRateKernels;
#if HYLA_TARGET_HAS_PAIRS
void amx_products(int rounds, float* memory) {
  const amx::Scope tiles;
  const amx::Matrix a{memory, 64}, b{memory + 64 * 128, 128};
  const amx::Matrix c{b.at + 128 * 128, 128};
  for (int round = 0; round < rounds; ++round) amx::multiply<false>(a, 64, b, 64, 128, c);
}

const GemmRateKernels kGemmRateKernels = {products<Singles>, products<Pairs>, amx_products};
#else
const GemmRateKernels kGemmRateKernels = {products<Singles>, nullptr, nullptr};
#endif

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const GemmRateKernels& gemm_rate_kernels(Target target) {
  return HYLA_TARGET_SELECT(kGemmRateKernels);
}
}  // namespace hyla::cpu
#endif
