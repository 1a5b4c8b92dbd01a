#include "ops/gdn_decode/select.cuh"

namespace hyla::gdn {

DecodeLaunch select_kv_f16(const DecodeChoice& choice) {
  return select_decode<KvKernels<__half>>(choice);
}

}  // namespace hyla::gdn
