// What the convolution kernels receive, and how a thread reaches its channels' weights and inputs.
#pragma once

#include "device/activation_for.cuh"
#include "device/dtype.cuh"
#include "problem/conv.h"

namespace hyla::conv {

// How a thread reaches the windows of its neighbouring channels.
enum class Windows {
  kScattered,  // element by element
  kDense,      // [C, W-1] without gaps: one run of Vec * (W-1) elements
  kChannels,   // channels side by side: one run of Vec elements a column
};

struct FilterView {
  WeightView weight;
  core::VectorView bias;
  Activation activation;
  bool wide;  // [C, W] without gaps, aligned, in the dtype of x
};

// Prefill and update differ in where the final window goes.
struct ConvArguments {
  Problem p;
  FilterView filter;
  std::int64_t total;  // ragged: tokens there are; lengths from the device are clamped to it
  core::IndexView has_initial_state, checkpoint_offsets, checkpoint_slots, commit_lengths;
  bool update;
  Windows windows;
  std::uint32_t channel_blocks;  // CTAs along the channels: blockIdx.x % channel_blocks
  int run_log2;                  // tokens of a CTA
  std::uint32_t runs_per_row;    // CTAs along a row's tokens; 0: by cu_seqlens
};

// Vec channels of one token as they lie in memory.
template <class Io, int Vec>
struct TokenBits {
  device::Pack<Io, Vec> pack;

  __device__ __forceinline__ void load(const Io* from) { pack.load(from); }
  __device__ __forceinline__ void unpack(float (&values)[Vec]) const { pack.unpack(values); }
  static __device__ __forceinline__ void store(Io* to, const float (&values)[Vec]) {
    device::Pack<Io, Vec> result;
    result.pack(values);
    result.store(to);
  }
};

template <class Io>
struct TokenBits<Io, 1> {
  Io value;

  __device__ __forceinline__ void load(const Io* from) { value = *from; }
  __device__ __forceinline__ void unpack(float (&values)[1]) const {
    values[0] = device::to_float(value);
  }
  static __device__ __forceinline__ void store(Io* to, const float (&values)[1]) {
    *to = device::from_float<Io>(values[0]);
  }
};

// The filters of a thread's channels.
template <class Io, int W, int Vec>
struct Filter {
  float weight[W][Vec], bias[Vec];
  bool silu;

  __device__ __forceinline__ void load(const FilterView& from, std::int64_t channel) {
    const WeightView& view = from.weight;
    silu = from.activation == Activation::kSilu;
    if (Vec > 1 && from.wide) {
      if constexpr (Vec > 1) {
        device::Pack<Io, Vec * W> pack;
        pack.load(static_cast<const Io*>(view.data) + channel * W);
        float values[Vec * W];
        pack.unpack(values);
#pragma unroll
        for (int i = 0; i < Vec * W; ++i) weight[i % W][i / W] = values[i];
      }
    } else {
      load_weights(view, channel);
    }
    if (from.bias.present()) {
      device::load_numbers(from.bias.data, from.bias.dtype, channel * from.bias.stride,
                           from.bias.stride, bias);
    } else {
#pragma unroll
      for (int v = 0; v < Vec; ++v) bias[v] = 0;
    }
  }

  // Element by element.
  __device__ __forceinline__ void load_weights(const WeightView& view, std::int64_t channel) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      device::load_numbers(view.data, view.dtype,
                           channel * view.channel_stride + j * view.tap_stride, view.channel_stride,
                           weight[j]);
    }
  }

  __device__ __forceinline__ void apply(const float (&window)[W - 1][Vec], const float (&now)[Vec],
                                        float (&y)[Vec]) const {
#pragma unroll
    for (int v = 0; v < Vec; ++v) {
      y[v] = bias[v] + weight[W - 1][v] * now[v];
#pragma unroll
      for (int j = 0; j < W - 1; ++j) y[v] += weight[j][v] * window[j][v];
    }
    if (silu) {
#pragma unroll
      for (int v = 0; v < Vec; ++v) y[v] = device::silu_for<Io>(y[v]);
    }
  }
};

template <int W, int Vec>
__device__ __forceinline__ void shift(float (&window)[W - 1][Vec], const float (&now)[Vec]) {
#pragma unroll
  for (int v = 0; v < Vec; ++v) {
#pragma unroll
    for (int j = 0; j + 1 < W - 1; ++j) window[j][v] = window[j + 1][v];
    window[W - 2][v] = now[v];
  }
}

}  // namespace hyla::conv
