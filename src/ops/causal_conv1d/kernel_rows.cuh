// Causal depthwise convolution of whole rows, prefill and update, over any strides; out may be x.
//
// A CTA owns some channels of a row and walks its tokens in strides of blockDim.y runs, one a
// thread. The inputs of a stride, and of the ones before a run, are in registers when the CTA meets
// at a barrier; outputs are stored behind it. So an input is read before an output may take its
// place, and nobody else reads it. The windows that the row leaves are inputs too and come first.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/causal_conv1d/arguments.cuh"
#include "ops/causal_conv1d/windows.cuh"

namespace hyla::conv {

inline constexpr int kRowThreads = 512;
inline constexpr int kRowVec = 4;  // channels a thread

// Tokens of a run: at least the W-1 that the next run reads too, at most what leaves registers.
template <class Io>
inline constexpr int kRowRun = sizeof(Io) == 2 ? 8 : 3;

// What a thread reads of a stride of its row.
template <class Io, int W, int Vec>
struct Stride {
  static constexpr int kRun = kRowRun<Io>;
  TokenBits<Io, Vec> tokens[kRun];
  // The inputs in front of its run. The first thread has them from the stride before, and reads
  // those in front of the next stride.
  TokenBits<Io, Vec> edge[W - 1];

  // x: the row's first token. Tokens from `length` on do not exist.
  __device__ __forceinline__ void load(const Io* x, std::int64_t x_stride, std::int64_t stride,
                                       std::int64_t length) {
    const std::int64_t run = stride * blockDim.y + threadIdx.y;
    const std::int64_t next = (threadIdx.y > 0 ? run : run + blockDim.y) * kRun;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const std::int64_t token = run * kRun + i;
      if (token < length) tokens[i].load(x + token * x_stride);
    }
#pragma unroll
    for (int j = 0; j < W - 1; ++j) {
      const std::int64_t token = next + j - (W - 1);
      if (token < length) edge[j].load(x + token * x_stride);
    }
  }
};

// x, out [tokens, C]; weight [C, W]; state [slots, C, L]; grid (channel blocks * rows), block
// (channels / Vec, runs)
template <class Io, int W, int Vec>
__global__ void __launch_bounds__(kRowThreads, 1)
    convolve_rows(const __grid_constant__ ConvArguments a) {
  constexpr int kRun = kRowRun<Io>;
  static_assert(kRun >= W - 1);
  const Problem& p = a.p;
  const std::int64_t index = blockIdx.x / a.channel_blocks;
  const std::int64_t channel =
      (std::int64_t{blockIdx.x % a.channel_blocks} * blockDim.x + threadIdx.x) * Vec;
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  Row row;
  find_tokens(a, index, row);
  if (!find_slots(a, row)) return;
  const bool owns = channel < p.C, first = threadIdx.y == 0;
  const std::int64_t length = owns ? row.length : 0;
  const std::int64_t x_stride = p.x.token_stride, out_stride = p.out.token_stride;
  const Io* x = static_cast<const Io*>(p.x.data) + p.x.offset(index, row.begin, channel);
  Io* out = static_cast<Io*>(p.out.data) + p.out.offset(index, row.begin, channel);

  Stride<Io, W, Vec> next = {};
  next.load(x, x_stride, 0, length);
  Filter<Io, W, Vec> filter;
  if (owns) filter.load(a.filter, channel);
  float window[W - 1][Vec] = {};
  if (owns && first && row.from_pool) {
    load_window<W, Vec>(a, row.read, channel, p.window_offset(index), window);
  }
  if (owns && first && p.state.present()) leave_windows<Io, W, Vec>(a, index, channel);

  const std::int64_t strides = (row.length + blockDim.y * kRun - 1) / (blockDim.y * kRun);
  for (std::int64_t s = 0; s < strides; ++s) {
    const Stride<Io, W, Vec> now = next;
    __syncthreads();
    next.load(x, x_stride, s + 1, length);
    if (!first) {
#pragma unroll
      for (int j = 0; j < W - 1; ++j) now.edge[j].unpack(window[j]);
    }
    const std::int64_t begin = (s * blockDim.y + threadIdx.y) * kRun;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      float input[Vec], y[Vec];
      now.tokens[i].unpack(input);
      filter.apply(window, input, y);
      shift<W, Vec>(window, input);
      if (begin + i < length) TokenBits<Io, Vec>::store(out + (begin + i) * out_stride, y);
    }
    if (first) {
#pragma unroll
      for (int j = 0; j < W - 1; ++j) now.edge[j].unpack(window[j]);
    }
  }
}

}  // namespace hyla::conv
