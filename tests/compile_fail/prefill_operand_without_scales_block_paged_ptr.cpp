// expect: KV operand: .*scales_block_paged_ptr.* is missing
// lines: 1
#include <hyla/attention_prefill.h>
#include <hyla/kv_operands.h>

using Scaled = hyla::attention::DenseOperand<hyla::float8_e4m3, float, 64>;

struct Operand : Scaled {
 private:
  using Scaled::scales_block_paged_ptr;
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::prefill<64>(params, k, v, 1, {}, {});
}
