// Says what is wrong with a type that is not a KV operand, in one line of compiler output. A kernel
// starts with
//
//     if constexpr (is_addressable_operand<K>()) { ... }
//
// so that the first wrong member is named and nothing after it is instantiated.
#ifndef HYLA_KV_OPERAND_CHECK_H_
#define HYLA_KV_OPERAND_CHECK_H_

#include <hyla/kv_operand.h>

#include <type_traits>

namespace hyla::attention {
namespace detail {
template <class>
inline constexpr bool kNever = false;
}

template <class T>
HYLA_HOST_DEVICE constexpr bool is_addressable_operand() {
  using detail::kNever;
  if constexpr (!std::is_trivially_copyable_v<T>) {
    static_assert(kNever<T>,
                  "KV operand: must be trivially copyable, it is passed to kernels by value");
  } else if constexpr (!members::DeviceType<T>) {
    static_assert(kNever<T>,
                  "KV operand: `using device_type = ...` (trivially copyable) is missing");
  } else if constexpr (!members::Dtype<T>) {
    static_assert(kNever<T>,
                  "KV operand: `using dtype = ...` (float, bfloat16, float16, float8_e4m3 or "
                  "int8_t) is missing");
  } else if constexpr (!members::PageSize<T>) {
    static_assert(kNever<T>, "KV operand: `static constexpr int page_size` (>= 0) is missing");
  } else if constexpr (!members::BlockPagedPtr<T>) {
    static_assert(
        kNever<T>,
        "KV operand: `template <int tile_size> const dtype* block_paged_ptr(uint32_t batch, "
        "uint32_t start_tok, uint32_t head, uint32_t head_dim = 0) const` is missing");
  } else if constexpr (!members::CacheLength<T>) {
    static_assert(kNever<T>,
                  "KV operand: `int64_t cache_length(int64_t batch) const` (signed) is missing");
  } else if constexpr (!members::MaxContextLength<T>) {
    static_assert(kNever<T>, "KV operand: `uint32_t max_context_length() const` is missing");
  } else if constexpr (!members::RowIdx<T>) {
    static_assert(
        kNever<T>,
        "KV operand: `uint32_t row_idx(uint32_t batch, uint32_t start_tok) const` is missing");
  } else if constexpr (!members::TypeName<T>) {
    static_assert(kNever<T>, "KV operand: `static std::string get_type_name()` is missing");
  }
  return AddressableOperand<T>;
}

template <class T>
HYLA_HOST_DEVICE constexpr bool is_tma_tileable_operand() {
  using detail::kNever;
  if constexpr (!members::NumKvRows<T>) {
    static_assert(kNever<T>, "KV operand: `int64_t num_kv_rows() const` is missing");
  } else if constexpr (!members::TmaRow<T>) {
    static_assert(kNever<T>,
                  "KV operand: `int32_t get_tma_row(int32_t encoded_index) const` is missing");
  } else if constexpr (!members::TmaTile<T>) {
    static_assert(kNever<T>,
                  "KV operand: `template <TensorMapSwizzle, int BN, int depth, int BK> auto "
                  "create_tma_tile(const Context&) const` is missing (StridedTmaTiles has it)");
  } else if constexpr (!members::RaggedTmaTile<T>) {
    static_assert(
        kNever<T>,
        "KV operand: `template <TensorMapSwizzle, int BN, int depth, int BK> auto "
        "create_ragged_tma_tile(const Context&) const` is missing (StridedTmaTiles has it)");
  } else if constexpr (!members::RopeTmaTile<T>) {
    static_assert(
        kNever<T>,
        "KV operand: `template <TensorMapSwizzle, int BN, int BK, int padded_depth> auto "
        "create_rope_tma_tile(const Context&) const` is missing (StridedTmaTiles has it)");
  } else if constexpr (!members::Gather4TmaTile<T>) {
    static_assert(kNever<T>,
                  "KV operand: `template <int tile_width, ...> auto create_gather4_tma_tile(const "
                  "Context&) const` is missing (StridedTmaTiles has it)");
  } else if constexpr (!members::RopeGather4TmaTile<T>) {
    static_assert(
        kNever<T>,
        "KV operand: `template <int tile_width, int padded_depth, ...> auto "
        "create_rope_gather4_tma_tile(const Context&) const` is missing (StridedTmaTiles has it)");
  } else if constexpr (!members::BlockPagedTile<T>) {
    static_assert(kNever<T>,
                  "KV operand: `template <int tile_size, class Layout> auto block_paged_tile(...) "
                  "const` is missing (KvOperandBase has it)");
  } else if constexpr (!members::Populate<T>) {
    static_assert(
        kNever<T>,
        "KV operand: `template <int BN, int base_alignment, bool pair_cta, bool is_leader> auto "
        "populate(uint32_t batch, uint32_t base_kv_row) const` is missing (KvOperandBase has it)");
  } else if constexpr (!members::Copy<T>) {
    static_assert(kNever<T>, "KV operand: `copy() const` is missing (KvOperandBase has it)");
  }
  return TmaTileableOperand<T>;
}

template <class T>
HYLA_HOST_DEVICE constexpr bool is_quantised_operand() {
  using detail::kNever;
  if constexpr (!members::QuantizationGranularity<T>) {
    static_assert(kNever<T>,
                  "KV operand: `static constexpr int quantization_granularity` is missing");
  } else if constexpr (!members::ScaleDtype<T>) {
    static_assert(kNever<T>, "KV operand: `using scale_dtype = ...` is missing");
  } else if constexpr (!members::ScalesBlockPagedPtr<T>) {
    static_assert(kNever<T>,
                  "KV operand: `const scale_dtype* scales_block_paged_ptr(int64_t batch, int64_t "
                  "start_tok, int64_t head, int64_t head_dim = 0) const` is missing");
  } else if constexpr (!members::LoadScale<T>) {
    static_assert(kNever<T>,
                  "KV operand: `template <int width> auto load_scale(int64_t batch, int64_t "
                  "start_tok, int64_t head, int64_t head_dim) const` is missing");
  } else if constexpr (!members::ScalesRawPtr<T>) {
    static_assert(kNever<T>, "KV operand: `float* scales_raw_ptr() const` is missing");
  } else if constexpr (!members::ScaleTmaTile<T>) {
    static_assert(kNever<T>,
                  "KV operand: `template <int BMN> auto create_scale_tma_tile(const Context&) "
                  "const` is missing (StridedTmaTiles has it)");
  }
  return QuantisedOperand<T>;
}

template <class T>
HYLA_HOST_DEVICE constexpr bool is_mha_operand() {
  if constexpr (!is_addressable_operand<T>()) {
    return false;
  } else if constexpr (!is_tma_tileable_operand<T>()) {
    return false;
  } else {
    return is_quantised_operand<T>();
  }
}

}  // namespace hyla::attention

#endif  // HYLA_KV_OPERAND_CHECK_H_
