#include "ops/gdn_decode/launch_kv.cuh"

namespace hyla::gdn {

KvLaunch select_kv_f32(DType io, std::int64_t K, bool usual, bool small) {
  return select_kv<float>(io, K, usual, small);
}

}  // namespace hyla::gdn
