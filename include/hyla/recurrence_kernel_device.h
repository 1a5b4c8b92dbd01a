// The device half of recurrence_kernel.h: the document's kernel itself, for programs that nvcc
// compiles and that launch it themselves. recurrence_kernel.h includes it there.
#ifndef HYLA_RECURRENCE_KERNEL_DEVICE_H_
#define HYLA_RECURRENCE_KERNEL_DEVICE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <hyla/recurrence_kernel.h>

#include <cstdint>

namespace hyla::gdn {
namespace detail {

__device__ __forceinline__ float load_element(const float* from) { return *from; }
__device__ __forceinline__ float load_element(const bfloat16* from) {
  return __uint_as_float(static_cast<std::uint32_t>(from->bits) << 16);
}
__device__ __forceinline__ float load_element(const float16* from) {
  return __half2float(__ushort_as_half(from->bits));
}
__device__ __forceinline__ void store_element(float* to, float x) { *to = x; }
__device__ __forceinline__ void store_element(bfloat16* to, float x) {
  to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ __forceinline__ void store_element(float16* to, float x) {
  to->bits = __half_as_ushort(__float2half_rn(x));
}

// The next element of a strided line. The compiler does not see through the step: it would
// otherwise keep the address of every element in registers that the state needs.
template <class Element>
__device__ __forceinline__ void step_to_next(Element*& at, std::int64_t stride) {
  at += stride;
  asm volatile("" : "+l"(at));
}

// A query or key of KD elements, spread over the lanes of a group that all need every element.
template <int KD, int Lanes>
struct SharedKey {
  float part[KD / Lanes];

  template <class Element>
  __device__ __forceinline__ void load(const Element* from, std::int64_t stride, int lane) {
    from += lane * stride;
#pragma unroll
    for (int j = 0; j < KD / Lanes; ++j) {
      part[j] = load_element(from);
      step_to_next(from, Lanes * stride);
    }
  }
  __device__ __forceinline__ float at(int i, unsigned group) const {
    if constexpr (Lanes == 1) return part[i];
    return __shfl_sync(group, part[i / Lanes], i % Lanes, Lanes);
  }
};

template <int Lanes>
__device__ __forceinline__ float sum_over_group(float x, unsigned group) {
#pragma unroll
  for (int mask = Lanes / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(group, x, mask, Lanes);
  return x;
}

}  // namespace detail

// The parameter list of the document, without a context: launched by the caller, with
// RECURRENCE_BLOCK_SIZE threads a block and ceil(total_threads / RECURRENCE_BLOCK_SIZE) blocks.
//
//     gated_delta_recurrence_fwd_gpu<DType::kBFloat16, DType::kFloat32, 128, 128, 128>
//         <<<blocks, 128, 0, stream>>>(total_threads, batch_size, ...);
//
// One thread is one (batch item, value head, value element); its column of KEY_HEAD_DIM state
// elements lives in registers over all tokens of the sequence (beyond 128, or in blocks that are no
// multiple of 8 threads, the compiler keeps a part in local memory). Nothing is checked here but
// what would leave the tensors: a slot past the pool makes the sequence padding, offsets are
// clamped to total_seq_len. The overload with a context checks everything and runs the library's
// tuned kernels.
template <DType work_dtype, DType state_dtype, int KEY_HEAD_DIM, int VALUE_HEAD_DIM,
          int RECURRENCE_BLOCK_SIZE>
__global__ void __launch_bounds__(RECURRENCE_BLOCK_SIZE) gated_delta_recurrence_fwd_gpu(
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
    std::uint32_t recurrence_output_seqlen_stride,
    std::uint32_t recurrence_output_valuedim_stride) {
  detail::check_recurrence_template<work_dtype, state_dtype, KEY_HEAD_DIM, VALUE_HEAD_DIM,
                                    RECURRENCE_BLOCK_SIZE>();
  using Work = typename TileTensor<work_dtype, 2>::Element;
  using State = typename TileTensor<state_dtype, 4>::Element;
  constexpr int KD = KEY_HEAD_DIM;
  constexpr float kNormEps = 1e-6f;

  const std::int64_t thread =
      static_cast<std::int64_t>(blockIdx.x) * RECURRENCE_BLOCK_SIZE + threadIdx.x;
  if (thread >= total_threads) return;
  const std::int64_t column = thread % value_dim, item = thread / value_dim;
  if (item >= batch_size) return;
  const std::int64_t head = column / VALUE_HEAD_DIM, value = column % VALUE_HEAD_DIM;
  const std::int64_t key_head = head / (num_value_heads / num_key_heads);

  const std::int64_t slot = slot_idx.data[item];
  if (slot >= recurrent_state.shape[0]) return;
  const std::int64_t begin = input_row_offsets.data[item];
  const std::int64_t end =
      min(static_cast<std::int64_t>(input_row_offsets.data[item + 1]), total_seq_len);

  State* const state = recurrent_state.data + slot * recurrent_state_slot_stride +
                       head * recurrent_state_value_head_stride +
                       value * recurrent_state_value_dim_stride;
  // Eight neighbouring threads are of one head and read its q and k together.
  constexpr int kLanes = RECURRENCE_BLOCK_SIZE % 8 == 0 ? 8 : 1;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const unsigned group = ((1u << kLanes) - 1u) << (threadIdx.x % 32 / kLanes * kLanes);

  const std::int64_t key_stride = recurrent_state_key_dim_stride;
  float s[KD];
  State* element = state;
#pragma unroll
  for (int i = 0; i < KD; ++i) {
    s[i] = detail::load_element(element);
    detail::step_to_next(element, key_stride);
  }

  const std::int64_t channel = qkv_conv_output_channel_stride;
  const Work* const q_head = qkv_conv_output.data + key_head * KD * channel;
  const Work* const k_head = q_head + key_dim * channel;
  const Work* const v_element = qkv_conv_output.data + (2 * key_dim + column) * channel;
  const float scale = rsqrtf(static_cast<float>(KD));
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t row = token * qkv_conv_output_seqlen_stride;
    detail::SharedKey<KD, kLanes> q, k;
    q.load(q_head + row, channel, lane);
    k.load(k_head + row, channel, lane);
    const std::int64_t gate = token * per_token_seqlen_stride + head * per_token_head_stride;
    const float alpha = detail::load_element(decay_per_token.data + gate);
    const float beta = detail::load_element(beta_per_token.data + gate);
    const float v = detail::load_element(v_element + row);
    float qq = 0, kk = 0, qk = 0, q_state = 0, k_state = 0;
#pragma unroll
    for (int j = 0; j < KD / kLanes; ++j) {
      qq += q.part[j] * q.part[j];
      kk += k.part[j] * k.part[j];
      qk += q.part[j] * k.part[j];
    }
    qq = detail::sum_over_group<kLanes>(qq, group);
    kk = detail::sum_over_group<kLanes>(kk, group);
    qk = detail::sum_over_group<kLanes>(qk, group);
#pragma unroll
    for (int i = 0; i < KD; ++i) {
      q_state += q.at(i, group) * s[i];
      k_state += k.at(i, group) * s[i];
    }
    const float k_factor = rsqrtf(kk + kNormEps), q_factor = rsqrtf(qq + kNormEps) * scale;
    const float delta = beta * (v - alpha * k_factor * k_state);
    const float step = delta * k_factor;
    detail::store_element(recurrence_output.data + token * recurrence_output_seqlen_stride +
                              column * recurrence_output_valuedim_stride,
                          q_factor * (alpha * q_state + qk * step));
#pragma unroll
    for (int i = 0; i < KD; ++i) s[i] = alpha * s[i] + step * k.at(i, group);
  }

  element = state;
#pragma unroll
  for (int i = 0; i < KD; ++i) {
    detail::store_element(element, s[i]);
    detail::step_to_next(element, key_stride);
  }
}

}  // namespace hyla::gdn

#endif  // HYLA_RECURRENCE_KERNEL_DEVICE_H_
