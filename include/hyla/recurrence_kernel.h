// The gated delta recurrence under the name and with the parameter list of its document:
// packed q | k | v rows behind a causal convolution, linear decay and probability beta per token,
// a slot pool updated in place, L2 norm of q and k (eps 1e-6), scale 1/sqrt(KEY_HEAD_DIM).
// `gdn::recurrence` is the same operation with this library's own options.
//
// Two overloads have the document's name. The one here takes a context after the document's
// arguments: it checks them and runs the library's own kernels on the context's device and stream.
// Where nvcc compiles, the document's kernel itself is there too, with exactly its arguments, to be
// launched by the caller (recurrence_kernel_device.h; examples/recurrence_kernel.cu launches both).
//
// Letters: nk key heads, nv value heads, KD = KEY_HEAD_DIM, VD = VALUE_HEAD_DIM.
#ifndef HYLA_RECURRENCE_KERNEL_H_
#define HYLA_RECURRENCE_KERNEL_H_

#include <hyla/context.h>
#include <hyla/export.h>
#include <hyla/host_device.h>
#include <hyla/tensor.h>

#include <array>
#include <cstdint>

namespace hyla::gdn {

namespace detail {

template <DType dtype>
struct ElementOf;
template <>
struct ElementOf<DType::kFloat32> {
  using type = float;
};
template <>
struct ElementOf<DType::kBFloat16> {
  using type = bfloat16;
};
template <>
struct ElementOf<DType::kFloat16> {
  using type = float16;
};
template <>
struct ElementOf<DType::kUInt32> {
  using type = std::uint32_t;
};

}  // namespace detail

// Memory and its shape; owns nothing. Where the elements lie is said by the stride arguments of the
// function that takes it, row-major where it has none.
template <DType dtype, int rank>
struct TileTensor {
  using Element = typename detail::ElementOf<dtype>::type;
  Element* data = nullptr;
  std::int64_t shape[rank] = {};  // a plain array, which device code may index
};

namespace detail {

// The arguments after the templates are gone.
struct RecurrenceArguments {
  std::int64_t key_head_dim, value_head_dim;
  std::int64_t total_threads, batch_size, total_seq_len;
  std::int64_t num_value_heads, num_key_heads, key_dim, value_dim, conv_dim;
  TensorView recurrence_output, recurrent_state, slot_idx, qkv_conv_output;
  TensorView decay_per_token, beta_per_token, input_row_offsets;
};

HYLA_API void gated_delta_recurrence_fwd(const RecurrenceArguments& arguments,
                                         const Context& context);

template <DType dtype, int rank>
TensorView strided(const TileTensor<dtype, rank>& tensor,
                   const std::array<std::uint32_t, rank>& strides, Device device) {
  TensorView view;
  view.data = tensor.data;
  view.dtype = dtype;
  view.device = device;
  view.rank = rank;
  for (int d = 0; d < rank; ++d) {
    view.shape[d] = tensor.shape[d];
    view.strides[d] = strides[static_cast<std::size_t>(d)];
  }
  return view;
}

template <DType work_dtype, DType state_dtype, int KEY_HEAD_DIM, int VALUE_HEAD_DIM,
          int RECURRENCE_BLOCK_SIZE>
HYLA_HOST_DEVICE constexpr void check_recurrence_template() {
  static_assert(work_dtype != DType::kUInt32 && state_dtype != DType::kUInt32,
                "work_dtype and state_dtype: float32, bfloat16 or float16");
  static_assert(KEY_HEAD_DIM % 8 == 0 && KEY_HEAD_DIM >= 8 && KEY_HEAD_DIM <= 256,
                "KEY_HEAD_DIM: a multiple of 8 up to 256");
  static_assert(VALUE_HEAD_DIM % 8 == 0 && VALUE_HEAD_DIM >= 8 && VALUE_HEAD_DIM <= 256,
                "VALUE_HEAD_DIM: a multiple of 8 up to 256");
  static_assert(RECURRENCE_BLOCK_SIZE >= 1 && RECURRENCE_BLOCK_SIZE <= 1024,
                "RECURRENCE_BLOCK_SIZE: 1 to 1024 threads");
}

}  // namespace detail

// One thread of the document's grid is one (batch item, value head, value element), so
// total_threads = batch_size * num_value_heads * VALUE_HEAD_DIM; key_dim = nk*KD, value_dim = nv*VD
// and conv_dim = 2*key_dim + value_dim. All of them are checked, as are the shapes; a contradiction
// is an InvalidArgument that carries the name used here. Strides count elements and are 32-bit, as
// in the document; offsets are computed in 64 bits.
//
// The call runs on the device of `context`, where all tensors live.
template <DType work_dtype, DType state_dtype, int KEY_HEAD_DIM, int VALUE_HEAD_DIM,
          int RECURRENCE_BLOCK_SIZE>
void gated_delta_recurrence_fwd_gpu(
    std::int64_t total_threads, std::int64_t batch_size, std::int64_t total_seq_len,
    std::int64_t num_value_heads, std::int64_t num_key_heads, std::int64_t key_dim,
    std::int64_t value_dim, std::int64_t conv_dim,
    TileTensor<work_dtype, 2> recurrence_output,      // [total_seq_len, value_dim]
    TileTensor<state_dtype, 4> recurrent_state,       // [max_slots, nv, KD, VD]
    TileTensor<DType::kUInt32, 1> slot_idx,           // [batch_size]
    TileTensor<work_dtype, 2> qkv_conv_output,        // [total_seq_len, conv_dim]
    TileTensor<work_dtype, 2> decay_per_token,        // [total_seq_len, nv]
    TileTensor<work_dtype, 2> beta_per_token,         // [total_seq_len, nv]
    TileTensor<DType::kUInt32, 1> input_row_offsets,  // [batch_size + 1]
    std::uint32_t qkv_conv_output_seqlen_stride, std::uint32_t qkv_conv_output_channel_stride,
    std::uint32_t per_token_seqlen_stride, std::uint32_t per_token_head_stride,
    std::uint32_t recurrent_state_slot_stride, std::uint32_t recurrent_state_value_head_stride,
    std::uint32_t recurrent_state_key_dim_stride, std::uint32_t recurrent_state_value_dim_stride,
    std::uint32_t recurrence_output_seqlen_stride, std::uint32_t recurrence_output_valuedim_stride,
    const Context& context) {
  detail::check_recurrence_template<work_dtype, state_dtype, KEY_HEAD_DIM, VALUE_HEAD_DIM,
                                    RECURRENCE_BLOCK_SIZE>();
  const Device device = context.device;
  detail::gated_delta_recurrence_fwd(
      {
          .key_head_dim = KEY_HEAD_DIM,
          .value_head_dim = VALUE_HEAD_DIM,
          .total_threads = total_threads,
          .batch_size = batch_size,
          .total_seq_len = total_seq_len,
          .num_value_heads = num_value_heads,
          .num_key_heads = num_key_heads,
          .key_dim = key_dim,
          .value_dim = value_dim,
          .conv_dim = conv_dim,
          .recurrence_output = detail::strided(
              recurrence_output,
              {recurrence_output_seqlen_stride, recurrence_output_valuedim_stride}, device),
          .recurrent_state =
              detail::strided(recurrent_state,
                              {recurrent_state_slot_stride, recurrent_state_value_head_stride,
                               recurrent_state_key_dim_stride, recurrent_state_value_dim_stride},
                              device),
          .slot_idx = detail::strided(slot_idx, {1}, device),
          .qkv_conv_output = detail::strided(
              qkv_conv_output, {qkv_conv_output_seqlen_stride, qkv_conv_output_channel_stride},
              device),
          .decay_per_token = detail::strided(
              decay_per_token, {per_token_seqlen_stride, per_token_head_stride}, device),
          .beta_per_token = detail::strided(
              beta_per_token, {per_token_seqlen_stride, per_token_head_stride}, device),
          .input_row_offsets = detail::strided(input_row_offsets, {1}, device),
      },
      context);
}

}  // namespace hyla::gdn

#ifdef __CUDACC__
#include <hyla/recurrence_kernel_device.h>
#endif

#endif  // HYLA_RECURRENCE_KERNEL_H_
