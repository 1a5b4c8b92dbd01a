// expect: KV operand: .*const dtype\* block_paged_ptr
// lines: 1
#include "complete.h"

struct Operand : Complete {
  template <int tile_size>
  float* block_paged_ptr(std::uint32_t, std::uint32_t token, std::uint32_t,
                         std::uint32_t head_dim = 0) const {
    return const_cast<float*>(data) + token * 16 + head_dim;
  }
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
