#include "ops/attention_decode/launch_decode.cuh"

namespace hyla::attention::decode {

void launch_int8(const Arguments& arguments, const Plan& plan, const Context& context) {
  launch_stored<Int8>(arguments, plan, context);
}

}  // namespace hyla::attention::decode
