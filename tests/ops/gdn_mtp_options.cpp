// Every state option of gdn::mtp, against states computed by dense transition matrices: what must
// be written is, and nothing else.
#include <gtest/gtest.h>
#include <hyla/gdn.h>

#include "ops/support/gdn_case.h"

namespace hyla::gdn_test {
namespace {

using gdn::MtpParams;
using gdn::StateLayout;

constexpr std::int64_t kT = 4;

// Uniform rows of kT tokens, or ragged ones of up to kT; row 2 is padding.
struct MtpCase {
  explicit MtpCase(bool ragged, Spec spec = {}) : problem(make(ragged, std::move(spec))) {
    params = ragged ? problem.mtp() : problem.uniform();
    results = problem.results(dense);
  }
  static Case make(bool ragged, Spec spec) {
    spec.lengths = ragged ? Index{3, kT, 2, 1, 0} : Index{kT, kT, kT, kT, kT};
    spec.padding = {2};
    spec.slots = 40;
    return Case(spec);
  }
  Case problem;
  MtpParams params;
  Results results;

  // Runs the call; the pool must then hold what `pool` says, the outputs what the oracle says.
  void run(const std::function<void(Expectation&)>& pool) const {
    Expectation out(problem.out, "out"), state(problem.state, "state");
    problem.expect_out(out, results);
    pool(state);
    gdn::mtp(params);
    out.check();
    state.check();
  }
  template <class Body>
  void for_each_row(Body&& body) const {
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      if (!problem.padding(row)) body(row);
    }
  }
};

class GdnMtp : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Rows, GdnMtp, ::testing::Bool(),
                         [](const auto& ragged) { return ragged.param ? "Ragged" : "Uniform"; });

TEST_P(GdnMtp, FinalStateGoesToTheReadSlot) {
  for (StateLayout layout : {StateLayout::kKV, StateLayout::kVK}) {
    const MtpCase c(GetParam(), {.layout = layout});
    c.run([&](Expectation& pool) { c.problem.expect_final(pool, c.results); });
  }
}

TEST_P(GdnMtp, UpdateStateOffLeavesThePoolAlone) {
  MtpCase c(GetParam());
  c.params.update_state = false;
  c.run([](Expectation&) {});
}

TEST_P(GdnMtp, WriteSlotsMayDifferAndBeNull) {
  MtpCase c(GetParam());
  const Index write{20, -1, 21, 7,
                    22};  // row 1: computed, not stored; row 2 is padding; row 3: own
  const Tensor slots = Tensor::of_indices(DType::kInt64, write);
  c.params.write_slots = slots.view();
  c.run([&](Expectation& pool) {
    for (std::int64_t row : {0, 3, 4}) {
      c.problem.expect_state(pool, {write[static_cast<std::size_t>(row)]}, c.results, row,
                             c.problem.length(row));
    }
  });
}

TEST_P(GdnMtp, StatesOutHoldsTheStateAfterEveryToken) {
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (StateLayout layout : {StateLayout::kKV, StateLayout::kVK}) {
      for (bool update : {false, true}) {
        MtpCase c(GetParam(), {.layout = layout});
        const Spec& spec = c.problem.spec;
        // More rows and more tokens than needed, strides of its own.
        const Index shape =
            state_shape(layout, {c.problem.rows + 1, kT + 2}, c.problem.heads, spec.K, spec.V);
        const Tensor steps(dtype, shape, 6);
        c.params.states_out = steps.view();
        c.params.update_state = update;
        Expectation expected(steps, "states_out");
        c.for_each_row([&](std::int64_t row) {
          for (std::int64_t t = 0; t < c.problem.length(row); ++t) {
            c.problem.expect_state(expected, {row, t}, c.results, row, t + 1);
          }
        });
        c.run([&](Expectation& pool) {
          if (update) c.problem.expect_final(pool, c.results);
        });
        expected.check();
      }
    }
  }
}

