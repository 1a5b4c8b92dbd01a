#include "ops/attention_decode/launch_decode.cuh"

namespace hyla::attention::decode {

void launch_e4m3(const Arguments& arguments, const Plan& plan, const Context& context) {
  launch_stored<E4m3>(arguments, plan, context);
}

}  // namespace hyla::attention::decode
