// Every operation once more, written differently from the reference and sharing none of its code:
// it reads the public params, walks value rows instead of states, and takes its arithmetic as a
// parameter. In float64 it checks the reference; in float32 its error is the yardstick of
// compare.h.
#pragma once

#include "testing/call.h"

namespace hyla::testing {

struct NaiveOptions {
  bool float64 = false;  // float32 otherwise
  // Operands of matrix products are rounded to this dtype first, as tensor cores take them.
  DType operands = DType::kFloat32;
  // Gated delta rule: 64 tokens at a time, with one inverse, instead of token by token.
  bool chunked = false;
};

// Runs the call in place of an implementation. Arguments must be valid.
void run_naive(const Call& call, const NaiveOptions& options);

void naive_decode(const gdn::DecodeParams& params, const NaiveOptions& options);
void naive_mtp(const gdn::MtpParams& params, const NaiveOptions& options);
void naive_prefill(const gdn::PrefillParams& params, const NaiveOptions& options);
void naive_recurrence(const gdn::RecurrenceParams& params, const NaiveOptions& options);
void naive_conv_prefill(const conv::PrefillParams& params, const NaiveOptions& options);
void naive_conv_update(const conv::UpdateParams& params, const NaiveOptions& options);
void naive_gated_rms(const norm::GatedRmsParams& params, const NaiveOptions& options);
void naive_attention(const attention::RunParams& params, const NaiveOptions& options);
void naive_append(const attention::AppendParams& params, const NaiveOptions& options);
void naive_merge(const attention::MergeParams& params, const NaiveOptions& options);

// Elements by index, for naive loops.
inline double number(const TensorView& view, std::initializer_list<std::int64_t> index) {
  std::int64_t offset = 0;
  int d = 0;
  for (std::int64_t i : index) offset += i * view.strides[d++];
  return load_element(view, offset);
}
inline std::int64_t integer(const TensorView& view, std::initializer_list<std::int64_t> index) {
  return static_cast<std::int64_t>(number(view, index));
}
inline void put(const TensorView& view, std::initializer_list<std::int64_t> index, double value) {
  std::int64_t offset = 0;
  int d = 0;
  for (std::int64_t i : index) offset += i * view.strides[d++];
  store_element(view, offset, value);
}
inline double rounded(double value, DType dtype) {
  if (dtype == DType::kBFloat16) return static_cast<float>(bfloat16(static_cast<float>(value)));
  if (dtype == DType::kFloat16) return static_cast<float>(float16(static_cast<float>(value)));
  return value;
}

// Rows of the public arguments, read anew: token range, slots.
template <class P>
std::int64_t naive_rows(const P& p) {
  return p.cu_seqlens.present() ? p.cu_seqlens.shape[0] - 1 : p.starts.shape[0];
}
template <class P>
std::int64_t naive_begin(const P& p, std::int64_t row) {
  return p.cu_seqlens.present() ? integer(p.cu_seqlens, {row}) : integer(p.starts, {row});
}
template <class P>
std::int64_t naive_length(const P& p, std::int64_t row) {
  if (!p.cu_seqlens.present()) return integer(p.lengths, {row});
  return integer(p.cu_seqlens, {row + 1}) - integer(p.cu_seqlens, {row});
}
template <class P>
std::int64_t naive_read_slot(const P& p, std::int64_t row) {
  if (!p.read_slots.present()) return row;
  if (p.read_slots.rank == 1) return integer(p.read_slots, {row});
  const std::int64_t last = p.read_slots.shape[1] - 1, column = integer(p.read_columns, {row});
  return integer(p.read_slots, {row, column < 0 ? 0 : column > last ? last : column});
}

// Tokens in the cache of a row, of attention and append.
template <class P>
std::int64_t naive_keys(const P& p, std::int64_t row) {
  if (p.kv_lengths.present()) return integer(p.kv_lengths, {row});
  if (p.cache.cu_kv.present()) {
    return integer(p.cache.cu_kv, {row + 1}) - integer(p.cache.cu_kv, {row});
  }
  return p.cache.k.shape[p.cache.layout == attention::KvLayout::kHND ? 2 : 1];
}

}  // namespace hyla::testing
