// What the block kernel receives: an MtpProblem without what it does not take, strides in 32 bits;
// and which tokens and slots a row has.
#pragma once

#include <cstdint>

#include "device/divider.h"
#include "ops/gdn_decode/gate_arguments.cuh"
#include "problem/gdn_mtp.h"

namespace hyla::gdn {

struct TokenStrides {  // of [B, T, heads, ..] or [total, heads, ..] in elements
  std::uint32_t row = 0, token = 0, head = 0;
};

__device__ __forceinline__ std::int64_t at(const TokenStrides& stride, std::uint32_t row,
                                           std::uint32_t token, std::uint32_t head) {
  return static_cast<std::int64_t>(row) * stride.row +
         token * static_cast<std::int64_t>(stride.token) +
         head * static_cast<std::int64_t>(stride.head);
}

// Indices in 32 or 64 bits, read without branches. Options::kUsual: int32.
struct IndexArgument {
  const void* data = nullptr;
  std::uint32_t stride = 0, column_stride = 0;
  bool is_wide = false, is_signed = false;

  __device__ __forceinline__ bool present() const { return data != nullptr; }
  template <Options O>
  __device__ __forceinline__ std::int64_t at(std::uint32_t i, std::uint32_t column = 0) const {
    const std::int64_t offset =
        i * static_cast<std::int64_t>(stride) + column * static_cast<std::int64_t>(column_stride);
    if constexpr (O == Options::kUsual) return static_cast<const std::int32_t*>(data)[offset];
    const auto* words = static_cast<const std::uint32_t*>(data) + (is_wide ? 2 * offset : offset);
    const std::uint32_t low = words[0];
    const std::uint32_t high = is_wide ? words[1] : is_signed && low >> 31 != 0 ? ~0u : 0u;
    return static_cast<std::int64_t>(high) << 32 | low;
  }
};

// In the order in which the kernel needs them: a grid that starts finds none of it in the constant
// cache. Options::kUsual: besides the usual gates, rows of the same number of tokens, all in one
// block, int32 slots without columns, no fused norm, and the final state is written.
struct MtpBlockArguments {
  const void *q, *k;
  TokenStrides q_stride, k_stride;
  device::Divider group;  // by the value heads of a key head
  std::uint32_t tokens;   // of a row; ragged: of all
  const void* v;
  TokenStrides v_stride, gate_stride, beta_stride;
  GateArguments gates;
  IndexArgument read_slots;
  std::int64_t first_slot, slots;
  void* state;
  std::uint32_t slot_stride, head_stride, line_stride;  // a line: V values (kKV) or K values (kVK)
  float scale, l2norm_eps;
  IndexArgument write_slots, commit_lengths;
  void* out;
  TokenStrides out_stride;
  // Only for Options::kAny.
  bool l2norm, update_state;
  IndexArgument read_columns, cu_seqlens, starts, lengths;
  std::uint32_t columns;
  std::uint32_t values;  // V
  NormView norm;
};

// Options::kAny: V need not be a multiple of what a CTA owns, but the rows of a warp are all there
// or not at all.
template <class P>
__device__ __forceinline__ bool owns_rows(const MtpBlockArguments& a, int value) {
  return P::kOptions == Options::kUsual || static_cast<std::uint32_t>(value) < a.values;
}

struct BlockSpan {
  std::uint32_t begin, length;
  std::uint32_t commit;  // the final state is the one after so many tokens
};

// Loads without a branch. Behind a branch the compiler reads what was loaded as a number at once,
// and all that follows waits for it: the state's requests, too.
__device__ __forceinline__ std::uint32_t load_word_if(bool condition, const void* from) {
  std::uint32_t word = 0;
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p ld.global.u32 %0, [%1];\n}"
               : "+r"(word)
               : "l"(from), "r"(static_cast<int>(condition)));
  return word;
}

// The same of 16 bits.
__device__ __forceinline__ std::uint32_t load_half_if(bool condition, const void* from) {
  std::uint32_t word = 0;
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p ld.global.u16 %0, [%1];\n}"
               : "+r"(word)
               : "l"(from), "r"(static_cast<int>(condition)));
  return word;
}

// Options::kUsual: an index of the row, asked for ahead of its use.
template <Options O>
__device__ __forceinline__ std::uint32_t ask(const IndexArgument& index, std::uint32_t row) {
  if constexpr (O == Options::kAny) return 0;
  return load_word_if(index.present(), static_cast<const std::int32_t*>(index.data) +
                                           row * static_cast<std::int64_t>(index.stride));
}

