// Loads that are asked for at once and waited for where they are used. Behind a branch, or read as
// numbers, they are waited for one after another, and each waits for the memory. So does a load
// into a register for the one before it into the same, even if only one of them is ever made: what
// may have one of two widths has a register for each.
#pragma once

#include "device/dtype.cuh"
#include "ops/causal_conv1d/arguments.cuh"

namespace hyla::conv {

template <class T, int N>
__device__ __forceinline__ void ask_if(bool condition, const void* from, device::Pack<T, N>& pack) {
  using Pack = device::Pack<T, N>;
  const auto* words = static_cast<const std::uint32_t*>(from);
  const int asks = static_cast<int>(condition);
  if constexpr (Pack::kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < Pack::kWords; i += 4) {
      asm volatile(
          "{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
          " @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
          : "+r"(pack.words[i]), "+r"(pack.words[i + 1]), "+r"(pack.words[i + 2]),
            "+r"(pack.words[i + 3])
          : "l"(words + i), "r"(asks));
    }
  } else {
    static_assert(Pack::kBytes % 8 == 0);
#pragma unroll
    for (int i = 0; i < Pack::kWords; i += 2) {
      asm volatile(
          "{\n .reg .pred p;\n setp.ne.b32 p, %3, 0;\n @p ld.global.v2.u32 {%0, %1}, [%2];\n}"
          : "+r"(pack.words[i]), "+r"(pack.words[i + 1])
          : "l"(words + i), "r"(asks));
    }
  }
}

__device__ __forceinline__ void ask_if(bool condition, const void* from, std::uint32_t& word) {
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p ld.global.u32 %0, [%1];\n}"
               : "+r"(word)
               : "l"(from), "r"(static_cast<int>(condition)));
}

// A number of 32 or 16 bits.
struct NumberBits {
  std::uint32_t word = 0, half = 0;

  __device__ __forceinline__ void ask(const core::VectorView& view, std::int64_t i) {
    const bool wide = view.dtype == DType::kFloat32;
    const auto* from = static_cast<const char*>(view.data) + i * view.stride * (wide ? 4 : 2);
    ask_if(wide, from, word);
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p ld.global.u16 %0, [%1];\n}"
                 : "+r"(half)
                 : "l"(from), "r"(static_cast<int>(view.present() && !wide)));
  }
  // 0 where the tensor is absent.
  __device__ __forceinline__ float value(const core::VectorView& view) const {
    return view.dtype == DType::kFloat32 ? __uint_as_float(word)
           : view.present()              ? device::number(half, view.dtype)
                                         : 0.0f;
  }
};

// An index of 32 or 64 bits; nothing where the tensor is absent.
struct IndexBits {
  std::uint32_t word = 0;
  device::Pack<std::uint32_t, 2> pair = {};

  __device__ __forceinline__ void ask(const core::IndexView& view, std::int64_t i,
                                      bool condition = true) {
    const bool wide = view.dtype == DType::kInt64;
    const auto* from = static_cast<const char*>(view.data) + i * view.stride * (wide ? 8 : 4);
    ask_if(condition && view.present() && !wide, from, word);
    ask_if(condition && wide, from, pair);
  }
  __device__ __forceinline__ std::int64_t value(const core::IndexView& view) const {
    if (view.dtype == DType::kInt64) {
      return static_cast<std::int64_t>(std::uint64_t{pair.words[1]} << 32 | pair.words[0]);
    }
    return view.dtype == DType::kInt32 ? static_cast<std::int32_t>(word) : std::int64_t{word};
  }
};

// The slots of a row. Read columns are followed one load after the other.
struct SlotBits {
  IndexBits read, write;

  __device__ __forceinline__ void ask(const core::Slots& slots, std::int64_t row,
                                      bool condition = true) {
    read.ask(slots.read, row, condition && !slots.read_columns.present());
    write.ask(slots.write, row, condition);
  }
  __device__ __forceinline__ std::int64_t read_slot(const core::Slots& slots,
                                                    std::int64_t row) const {
    if (!slots.read.present() || slots.read_columns.present()) return slots.read_slot(row);
    return slots.checked(read.value(slots.read), slots.read_limit);
  }
  __device__ __forceinline__ std::int64_t write_slot(const core::Slots& slots,
                                                     std::int64_t read_from) const {
    if (!slots.write.present()) return read_from;
    return slots.checked(write.value(slots.write), slots.write_limit);
  }
};

// The filters of Vec channels as they lie in memory, where they lie side by side; otherwise they
// are read element by element when they are needed.
template <class Io, int W, int Vec>
struct FilterBits {
  device::Pack<Io, Vec* W> weight = {};
  NumberBits bias[Vec];

  __device__ __forceinline__ void ask(const FilterView& from, std::int64_t channel) {
    ask_if(from.wide, static_cast<const Io*>(from.weight.data) + channel * W, weight);
#pragma unroll
    for (int v = 0; v < Vec; ++v) bias[v].ask(from.bias, channel + v);
  }
  __device__ __forceinline__ void read(const FilterView& from, std::int64_t channel,
                                       Filter<Io, W, Vec>& filter) const {
    filter.silu = from.activation == Activation::kSilu;
    if (from.wide) {
      float values[Vec * W];
      weight.unpack(values);
#pragma unroll
      for (int i = 0; i < Vec * W; ++i) filter.weight[i % W][i / W] = values[i];
    } else {
      filter.load_weights(from.weight, channel);
    }
#pragma unroll
    for (int v = 0; v < Vec; ++v) filter.bias[v] = bias[v].value(from.bias);
  }
};

}  // namespace hyla::conv
