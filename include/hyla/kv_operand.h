// The KV operand: how an attention kernel sees keys or values, wherever they live. Three concepts
// and their conjunction; kv_operand_base.h provides what can be provided, kv_operands.h has the
// built-in operands.
//
// An operand is one of K and V of one layer: a small, trivially copyable value, passed by value to
// kernels.
//
//   AddressableOperand   device_type, dtype, page_size; block_paged_ptr, cache_length,
//                        max_context_length, row_idx, get_type_name. Enough for the reference and
//                        for kernels that copy row by row
//   TmaTileableOperand   num_kv_rows, get_tma_row, create_tma_tile, create_ragged_tma_tile,
//                        create_rope_tma_tile, create_gather4_tma_tile,
//                        create_rope_gather4_tma_tile; block_paged_tile, populate, copy
//   QuantisedOperand     quantization_granularity, scale_dtype; scales_block_paged_ptr, load_scale,
//                        scales_raw_ptr, create_scale_tma_tile
//   MhaOperand           all of them
//
// Meaning of the members; b a batch row, t a token of the row, h a KV head, d a position in it:
//
//   dtype                     element type: float, bfloat16, float16, float8_e4m3 or int8_t
//   page_size                 rows that are sure to lie at one pitch, from a multiple of page_size
//                             on; 0: all of a row
//   block_paged_ptr<n>(b,t,h,d)  address of a value; n divides page_size and t; the rest of the
//                             head is contiguous from there. Null: no such page (its id is out of
//                             range); the caller must not read it
//   cache_length(b)           tokens in the cache: before this step's tokens in a paged cache, all
//                             of them elsewhere. `static constexpr bool cache_length_is_full`
//                             says which (default: page_size == 0)
//   max_context_length()      no cache_length is greater
//   row_idx(b,t)              row of the token when the memory is seen as a matrix ("virtual row");
//                             kNoRow: none
//   num_kv_rows()             rows of that matrix; 0: the memory cannot be seen as a matrix
//   get_tma_row(e)            row of an encoded index e = physical_block * page_size + offset;
//                             negative: no token. Without pages the encoded index is the row
//   quantization_enabled      are there scales? (default: false)
//   quantization_granularity  values of a head that share a scale; value = stored * scale
//   scales_block_paged_ptr(b,t,h,d)  address of the scale of a value; null without scales
//   load_scale<n>(b,t,h,d)    n scales: of d, d + granularity, ...
//   scales_raw_ptr()          first scale of this view; null without scales
//   create_*_tma_tile(context)  see kv_tile.h
//   populate<BN, base_alignment, pair_cta, is_leader>(b,t)  rows of a BN-token tile; t is
//                             a multiple of base_alignment
#ifndef HYLA_KV_OPERAND_H_
#define HYLA_KV_OPERAND_H_

#include <hyla/context.h>
#include <hyla/kv_tile.h>
#include <hyla/tensor.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>

