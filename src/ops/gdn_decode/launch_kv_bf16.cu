#include "ops/gdn_decode/select.cuh"

namespace hyla::gdn {

DecodeLaunch select_kv_bf16(const DecodeChoice& choice) {
  return select_decode<KvKernels<__nv_bfloat16>>(choice);
}

}  // namespace hyla::gdn
