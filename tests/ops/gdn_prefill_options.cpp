// Every state option of gdn::prefill: masks, separate pools, checkpoints into a buffer and into
// slots.
#include <gtest/gtest.h>
#include <hyla/gdn.h>

#include "ops/support/gdn_case.h"

namespace hyla::gdn_test {
namespace {

using gdn::PrefillParams;
using gdn::StateLayout;

struct PrefillCase {
  explicit PrefillCase(const Spec& spec) : problem(spec), params(problem.prefill()) {
    results = problem.results([this](const HeadInput& h) { return wy_at_checkpoints(h); });
  }
  Case problem;
  PrefillParams params;
  Results results;
  static constexpr double kRelative = 1e-9;  // of the WY form, see gdn_formulations.cpp

  // Cuts at all places where these tests ask for a state.
  static HeadResult wy_at_checkpoints(const HeadInput& h) {
    std::vector<std::int64_t> cuts;
    for (std::int64_t cut : {1, 5, 63, 64, 65, 100, 128, 192, 256}) {
      if (cut < h.T) cuts.push_back(cut);
    }
    cuts.push_back(h.T);
    return wy(h, cuts);
  }

  void expect(Expectation& expected, std::int64_t slot, std::int64_t row,
              std::int64_t tokens) const {
    problem.expect_state(expected, {slot}, results, row, tokens, kRelative);
  }
  void run(const std::function<void(Expectation&)>& pool) const {
    Expectation out(problem.out, "out"), state(problem.state, "state");
    problem.expect_out(out, results, kRelative);
    pool(state);
    gdn::prefill(params);
    out.check();
    state.check();
  }
  void run_with_final_states() const {
    run([this](Expectation& pool) { problem.expect_final(pool, results, kRelative); });
  }
};

TEST(GdnPrefill, RowsWithoutInitialStateDoNotReadTheirSlot) {
  for (DType mask_type : {DType::kBool, DType::kUInt8}) {
    PrefillCase c({.lengths = {5, 70, 0, 0}, .fresh = {1, 2}});  // their slots are NaN
    const Tensor mask = Tensor::of_indices(mask_type, Index{1, 0, 0, 1});
    c.params.has_initial_state = mask.view();
    c.run_with_final_states();  // row 2 has no tokens: zeros; row 3: passed through
  }
}

TEST(GdnPrefill, WithoutAPoolEverythingStartsFromZero) {
  PrefillCase c({.lengths = {5, 66}, .fresh = {0, 1}});
  c.params.state = c.params.read_slots = {};
  c.run([](Expectation&) {});
}

TEST(GdnPrefill, FinalStatesOfFreshRowsGoToStateOut) {
  for (std::int64_t first : {0, 2}) {
    PrefillCase c({.lengths = {5, 0, 66}, .fresh = {0, 1, 2}});
    const Index shape = state_shape(c.problem.spec.layout, {6}, c.problem.heads, 16, 24);
    const Tensor pool(DType::kFloat16, shape, 2);
    const Tensor write = Tensor::of_indices(DType::kInt32, Index{5, 3, 2});
    c.params.state = c.params.read_slots = {};
    c.params.state_out = pool.view();
    c.params.write_slots = write.view();
    c.params.first_slot = first;  // no row reads a slot, so none is padding by its number
    Expectation expected(pool, "state_out");
    c.expect(expected, 5, 0, 5);
    c.expect(expected, 3, 1, 0);
    c.expect(expected, 2, 2, 66);
    c.run([](Expectation&) {});
    expected.check();
  }
}

TEST(GdnPrefill, StateOutLeavesTheInitialPoolAlone) {
  PrefillCase c({.lengths = {5, 0, 66}, .state = DType::kBFloat16});
  const Index shape = state_shape(c.problem.spec.layout, {8}, c.problem.heads, 16, 24);
  const Tensor pool(DType::kFloat32, shape, 2);
  c.params.state_out = pool.view();
  Expectation expected(pool, "state_out");
  for (std::int64_t row = 0; row < 3; ++row) {  // absent write slots: the read slots' numbers
    c.expect(expected, c.problem.slot(row), row, c.problem.length(row));
  }
  c.run([](Expectation&) {});
  expected.check();
}

TEST(GdnPrefill, OneInitialStateMayServeAllRows) {
  // A pool with slot stride 0 cannot be written, but with state_out it need not be.
  PrefillCase c({.lengths = {4, 3}, .read = {0, 0}, .slots = 1});
  const Tensor pool(DType::kFloat32, state_shape(StateLayout::kVK, {2}, c.problem.heads, 16, 24));
  c.params.state.shape[0] = 2;
  c.params.state.strides[0] = 0;
  c.params.read_slots = {};
  c.params.state_out = pool.view();
  Expectation expected(pool, "state_out");
  // Both rows were filled into slot 0, the second one last.
  for (std::size_t head = 0; head < c.problem.inputs[0].size(); ++head) {
    c.problem.inputs[0][head].S0 = c.problem.inputs[1][head].S0;
  }
  c.results = c.problem.results(dense);
  c.expect(expected, 0, 0, 4);
  c.expect(expected, 1, 1, 3);
  c.run([](Expectation&) {});
  expected.check();
}

TEST(GdnPrefill, UpdateStateOff) {
  PrefillCase c({.lengths = {5, 0, 66}});
  c.params.update_state = false;
  c.run([](Expectation&) {});
}

TEST(GdnPrefill, WriteSlotsMayDifferAndBeNull) {
  PrefillCase c({.lengths = {5, 3, 0, 66}, .padding = {1}, .slots = 20});
  const Tensor write = Tensor::of_indices(DType::kInt64, Index{12, 9999, 13, -1});
  c.params.write_slots = write.view();
  c.run([&](Expectation& pool) {
    c.expect(pool, 12, 0, 5);
    c.expect(pool, 13, 2, 0);  // no tokens: a copy of the initial state
  });
}

TEST(GdnPrefill, StartsAndLengths) {
  PrefillCase c({.lengths = {3, 0, 70, 1}, .starts = {72, 5, 1, 76}});
  c.params.cu_seqlens = {};
  c.params.starts = c.problem.starts.view();
  c.params.lengths = c.problem.lengths.view();
  c.run_with_final_states();
}

TEST(GdnPrefill, ReadSlotsByColumn) {
  PrefillCase c({.lengths = {5, 9}});
  const Tensor table = Tensor::of_table(
      DType::kInt32, {Index{77777, c.problem.slot(0)}, Index{c.problem.slot(1), 77777}});
  const Tensor columns = Tensor::of_indices(DType::kInt32, Index{7, -7});
  c.params.read_slots = table.view();
  c.params.read_columns = columns.view();
  c.run_with_final_states();
}

TEST(GdnPrefill, CheckpointsEveryNTokensIntoABuffer) {
  for (StateLayout layout : {StateLayout::kKV, StateLayout::kVK}) {
    for (std::int64_t n : {64, 128}) {
      PrefillCase c({.lengths = {63, 64, 9, 0, 200}, .padding = {2}, .HV = 2, .layout = layout});
      const auto& p = c.problem;
      Index starts{2};  // two rows of the buffer are somebody else's
      for (std::int64_t row = 0; row < p.rows; ++row) {
        starts.push_back(starts.back() + p.length(row) / n);
      }
      const Tensor buffer(DType::kFloat32,
                          state_shape(layout, {starts.back() + 1}, p.heads, 16, 24), 3);
      const Tensor checkpoint_starts = Tensor::of_indices(DType::kInt64, starts);
      c.params.checkpoint_every = n;
      c.params.checkpoints = buffer.view();
      c.params.checkpoint_starts = checkpoint_starts.view();
      Expectation expected(buffer, "checkpoints");
      for (std::int64_t row : {0, 1, 3, 4}) {
        for (std::int64_t i = 0; i < p.length(row) / n; ++i) {
          c.expect(expected, starts[static_cast<std::size_t>(row)] + i, row, (i + 1) * n);
        }
      }
      c.run_with_final_states();
      expected.check();
    }
  }
}

TEST(GdnPrefill, CheckpointsAtListedOffsetsIntoABuffer) {
  PrefillCase c({.lengths = {100, 64, 9, 0}, .padding = {2}, .HV = 2});
  // -1 ends a list; what follows is not looked at. Row 2 is padding: its list is garbage.
  const std::vector<Index> offsets{{0, 1, 65, 100}, {5, -1, 3, 9999}, {9, 8, 7, 6}, {0, -1, 0, 0}};
  const Index counts{4, 1, 0, 1};
  Index starts{0};
  for (std::int64_t count : counts) starts.push_back(starts.back() + count);
  const Tensor buffer(DType::kBFloat16,
                      state_shape(StateLayout::kVK, {starts.back()}, c.problem.heads, 16, 24), 3);
  const Tensor checkpoint_starts = Tensor::of_indices(DType::kInt32, starts);
  const Tensor checkpoint_offsets = Tensor::of_table(DType::kInt32, offsets);
  c.params.checkpoints = buffer.view();
  c.params.checkpoint_starts = checkpoint_starts.view();
  c.params.checkpoint_offsets = checkpoint_offsets.view();
  Expectation expected(buffer, "checkpoints");
  for (std::size_t row = 0; row < offsets.size(); ++row) {
    for (std::int64_t i = 0; i < counts[row]; ++i) {
      c.expect(expected, starts[row] + i, static_cast<std::int64_t>(row),
               offsets[row][static_cast<std::size_t>(i)]);
    }
  }
  c.run_with_final_states();
  expected.check();
}

TEST(GdnPrefill, CheckpointsStraightIntoSlots) {
  for (bool listed : {false, true}) {
    for (bool update : {false, true}) {
      PrefillCase c({.lengths = {130, 64, 9, 63}, .padding = {2}, .HV = 2, .slots = 30});
      const std::vector<Index> offsets{{64, 128, -1}, {64, -1, -1}, {9, 9, 9}, {-1, -1, -1}};
      const std::vector<Index> slots{{20, 21, 9999},
                                     {-1, 9999, 9999},
                                     {9999, 9999, 9999},
                                     {9999, 9999, 9999}};  // row 1's only checkpoint is skipped
      const Tensor checkpoint_offsets = Tensor::of_table(DType::kInt64, offsets);
      const Tensor checkpoint_slots = Tensor::of_table(DType::kInt32, slots);
      if (listed) {
        c.params.checkpoint_offsets = checkpoint_offsets.view();
      } else {
        c.params.checkpoint_every = 64;
      }
      c.params.checkpoint_slots = checkpoint_slots.view();
      c.params.update_state = update;
      c.run([&](Expectation& pool) {
        c.expect(pool, 20, 0, 64);
        c.expect(pool, 21, 0, 128);
        if (update) c.problem.expect_final(pool, c.results, PrefillCase::kRelative);
      });
    }
  }
}

TEST(GdnPrefill, CheckpointSlotsAreThoseOfStateOut) {
  PrefillCase c({.lengths = {64}});
  const Tensor pool(DType::kFloat32, state_shape(StateLayout::kVK, {5}, c.problem.heads, 16, 24));
  const Tensor slots = Tensor::of_table(DType::kInt32, {Index{4}});
  c.params.state_out = pool.view();
  c.params.checkpoint_every = 64;
  c.params.checkpoint_slots = slots.view();
  Expectation expected(pool, "state_out");
  c.expect(expected, 4, 0, 64);
  c.expect(expected, c.problem.slot(0), 0, 64);
  c.run([](Expectation&) {});
  expected.check();
}

TEST(GdnPrefill, ACheckpointIsTheFinalStateOfARunOnThatPrefixToTheBit) {
  const Spec spec{.lengths = {130}};
  const Case whole(spec);
  const Tensor slots = Tensor::of_table(DType::kInt32, {Index{2, 0}});
  PrefillParams params = whole.prefill();
  params.checkpoint_every = 64;
  params.checkpoint_slots = slots.view();
  params.update_state = false;
  gdn::prefill(params);

  const Case prefix(spec);
  const Tensor offsets = Tensor::of_indices(DType::kInt32, Index{0, 64});
  const Tensor write = Tensor::of_indices(DType::kInt32, Index{2});
  params = prefix.prefill();
  params.cu_seqlens = offsets.view();
  params.write_slots = write.view();
  gdn::prefill(params);
  for_each_index(state_shape(spec.layout, {1}, whole.heads, spec.K, spec.V), [&](Index i) {
    i[0] = 2;
    ASSERT_EQ(whole.state.get(i), prefix.state.get(i));
  });
}

TEST(GdnPrefill, GroupedHeadsWithStatesAndRawGates) {
  struct Heads {
    std::int64_t Hq, Hk, HV;
  };
  for (const Heads& heads : {Heads{1, 1, 3}, Heads{2, 2, 2}, Heads{4, 1, 1}, Heads{4, 2, 2}}) {
    PrefillCase c({.lengths = {65, 3},
                   .Hq = heads.Hq,
                   .Hk = heads.Hk,
                   .HV = heads.HV,
                   .gate = gdn::Gate::Kind::kRaw,
                   .beta = gdn::Beta::Kind::kLogit});
    c.run_with_final_states();
  }
}

TEST(GdnPrefill, DecayCutoffChangesNothingInTheReference) {
  PrefillCase c({.lengths = {70}});
  c.params.decay_cutoff_log2 = 1;
  c.params.impl = "reference";
  c.run_with_final_states();
}

}  // namespace
}  // namespace hyla::gdn_test
