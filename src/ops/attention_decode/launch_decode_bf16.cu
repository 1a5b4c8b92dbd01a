#include "ops/attention_decode/launch_decode.cuh"

namespace hyla::attention::decode {

void launch_bf16(const Arguments& arguments, const Plan& plan, const Context& context) {
  launch_stored<__nv_bfloat16>(arguments, plan, context);
}

}  // namespace hyla::attention::decode
