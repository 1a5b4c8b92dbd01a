// The built-in KV operands: dense [N, S, H, D], ragged [total, H, D], paged [P, S, H, D]. Each
// comes as it is or, with a `Scale` type, quantised. Heads before tokens, fused pools and layers of
// one block pool are strides: pass the swapped or selected view (TensorView::swap, select) as [..,
// S, H, D].
#ifndef HYLA_KV_OPERANDS_H_
#define HYLA_KV_OPERANDS_H_

#include <hyla/index_span.h>
#include <hyla/kv_operand_base.h>

#include <cstdint>
#include <string>
#include <type_traits>

namespace hyla::attention {

// Page size and granularity that are only known when the program runs. To a kernel such an operand
// says the weakest thing that is true: pages of one row, and a scale for each value.
inline constexpr int kRunTimePageSize = -1;
inline constexpr int kRunTimeGranularity = 1;

// What the built-in operands share: values at outer * outer_stride + token * token_stride + head *
// head_stride, where `outer` is a batch row or a page. Derived says where a token lies: `Place
// place(batch, token) const`.
template <class Derived, class T, class Scale, int Granularity>
struct StridedOperand : KvOperandBase<Derived, T>, StridedTmaTiles<Derived, T> {
  using scale_dtype = std::conditional_t<std::is_void_v<Scale>, float, Scale>;
  static constexpr bool quantization_enabled = !std::is_void_v<Scale>;
  static constexpr int quantization_granularity = quantization_enabled ? Granularity : 0;
  static_assert(!quantization_enabled || Granularity >= 1, "a scale covers at least one value");
  static_assert(std::is_same_v<scale_dtype, float>, "scales are float32");

  const T* values = nullptr;
  std::int64_t outers = 0, tokens = 0, heads = 0, head_dim = 0;
  std::int64_t outer_stride = 0, token_stride = 0, head_stride = 0;  // in elements
  std::int64_t outer_rows = 0;  // virtual rows from one outer to the next; 0: not a whole number
  std::uint32_t max_length = 0;
  float* scales = nullptr;
  std::int64_t scale_outer_stride = 0, scale_token_stride = 0, scale_head_stride = 0;
  std::int64_t scale_stride = 0, scales_per_head = 0, values_per_scale = 1;

  struct Place {
    std::int64_t outer = 0, token = 0;  // outer < 0: nowhere
  };

  HYLA_HOST_DEVICE const float* scales_block_paged_ptr(std::int64_t batch_idx,
                                                       std::int64_t start_tok_idx,
                                                       std::int64_t head_idx,
                                                       std::int64_t head_dim_idx = 0) const {
    if constexpr (!quantization_enabled) return nullptr;
    const Place at = place(batch_idx, start_tok_idx);
    if (at.outer < 0) return nullptr;
    return scales + at.outer * scale_outer_stride + at.token * scale_token_stride +
           head_idx * scale_head_stride + head_dim_idx / values_per_scale * scale_stride;
  }

  template <int width>
  HYLA_HOST_DEVICE ShortVector<float, width> load_scale(std::int64_t batch_idx,
                                                        std::int64_t start_tok_idx,
                                                        std::int64_t head_idx,
                                                        std::int64_t head_dim_idx) const {
    ShortVector<float, width> result;
    for (int i = 0; i < width; ++i) {
      if constexpr (quantization_enabled) {
        const float* scale = scales_block_paged_ptr(batch_idx, start_tok_idx, head_idx,
                                                    head_dim_idx + i * quantization_granularity);
        result.values[i] = scale == nullptr ? 0.0f : *scale;
      } else {
        result.values[i] = 1.0f;
      }
    }
    return result;
  }

  HYLA_HOST_DEVICE float* scales_raw_ptr() const { return scales; }
  HYLA_HOST_DEVICE std::uint32_t max_context_length() const { return max_length; }

  HYLA_HOST_DEVICE std::int64_t num_kv_rows() const {
    return outers == 0 || outer_rows == 0 ? 0 : (outers - 1) * outer_rows + tokens;
  }