// Entries of the padding row and beyond a row's length are garbage that must not be looked at.
std::vector<Index> step_table(const MtpCase& c) {
  std::vector<Index> table;
  std::int64_t slot = 15;
  for (std::int64_t row = 0; row < c.problem.rows; ++row) {
    table.emplace_back();
    for (std::int64_t t = 0; t < kT + 1; ++t) {
      const bool used = !c.problem.padding(row) && t < c.problem.length(row);
      table.back().push_back(used ? slot++ : 1000000);
    }
  }
  table[1][1] = -1;  // this one is skipped
  return table;
}

void expect_steps(const MtpCase& c, const std::vector<Index>& table, Expectation& pool) {
  c.for_each_row([&](std::int64_t row) {
    for (std::int64_t t = 0; t < c.problem.length(row); ++t) {
      const std::int64_t slot = table[static_cast<std::size_t>(row)][static_cast<std::size_t>(t)];
      if (slot >= 0) c.problem.expect_state(pool, {slot}, c.results, row, t + 1);
    }
  });
}

TEST_P(GdnMtp, StepSlotsHoldTheStateAfterEveryToken) {
  MtpCase c(GetParam());
  const std::vector<Index> table = step_table(c);
  const Tensor slots = Tensor::of_table(DType::kInt32, table);
  c.params.step_slots = slots.view();
  c.run([&](Expectation& pool) { expect_steps(c, table, pool); });  // and the read slots stay
}

TEST_P(GdnMtp, StepSlotsBesideWriteSlotsAndCommitLengths) {
  MtpCase c(GetParam());
  const std::vector<Index> table = step_table(c);
  const Tensor slots = Tensor::of_table(DType::kInt64, table);
  const Index write{1, 36, 9999, -1, 37}, commit{2, 0, 9999, 1, 0};
  const Tensor write_slots = Tensor::of_indices(DType::kInt32, write);
  const Tensor commit_lengths = Tensor::of_indices(DType::kInt32, commit);
  c.params.step_slots = slots.view();
  c.params.write_slots = write_slots.view();
  c.params.commit_lengths = commit_lengths.view();
  c.run([&](Expectation& pool) {
    expect_steps(c, table, pool);
    for (std::int64_t row : {0, 1, 4}) {
      c.problem.expect_state(pool, {write[static_cast<std::size_t>(row)]}, c.results, row,
                             commit[static_cast<std::size_t>(row)]);
    }
  });
}

TEST_P(GdnMtp, StepSlotMayBeTheReadSlot) {
  MtpCase c(GetParam());
  std::vector<Index> table = step_table(c);
  table[0] = {c.problem.slot(0), 16, 17, 18, 1000000};  // overwritten after the first token
  const Tensor slots = Tensor::of_table(DType::kInt32, table);
  c.params.step_slots = slots.view();
  c.run([&](Expectation& pool) { expect_steps(c, table, pool); });
}

TEST_P(GdnMtp, CommitLengthsChooseTheState) {
  for (std::int64_t most = 0; most <= kT; ++most) {
    MtpCase c(GetParam());
    Index commit;
    for (std::int64_t row = 0; row < c.problem.rows; ++row) {
      commit.push_back(std::min(most, c.problem.length(row)));
    }
    commit[2] = -77;  // of the padding row
    const Tensor lengths = Tensor::of_indices(DType::kInt64, commit);
    c.params.commit_lengths = lengths.view();
    c.run([&](Expectation& pool) {
      c.for_each_row([&](std::int64_t row) {
        c.problem.expect_state(pool, {c.problem.slot(row)}, c.results, row,
                               commit[static_cast<std::size_t>(row)]);
      });
    });
  }
}

TEST_P(GdnMtp, ReadSlotsByColumnAreClampedToTheTable) {
  MtpCase c(GetParam());
  // The slot of the case stands in the column that the clamped number names; the rest is garbage.
  const Index columns{-5, 0, 1, 2, 99}, clamped{0, 0, 1, 2, 2};
  std::vector<Index> table(5, Index(3, 1000000));
  for (std::size_t row = 0; row < 5; ++row) {
    table[row][static_cast<std::size_t>(clamped[row])] =
        c.problem.slot(static_cast<std::int64_t>(row));
  }
  const Tensor read_slots = Tensor::of_table(DType::kInt32, table);
  const Tensor read_columns = Tensor::of_indices(DType::kInt64, columns);
  c.params.read_slots = read_slots.view();
  c.params.read_columns = read_columns.view();
  c.run([&](Expectation& pool) { c.problem.expect_final(pool, c.results); });
}