// Options::kAny: the same, in 32 or 64 bits.
struct AskedIndex {
  std::uint32_t low = 0, high = 0;

  __device__ __forceinline__ void ask(const IndexArgument& index, std::uint32_t row) {
    const std::int64_t offset = row * static_cast<std::int64_t>(index.stride);
    const auto* from =
        static_cast<const std::uint32_t*>(index.data) + (index.is_wide ? 2 * offset : offset);
    low = load_word_if(index.present(), from);
    high = load_word_if(index.present() && index.is_wide, from + 1);
  }
  __device__ __forceinline__ std::int64_t value(const IndexArgument& index) const {
    const std::uint32_t sign = index.is_signed && low >> 31 != 0 ? ~0u : 0u;
    return static_cast<std::int64_t>(index.is_wide ? high : sign) << 32 | low;
  }
};

// Where a row's tokens lie and its state: all are asked for before one is waited for.
struct AskedRow {
  AskedIndex begin, end, slot;

  __device__ __forceinline__ void ask(const MtpBlockArguments& a, std::uint32_t row) {
    const bool rising = a.cu_seqlens.present();
    begin.ask(rising ? a.cu_seqlens : a.starts, row);
    end.ask(rising ? a.cu_seqlens : a.lengths, rising ? row + 1 : row);
    if (!a.read_columns.present()) slot.ask(a.read_slots, row);
  }
};

template <Options O>
__device__ __forceinline__ void find_tokens(const MtpBlockArguments& a, std::uint32_t row,
                                            const AskedRow& asked, BlockSpan& span) {
  span.begin = 0, span.length = a.tokens;
  const auto clamped = [](std::int64_t x, std::uint32_t most) {
    return static_cast<std::uint32_t>(max(std::int64_t{0}, min(x, std::int64_t{most})));
  };
  if (O == Options::kAny && (a.cu_seqlens.present() || a.starts.present())) {
    const bool rising = a.cu_seqlens.present();
    const std::int64_t begin = asked.begin.value(rising ? a.cu_seqlens : a.starts);
    const std::int64_t end = asked.end.value(rising ? a.cu_seqlens : a.lengths);
    span.begin = clamped(begin, a.tokens);
    span.length = clamped(rising ? end - begin : end, a.tokens - span.begin);
  }
  span.commit = span.length;
  if (O == Options::kAny && a.commit_lengths.present()) {
    span.commit = clamped(a.commit_lengths.at<O>(row), span.length);
  }
}

// Options::kUsual: what was asked for is here.
__device__ __forceinline__ std::uint32_t commit_of(const MtpBlockArguments& a,
                                                   std::uint32_t asked) {
  if (!a.commit_lengths.present()) return a.tokens;
  const auto wanted = static_cast<std::int32_t>(asked);
  return static_cast<std::uint32_t>(max(0, min(wanted, static_cast<std::int32_t>(a.tokens))));
}

__device__ __forceinline__ bool is_null(const MtpBlockArguments& a, std::int64_t slot) {
  return slot < a.first_slot || slot < 0 || slot >= a.slots;
}

// Options::kAny.
__device__ __forceinline__ std::int64_t read_slot(const MtpBlockArguments& a, std::uint32_t row,
                                                  const AskedIndex& asked) {
  if (!a.read_slots.present()) return row;
  if (!a.read_columns.present()) return asked.value(a.read_slots);
  const std::int64_t wanted = a.read_columns.at<Options::kAny>(row);
  const auto column =
      static_cast<std::uint32_t>(max(std::int64_t{0}, min(wanted, std::int64_t{a.columns} - 1)));
  return a.read_slots.at<Options::kAny>(row, column);
}

// Negative: none.
template <Options O>
__device__ __forceinline__ std::int64_t write_slot(const MtpBlockArguments& a, std::uint32_t row,
                                                   std::uint32_t asked, std::int64_t read) {
  if (O == Options::kAny && !a.update_state) return -1;
  std::int64_t slot = read;
  if (a.write_slots.present()) {
    slot = O == Options::kUsual ? static_cast<std::int32_t>(asked) : a.write_slots.at<O>(row);
  }
  return is_null(a, slot) ? -1 : slot;
}

}  // namespace hyla::gdn