  HYLA_HOST_DEVICE std::uint32_t row_idx(std::uint32_t batch_idx,
                                         std::uint32_t start_tok_idx) const {
    const Place at = place(batch_idx, start_tok_idx);
    if (at.outer < 0 || outer_rows == 0) return kNoRow;
    const std::int64_t row = at.outer * outer_rows + at.token;
    return row < std::int64_t{kNoRow} ? static_cast<std::uint32_t>(row) : kNoRow;
  }

  RowMatrix row_matrix() const {
    RowMatrix m{values, num_kv_rows(), heads, head_dim, token_stride, head_stride, scales};
    m.scale_row_stride = scale_token_stride;
    m.scale_head_stride = scale_head_stride;
    m.scales_per_head = scales_per_head;
    m.scale_rows = outers == 0 || scale_token_stride == 0
                       ? tokens
                       : (outers - 1) * (scale_outer_stride / scale_token_stride) + tokens;
    return m;
  }

 protected:
  HYLA_HOST_DEVICE const T* value_ptr(const Place& at, std::uint32_t head_idx,
                                      std::uint32_t head_dim_idx) const {
    if (at.outer < 0) return nullptr;
    return values + at.outer * outer_stride + at.token * token_stride +
           std::int64_t{head_idx} * head_stride + std::int64_t{head_dim_idx};
  }

  // view [outers, tokens, H, D]
  void set_values(const char* argument, const TensorView& view) {
    if (view.rank != 4) throw InvalidArgument(argument, "4 dimensions", describe(view));
    if (view.dtype != dtype_of<T>) {
      throw InvalidArgument(argument, std::string("dtype ") + name_of(dtype_of<T>),
                            name_of(view.dtype));
    }
    if (view.shape[3] > 1 && view.strides[3] != 1) {
      throw InvalidArgument(argument, "a contiguous last dimension", describe(view));
    }
    values = static_cast<const T*>(view.data);
    outers = view.shape[0];
    tokens = view.shape[1];
    heads = view.shape[2];
    head_dim = view.shape[3];
    outer_stride = view.strides[0];
    token_stride = view.strides[1];
    head_stride = view.strides[2];
    // The stride of a single token says nothing where it does not fit the pages.
    if (tokens == 1 && (token_stride <= 0 || outer_stride % token_stride != 0)) {
      token_stride = outer_stride;
    }
    if (outers <= 1) {
      outer_rows = tokens > 0 ? tokens : 1;
    } else if (token_stride > 0 && outer_stride % token_stride == 0) {
      outer_rows = outer_stride / token_stride;
    }
  }

  // view [outers, tokens, H, D / granularity]
  void set_scales(const char* argument, const TensorView& view) {
    if constexpr (!quantization_enabled) {
      if (view.present()) {
        throw InvalidArgument(argument, "none for an unquantised operand", describe(view));
      }
    } else {
      if (!view.present() || view.rank != 4 || view.dtype != DType::kFloat32 ||
          view.shape[0] != outers || view.shape[1] != tokens || view.shape[2] != heads ||
          view.shape[3] < 1 || head_dim % view.shape[3] != 0) {
        throw InvalidArgument(argument,
                              "float32, the values' shape with a divisor of the head dim last",
                              view.present() ? describe(view) : "none");
      }
      scales = static_cast<float*>(view.data);
      scales_per_head = view.shape[3];
      values_per_scale = head_dim / scales_per_head;
      if (Granularity != kRunTimeGranularity && values_per_scale != Granularity) {
        throw InvalidArgument(argument,
                              "a scale for every " + std::to_string(Granularity) + " values",
                              "one for every " + std::to_string(values_per_scale));
      }
      scale_outer_stride = view.strides[0];
      scale_token_stride = tokens == 1 ? view.strides[0] : view.strides[1];
      scale_head_stride = view.strides[2];
      scale_stride = view.strides[3];
    }
  }

  void set_max_length(std::int64_t length) {
    max_length = static_cast<std::uint32_t>(length < 0xffffffff ? length : 0xffffffff);
  }

  static std::string name(const char* kind, const std::string& more = "") {
    return std::string(kind) + "<" + name_of(dtype_of<T>) + more +
           (quantization_enabled ? ", scaled>" : ">");
  }