namespace hyla::attention {

// What keys and values are stored as.
template <class T>
concept KvElement = std::same_as<T, float> || std::same_as<T, bfloat16> ||
    std::same_as<T, float16> || std::same_as<T, float8_e4m3> || std::same_as<T, std::int8_t>;

namespace members {  // one concept a member, so that a message can name what is missing

template <class T>
concept DeviceType = requires {
  typename T::device_type;
  requires std::is_trivially_copyable_v<typename T::device_type>;
};

template <class T>
concept Dtype = requires {
  typename T::dtype;
  requires KvElement<typename T::dtype>;
};

// g++ 12 has an error of its own for a data member that is not static, hence the first question.
template <class T>
concept StaticPageSize = requires {
  requires !std::is_member_pointer_v<decltype(&T::page_size)>;
};

template <class T>
concept PageSize = StaticPageSize<T> && requires {
  typename std::integral_constant<int, T::page_size>;
  requires T::page_size >= 0;
};

template <class T>
concept BlockPagedPtr = requires(const T& operand, std::uint32_t i) {
  { operand.template block_paged_ptr<1>(i, i, i) } -> std::same_as<const typename T::dtype*>;
  { operand.template block_paged_ptr<1>(i, i, i, i) } -> std::same_as<const typename T::dtype*>;
};

template <class T>
concept CacheLength = requires(const T& operand, std::int64_t i) {
  { operand.cache_length(i) } -> std::signed_integral;
};

template <class T>
concept MaxContextLength = requires(const T& operand) {
  { operand.max_context_length() } -> std::convertible_to<std::uint32_t>;
};

template <class T>
concept RowIdx = requires(const T& operand, std::uint32_t i) {
  { operand.row_idx(i, i) } -> std::same_as<std::uint32_t>;
};

template <class T>
concept TypeName = requires {
  { T::get_type_name() } -> std::convertible_to<std::string>;
};

template <class T>
concept NumKvRows = requires(const T& operand) {
  { operand.num_kv_rows() } -> std::same_as<std::int64_t>;
};

template <class T>
concept TmaRow = requires(const T& operand, std::int32_t i) {
  { operand.get_tma_row(i) } -> std::same_as<std::int32_t>;
};

inline constexpr auto kSwizzle = TensorMapSwizzle::k128B;

template <class T>
concept TmaTile = requires(const T& operand, const Context& context) {
  {
    operand.template create_tma_tile<kSwizzle, 64, 64>(context).spec
    } -> std::convertible_to<TmaTileSpec>;
};

template <class T>
concept RaggedTmaTile = requires(const T& operand, const Context& context) {
  {
    operand.template create_ragged_tma_tile<kSwizzle, 64, 64>(context).spec
    } -> std::convertible_to<TmaTileSpec>;
};

template <class T>
concept RopeTmaTile = requires(const T& operand, const Context& context) {
  {
    operand.template create_rope_tma_tile<kSwizzle, 64, 64, 512>(context).spec
    } -> std::convertible_to<TmaTileSpec>;
};

template <class T>
concept Gather4TmaTile = requires(const T& operand, const Context& context) {
  {
    operand.template create_gather4_tma_tile<64>(context).spec
    } -> std::convertible_to<TmaTileSpec>;
};

template <class T>
concept RopeGather4TmaTile = requires(const T& operand, const Context& context) {
  {
    operand.template create_rope_gather4_tma_tile<320, 512, kSwizzle>(context).spec
    } -> std::convertible_to<TmaTileSpec>;
};

template <class T>
concept BlockPagedTile = requires(const T& operand, std::uint32_t i, RowPitchLayout layout) {
  {
    *operand.template block_paged_tile<1>(i, i, i, layout, i).data
    } -> std::convertible_to<typename T::dtype>;
};

template <class T>
concept Populate = requires(const T& operand, std::uint32_t i) {
  {
    operand.template populate<64, 64>(i, i)
    } -> std::same_as<PagedRowIndices<64, T::page_size, false, true>>;
};

template <class T>
concept Copy = requires(const T& operand) {
  { operand.copy() } -> std::same_as<T>;
};

template <class T>
concept StaticGranularity = requires {
  requires !std::is_member_pointer_v<decltype(&T::quantization_granularity)>;
};

template <class T>
concept QuantizationGranularity = StaticGranularity<T> && requires {
  typename std::integral_constant<int, T::quantization_granularity>;
};

template <class T>
concept ScaleDtype = requires {
  typename T::scale_dtype;
  requires KvElement<typename T::scale_dtype>;
};

template <class T>
concept ScalesBlockPagedPtr = requires(const T& operand, std::int64_t i) {
  { operand.scales_block_paged_ptr(i, i, i) } -> std::same_as<const typename T::scale_dtype*>;
  { operand.scales_block_paged_ptr(i, i, i, i) } -> std::same_as<const typename T::scale_dtype*>;
};

template <class T>
concept LoadScale = requires(const T& operand, std::int64_t i) {
  { operand.template load_scale<1>(i, i, i, i)[0] } -> std::convertible_to<typename T::scale_dtype>;
};

template <class T>
concept ScalesRawPtr = requires(const T& operand) {
  { operand.scales_raw_ptr() } -> std::same_as<float*>;
};

template <class T>
concept ScaleTmaTile = requires(const T& operand, const Context& context) {
  { operand.template create_scale_tma_tile<64>(context).spec } -> std::convertible_to<TmaTileSpec>;
};

}  // namespace members

template <class T>
concept AddressableOperand =
    std::is_trivially_copyable_v<T> && members::DeviceType<T> && members::Dtype<T> &&
    members::PageSize<T> && members::BlockPagedPtr<T> && members::CacheLength<T> &&
    members::MaxContextLength<T> && members::RowIdx<T> && members::TypeName<T>;

template <class T>
concept TmaTileableOperand = members::NumKvRows<T> && members::TmaRow<T> && members::TmaTile<T> &&
    members::RaggedTmaTile<T> && members::RopeTmaTile<T> && members::Gather4TmaTile<T> &&
    members::RopeGather4TmaTile<T> && members::BlockPagedTile<T> && members::Populate<T> &&
    members::Copy<T>;

template <class T>
concept QuantisedOperand = members::QuantizationGranularity<T> && members::ScaleDtype<T> &&
    members::ScalesBlockPagedPtr<T> && members::LoadScale<T> && members::ScalesRawPtr<T> &&
    members::ScaleTmaTile<T>;

template <class T>
concept MhaOperand = AddressableOperand<T> && TmaTileableOperand<T> && QuantisedOperand<T>;

// Members that have a default.
template <class T>
HYLA_HOST_DEVICE constexpr bool quantization_enabled() {
  if constexpr (requires { T::quantization_enabled; }) {
    return T::quantization_enabled;
  } else {
    return false;
  }
}

template <class T>
HYLA_HOST_DEVICE constexpr bool cache_length_is_full() {
  if constexpr (requires { T::cache_length_is_full; }) {
    return T::cache_length_is_full;
  } else {
    return T::page_size == 0;
  }
}

}  // namespace hyla::attention

#endif  // HYLA_KV_OPERAND_H_
