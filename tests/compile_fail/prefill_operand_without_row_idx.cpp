// expect: KV operand: .*row_idx.* is missing
// lines: 1
#include <hyla/attention_prefill.h>

#include <cstdint>
#include <string>

#include <hyla/kv_operands.h>

struct Operand {
  using device_type = Operand;
  using dtype = hyla::bfloat16;
  static constexpr int page_size = 0;
  const hyla::bfloat16* data = nullptr;
  template <int tile_size>
  const hyla::bfloat16* block_paged_ptr(std::uint32_t, std::uint32_t token, std::uint32_t,
                                        std::uint32_t head_dim = 0) const {
    return data + token * 16 + head_dim;
  }
  std::int64_t cache_length(std::int64_t) const { return 4; }
  std::uint32_t max_context_length() const { return 4; }
  static std::string get_type_name() { return "Operand"; }
};

void call(const hyla::attention::RunParams& params, const Operand& v) {
  hyla::attention::prefill<64>(params, hyla::attention::DenseOperand<hyla::bfloat16>{}, v, 1, {},
                               {});
}