 private:
  HYLA_HOST_DEVICE Place place(std::int64_t batch, std::int64_t token) const {
    return static_cast<const Derived&>(*this).place(batch, token);
  }
};

// cache_length: the whole row, or lengths[b] where lengths are given.
template <class T, class Scale = void, int Granularity = kRunTimeGranularity>
struct DenseOperand : StridedOperand<DenseOperand<T, Scale, Granularity>, T, Scale, Granularity> {
  using Base = StridedOperand<DenseOperand, T, Scale, Granularity>;
  using Place = typename Base::Place;
  static constexpr bool cache_length_is_full = true;
  IndexSpan lengths;

  // values [N, S, H, D]; lengths [N] or absent; scales [N, S, H, D / granularity]
  static DenseOperand from(const TensorView& values, const TensorView& lengths = {},
                           const TensorView& scales = {}) {
    DenseOperand operand;
    operand.set_values("values", values);
    operand.set_scales("scales", scales);
    operand.lengths = IndexSpan(lengths);
    operand.set_max_length(operand.tokens);
    return operand;
  }
  static std::string get_type_name() { return Base::name("DenseOperand"); }

  HYLA_HOST_DEVICE Place place(std::int64_t batch, std::int64_t token) const {
    return {batch, token};
  }
  template <int tile_size>
  HYLA_HOST_DEVICE const T* block_paged_ptr(std::uint32_t batch_idx, std::uint32_t start_tok_idx,
                                            std::uint32_t head_idx,
                                            std::uint32_t head_dim_idx = 0) const {
    return this->value_ptr(place(batch_idx, start_tok_idx), head_idx, head_dim_idx);
  }
  HYLA_HOST_DEVICE std::int64_t cache_length(std::int64_t batch_idx) const {
    return lengths.present() ? lengths.at(batch_idx) : this->tokens;
  }
};

// cache_length: offsets[b + 1] - offsets[b], or lengths[b] where lengths are given.
template <class T, class Scale = void, int Granularity = kRunTimeGranularity>
struct RaggedOperand : StridedOperand<RaggedOperand<T, Scale, Granularity>, T, Scale, Granularity> {
  using Base = StridedOperand<RaggedOperand, T, Scale, Granularity>;
  using Place = typename Base::Place;
  static constexpr bool cache_length_is_full = true;
  IndexSpan offsets, lengths;

  // values [total, H, D]; offsets [N + 1]; lengths [N] or absent; scales [total, H, D /
  // granularity]
  static RaggedOperand from(const TensorView& values, const TensorView& offsets,
                            const TensorView& lengths = {}, const TensorView& scales = {}) {
    RaggedOperand operand;
    operand.set_values("values", one_outer(values));
    operand.set_scales("scales", one_outer(scales));
    operand.offsets = IndexSpan(offsets);
    operand.lengths = IndexSpan(lengths);
    operand.set_max_length(operand.tokens);
    return operand;
  }
  static std::string get_type_name() { return Base::name("RaggedOperand"); }

  HYLA_HOST_DEVICE Place place(std::int64_t batch, std::int64_t token) const {
    return {0, offsets.at(batch) + token};
  }
  template <int tile_size>
  HYLA_HOST_DEVICE const T* block_paged_ptr(std::uint32_t batch_idx, std::uint32_t start_tok_idx,
                                            std::uint32_t head_idx,
                                            std::uint32_t head_dim_idx = 0) const {
    return this->value_ptr(place(batch_idx, start_tok_idx), head_idx, head_dim_idx);
  }
  HYLA_HOST_DEVICE std::int64_t cache_length(std::int64_t batch_idx) const {
    if (lengths.present()) return lengths.at(batch_idx);
    return offsets.at(batch_idx + 1) - offsets.at(batch_idx);
  }

