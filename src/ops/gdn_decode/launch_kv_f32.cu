#include "ops/gdn_decode/select.cuh"

namespace hyla::gdn {

DecodeLaunch select_kv_f32(const DecodeChoice& choice) {
  return select_decode<KvKernels<float>>(choice);
}

}  // namespace hyla::gdn
