// expect: attention kernel: a scale is that of a multiple of eight values
// lines: 1
#include <hyla/attention_decode.h>
#include <hyla/kv_operands.h>

void call(const hyla::attention::RunParams& params) {
  using Operand = hyla::attention::DenseOperand<hyla::float8_e4m3, float>;
  hyla::attention::cuda::decode<64>(params, Operand{}, Operand{}, 1, {}, {});
}