 private:
  static TensorView one_outer(const TensorView& view) {
    if (!view.present() || view.rank != 3) return view;  // refused where it is looked at
    TensorView result = view;
    result.rank = 4;
    for (int d = 3; d > 0; --d) {
      result.shape[d] = view.shape[d - 1];
      result.strides[d] = view.strides[d - 1];
    }
    result.shape[0] = 1;
    result.strides[0] = view.shape[0] * view.strides[0];
    return result;
  }
};

// Pages [P, S, H, D] of one layer, found through a page table [N, columns]. An id outside [0, P)
// and a token past the table are nowhere: no address, no row.
template <class T, int PageSize = kRunTimePageSize, class Scale = void,
          int Granularity = kRunTimeGranularity>
struct PagedOperand
    : StridedOperand<PagedOperand<T, PageSize, Scale, Granularity>, T, Scale, Granularity> {
  static_assert(PageSize == kRunTimePageSize || PageSize >= 1, "a page holds at least one token");
  using Base = StridedOperand<PagedOperand, T, Scale, Granularity>;
  using Place = typename Base::Place;
  static constexpr int page_size = PageSize == kRunTimePageSize ? 1 : PageSize;
  static constexpr bool cache_length_is_full = false;
  IndexSpan page_table;
  IndexSpan lengths;      // [N] tokens in the cache
  IndexSpan new_offsets;  // [N + 1], or
  IndexSpan new_lengths;  // [N]: how many of them are this step's; neither: none are

  // pages [P, S, H, D]; page_table [N, columns]; cache_lengths [N], without this step's tokens;
  // scales as pages
  static PagedOperand from(const TensorView& pages, const TensorView& page_table,
                           const TensorView& cache_lengths, const TensorView& scales = {}) {
    PagedOperand operand;
    operand.set_values("pages", pages);
    operand.set_scales("scales", scales);
    if (operand.tokens < 1 || (PageSize != kRunTimePageSize && operand.tokens != PageSize)) {
      throw InvalidArgument("pages", "pages of " + std::to_string(page_size) + " tokens",
                            std::to_string(operand.tokens));
    }
    operand.page_table = IndexSpan(page_table);
    operand.lengths = IndexSpan(cache_lengths);
    operand.set_max_length(operand.page_table.columns * operand.tokens);
    return operand;
  }
  static std::string get_type_name() {
    return Base::name("PagedOperand",
                      PageSize == kRunTimePageSize ? "" : ", " + std::to_string(PageSize));
  }

  HYLA_HOST_DEVICE Place place(std::int64_t batch, std::int64_t token) const {
    const std::int64_t size = page_tokens(), column = token / size;
    if (column >= page_table.columns) return {-1, 0};
    const std::int64_t page = page_table.at(batch, column);
    if (page < 0 || page >= this->outers) return {-1, 0};
    return {page, token - column * size};
  }
  template <int tile_size>
  HYLA_HOST_DEVICE const T* block_paged_ptr(std::uint32_t batch_idx, std::uint32_t start_tok_idx,
                                            std::uint32_t head_idx,
                                            std::uint32_t head_dim_idx = 0) const {
    static_assert(tile_size >= 1 && page_size % tile_size == 0,
                  "block_paged_ptr: a tile lies inside one page, so tile_size divides page_size");
    return this->value_ptr(place(batch_idx, start_tok_idx), head_idx, head_dim_idx);
  }
  HYLA_HOST_DEVICE std::int64_t cache_length(std::int64_t batch_idx) const {
    const std::int64_t all = lengths.at(batch_idx);
    if (new_offsets.present()) {
      return all - (new_offsets.at(batch_idx + 1) - new_offsets.at(batch_idx));
    }
    return new_lengths.present() ? all - new_lengths.at(batch_idx) : all;
  }
  HYLA_HOST_DEVICE std::int32_t get_tma_row(std::int32_t encoded_index) const {
    if (encoded_index < 0) return encoded_index;
    const std::int64_t size = page_tokens(), block = encoded_index / size;
    if (block >= this->outers || this->outer_rows == 0) return -1;
    const std::int64_t row = block * this->outer_rows + (encoded_index - block * size);
    return row <= 0x7fffffff ? static_cast<std::int32_t>(row) : -1;
  }

 private:
  // A constant where it is one, so that the divisions become shifts.
  HYLA_HOST_DEVICE std::int64_t page_tokens() const {
    if constexpr (PageSize == kRunTimePageSize) {
      return this->tokens;
    } else {
      return PageSize;
    }
  }
};

}  // namespace hyla::attention

#endif  // HYLA_KV_OPERANDS_H_
