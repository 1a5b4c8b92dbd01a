// expect: KV operand: .*create_rope_tma_tile.* is missing
// lines: 1
#include <hyla/attention_sparse_reference.h>
#include <hyla/kv_operand_base.h>

#include <cstdint>
#include <string>

struct Operand : hyla::attention::KvOperandBase<Operand, float>,
                 hyla::attention::StridedTmaTiles<Operand, float> {
  const float* data = nullptr;
  template <int tile_size>
  const float* block_paged_ptr(std::uint32_t, std::uint32_t token, std::uint32_t,
                               std::uint32_t head_dim = 0) const {
    return data + token * 16 + head_dim;
  }
  std::int64_t cache_length(std::int64_t) const { return 4; }
  std::uint32_t max_context_length() const { return 4; }
  std::uint32_t row_idx(std::uint32_t, std::uint32_t token) const { return token; }
  static std::string get_type_name() { return "Operand"; }
  std::int64_t num_kv_rows() const { return 4; }
  hyla::attention::RowMatrix row_matrix() const { return {data, 4, 1, 16, 16, 16}; }
  void create_rope_tma_tile() const = delete;  // hides the one it would inherit
};

void call(const hyla::attention::RunParams& params, const hyla::TensorView& lists,
          const Operand& k) {
  hyla::attention::reference::run_sparse(params, k, k, 1, lists);
}
