// What the random calls of all operations share: tensors with gaps, row offsets, pool slots.
#pragma once

#include <string>
#include <vector>

#include "testing/random_problem.h"

namespace hyla::testing {

// Which tokens and slots each row has.
struct Rows {
  std::vector<std::int64_t> begins, lengths;
  std::int64_t total = 0;  // tokens of the tensors, unused ones included
  std::int64_t pool = 0;   // slots
  std::int64_t first_slot = 0;
  std::vector<std::int64_t> read, write;  // slot numbers as the call gets them
  std::vector<bool> padded;

  std::int64_t count() const { return static_cast<std::int64_t>(lengths.size()); }
};

class CaseBuilder {
 public:
  CaseBuilder(const ProblemSpec& spec, const CaseOptions& options);

  const ProblemSpec& spec() const { return spec_; }
  const CaseOptions& options() const { return options_; }
  Random random(const std::string& name) const { return {seed(), name}; }
  std::uint64_t seed() const { return static_cast<std::uint64_t>(spec_.seed); }

  // Has the call this rarer argument? `what` is its name; never without CaseOptions::variety.
  bool has(const char* what, double probability) const;
  // Which of `count` kinds, the first without variety.
  std::int64_t kind(const char* what, std::int64_t count) const;
  // `usual` without variety, otherwise any dtype of floating-point numbers with at least 16 bits.
  DType any_float(const char* what, DType usual) const;

  // A new tensor, all poison. With gaps its outer strides leave elements unused.
  Buffer& add(const std::string& name, DType dtype, std::vector<std::int64_t> shape);
  // The same where the operation takes any strides: with variety the last dimension may not be the
  // innermost, or not dense.
  Buffer& add_loose(const std::string& name, DType dtype, std::vector<std::int64_t> shape);
  TensorView normal(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                    double mean, double deviation);
  TensorView loose_normal(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                          double mean, double deviation);
  TensorView output(const std::string& name, DType dtype, std::vector<std::int64_t> shape);
  TensorView indices(const std::string& name, const std::vector<std::int64_t>& values,
                     std::vector<std::int64_t> shape = {});

  // Where index tensors must not point: far outside every pool and cache.
  static constexpr std::int64_t kNobody = 1 << 30;

  // Rows of `lengths` tokens. `ragged`: token offsets count over the whole batch.
  Rows rows(const std::vector<std::int64_t>& lengths, bool ragged) const;

  template <class Params>
  void set_sequences(Params& params, const Rows& rows) {
    if (options_.starts) {
      params.starts = indices("starts", rows.begins);
      params.lengths = indices("lengths", rows.lengths);
      return;
    }
    std::vector<std::int64_t> offsets{0};
    for (std::int64_t length : rows.lengths) offsets.push_back(offsets.back() + length);
    params.cu_seqlens = indices("cu_seqlens", offsets);
  }

  template <class Params>
  void set_slots(Params& params, const Rows& rows) {
    params.first_slot = rows.first_slot;
    if (!options_.shuffled && !options_.padding && !options_.elsewhere && !options_.read_table) {
      return;  // absent: the row number
    }
    if (options_.read_table) {
      set_read_table(params.read_slots, params.read_columns, rows);
    } else {
      params.read_slots = indices("read_slots", rows.read);
    }
    if (options_.elsewhere) params.write_slots = indices("write_slots", rows.write);
  }

  // A mask that lets half of the rows start from zero; their slots of the pool are poison.
  TensorView fresh_rows(const TensorView& pool, const Rows& rows);

  // Poison where nobody may read: tokens of padding rows and between rows ([total, ...] or
  // [B, T, ...] tensors), slots that no row reads ([slots, ...]).
  void poison_tokens(const TensorView& view, const Rows& rows, bool ragged) const;
  void poison_slots(const TensorView& pool, const Rows& rows) const;

  Call finish(Params params) &&;

 private:
  Buffer& add_strided(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                      bool loose);
  bool may_be_negative(const std::string& name) const;
  void set_read_table(TensorView& slots, TensorView& columns, const Rows& rows);

  ProblemSpec spec_;
  CaseOptions options_;
  Call call_;
};

// Makers of single operations.
Call random_decode(CaseBuilder builder);
Call random_mtp(CaseBuilder builder);
Call random_prefill(CaseBuilder builder);
Call random_recurrence(CaseBuilder builder);
Call random_conv_prefill(CaseBuilder builder);
Call random_conv_update(CaseBuilder builder);
Call random_gated_rms(CaseBuilder builder);
Call random_attention(CaseBuilder builder);
Call random_append(CaseBuilder builder);
Call random_merge(CaseBuilder builder);

}  // namespace hyla::testing