TEST(GdnMtpRows, FirstSlotDecidesWhatIsNull) {
  const Index read{3, 0, 5, 2, 1};
  for (std::int64_t first : {0, 1, 3}) {
    Spec spec{.lengths = {2, 3, 1, 3, 2}, .read = read, .slots = 9};
    for (std::size_t row = 0; row < read.size(); ++row) {
      if (read[row] < first) spec.padding.insert(static_cast<std::int64_t>(row));
    }
    const Case p(spec);
    const Results results = p.results(dense);
    const Tensor write = Tensor::of_indices(DType::kUInt32, Index{6, 7, 0, 8, 4});
    Expectation out(p.out, "out"), state(p.state, "state");
    p.expect_out(out, results);
    const Index to{6, 7, 0, 8, 4};
    for (std::int64_t row = 0; row < p.rows; ++row) {
      const std::int64_t slot = to[static_cast<std::size_t>(row)];
      if (!p.padding(row) && slot >= first) {
        p.expect_state(state, {slot}, results, row, p.length(row));
      }
    }
    MtpParams params = p.mtp();
    params.first_slot = first;
    params.write_slots = write.view();
    gdn::mtp(params);
    out.check();
    state.check();
  }
}

TEST(GdnMtpRows, StartsAndLengthsOutOfOrderWithGaps) {
  const Spec spec{.lengths = {3, 0, 2, 4},
                  .starts = {9, 5, 1, 4}};  // tokens 0, 3 and 8 are nobody's
  const Case p(spec);
  const Results results = p.results(dense);
  Expectation out(p.out, "out"), state(p.state, "state");
  p.expect_out(out, results);
  p.expect_final(state, results);
  MtpParams params = p.mtp();
  params.cu_seqlens = {};
  params.starts = p.starts.view();
  params.lengths = p.lengths.view();
  gdn::mtp(params);
  out.check();
  state.check();
}

TEST(GdnMtpRows, RejectedDraftsCostNoSecondCall) {
  // Verify four drafts with step slots, then start the next call from the state after the accepted
  // ones by read_columns: the same as a run over the accepted tokens alone.
  const Index accepted{2, 4, 1};
  const Spec spec{.lengths = {4, 4, 4}, .slots = 30};
  const Case p(spec);
  const std::vector<Index> table{{10, 11, 12, 13}, {14, 15, 16, 17}, {18, 19, 20, 21}};
  const Tensor slots = Tensor::of_table(DType::kInt32, table);
  MtpParams verify = p.uniform();
  verify.step_slots = slots.view();
  gdn::mtp(verify);

  const Case next({.lengths = {1, 1, 1}, .seed = 9});  // another token
  MtpParams params = next.uniform();
  params.state = p.state.view();
  params.read_slots = slots.view();
  const Tensor columns = Tensor::of_indices(DType::kInt32, Index{1, 3, 0});  // accepted - 1
  params.read_columns = columns.view();
  const Tensor write = Tensor::of_indices(DType::kInt32, Index{22, 23, 24});
  params.write_slots = write.view();

  // What the oracle says about the accepted tokens and the new one, rounding in between.
  const Results verified = p.results(dense);
  Inputs inputs = next.inputs;
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t head = 0; head < inputs[row].size(); ++head) {
      inputs[row][head].S0 = verified[row][head].states.at(accepted[row]);
      for (double& x : inputs[row][head].S0) x = static_cast<float>(x);
    }
  }
  Case expected = next;
  expected.inputs = inputs;
  const Results results = expected.results(dense);
  Expectation out(next.out, "out"), state(p.state, "state");
  next.expect_out(out, results, 0x1p-23);  // a state on the edge may have rounded the other way
  for (std::int64_t row = 0; row < 3; ++row) {
    next.expect_state(state, {22 + row}, results, row, 1, 0x1p-23);
  }
  gdn::mtp(params);
  out.check();
  state.check();
}

}  // namespace
}  // namespace hyla::gdn_test
