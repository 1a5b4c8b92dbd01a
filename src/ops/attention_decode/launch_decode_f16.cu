#include "ops/attention_decode/launch_decode.cuh"

namespace hyla::attention::decode {

void launch_f16(const Arguments& arguments, const Plan& plan, const Context& context) {
  launch_stored<__half>(arguments, plan, context);
}

}  // namespace hyla::attention::decode
