// A random ragged GDN problem: its tensors, the calls of each operation over them, and what an
// oracle says must come out. Rows that are padding, tokens between rows and unused slots stay NaN.
#pragma once

#include <hyla/gdn.h>

#include <functional>
#include <set>

#include "ops/support/gdn_oracle.h"
#include "ops/support/gdn_tensor.h"

namespace hyla::gdn_test {

struct Spec {
  Index lengths = {};
  Index starts = {};                    // empty: back to back
  std::set<std::int64_t> padding = {};  // rows
  std::set<std::int64_t> fresh = {};  // rows whose slot must not be read: prefill starts from zero
  std::int64_t Hq = 2, Hk = 2, HV = 4, K = 16, V = 24;
  DType io = DType::kFloat32, state = DType::kFloat32, gates = DType::kFloat32;
  DType indices = DType::kInt32;
  gdn::Gate::Kind gate = gdn::Gate::Kind::kLog;
  gdn::Beta::Kind beta = gdn::Beta::Kind::kProbability;
  gdn::StateLayout layout = gdn::StateLayout::kVK;
  bool l2norm = true;
  std::optional<double> scale = {};
  Index read = {};         // slot of each row, negative for padding; empty: 1 + 2 * row
  std::int64_t slots = 0;  // 0: enough for `read`, and two more
  std::uint64_t seed = 1;
};

// [row][head]
using Inputs = std::vector<std::vector<HeadInput>>;
using Results = std::vector<std::vector<HeadResult>>;

class Case {
 public:
  explicit Case(const Spec& spec);

  Spec spec;
  std::int64_t rows, total, heads;
  Tensor q, k, v, out;  // [total, heads, dim]
  Tensor gate, A_log, dt_bias, beta;
  Tensor state;  // pool
  Tensor cu_seqlens, starts, lengths, read_slots;
  Inputs inputs;  // as they were when the case was made

  gdn::PrefillParams prefill() const;
  gdn::MtpParams mtp() const;      // ragged, update_state
  gdn::MtpParams uniform() const;  // the same as [B, T, ...], when all rows have T tokens
  gdn::DecodeParams decode(std::int64_t t = 0) const;  // token t of every row, ditto

  std::int64_t start(std::int64_t row) const;
  std::int64_t length(std::int64_t row) const {
    return spec.lengths[static_cast<std::size_t>(row)];
  }
  std::int64_t slot(std::int64_t row) const { return spec.read[static_cast<std::size_t>(row)]; }
  bool padding(std::int64_t row) const { return spec.padding.contains(row); }

  Results results(const std::function<HeadResult(const HeadInput&)>& oracle) const;

  // The outputs of every row that is not padding. `out` may be any tensor of [total, heads, V].
  void expect_out(Expectation& expected, const Results& results,
                  double relative = kReassociation) const;
  // The state of `row` after `tokens` tokens, at {prefix..., head, K and V as the layout has them}.
  void expect_state(Expectation& expected, const Index& prefix, const Results& results,
                    std::int64_t row, std::int64_t tokens, double relative = kReassociation) const;
  // Every row's final state in its own slot.
  void expect_final(Expectation& expected, const Results& results,
                    double relative = kReassociation) const;

  // Largest number that takes part in a sum of this head.
  double magnitude(const Results& results, std::int64_t row, std::int64_t head) const;
  double attainable(double relative) const {
    return gdn_test::attainable(relative, spec.io == DType::kBFloat16);
  }

 private:
  template <class Params>
  void set_common(Params& params) const;
  HeadInput input(std::int64_t row, std::int64_t head) const;
};

// q | k | v of a case packed as the recurrence takes them, with any strides.
struct Packed {
  Packed(const Case& problem, std::int64_t channel_stride, std::int64_t row_gap);
  Tensor qkv, out;  // [total, channels], [total, HV*V]
  gdn::RecurrenceParams params(const Case& problem) const;
  void expect_out(Expectation& expected, const Case& problem, const Results& results,
                  double relative = kReassociation) const;
};

Index state_shape(gdn::StateLayout layout, Index prefix, std::int64_t heads, std::int64_t K,
                  std::int64_t V);
Index state_index(gdn::StateLayout layout, Index prefix, std::int64_t head, std::int64_t k,
                  std::int64_t v);

}  // namespace hyla::gdn_test
