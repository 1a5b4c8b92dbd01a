// Every argument of both convolutions, in every way it can be wrong.
#include "ops/support/refusal.h"

namespace hyla::tests {
namespace {

using Prefill = conv::PrefillParams;
using Update = conv::UpdateParams;

void run_prefill(const Prefill& params, const Context& context) { conv::prefill(params, context); }
void run_update(const Update& params, const Context& context) { conv::update(params, context); }

Tensor filled(DType dtype, const Sizes& shape, double value) {
  Tensor tensor(dtype, shape);
  testing::for_each_element(tensor.view(), [&](std::int64_t, std::int64_t offset) {
    testing::store_element(tensor.view(), offset, value);
  });
  return tensor;
}

Tensor table(const std::vector<Sizes>& rows) {
  Tensor tensor(DType::kInt64, {static_cast<std::int64_t>(rows.size()),
                                static_cast<std::int64_t>(rows[0].size())});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < rows[i].size(); ++j) {
      tensor.set(static_cast<double>(rows[i][j]), static_cast<std::int64_t>(i),
                 static_cast<std::int64_t>(j));
    }
  }
  return tensor;
}

Tensor mask(std::int64_t rows) {
  Tensor tensor(DType::kBool, {rows});
  for (std::int64_t i = 0; i < rows; ++i) tensor.set(1, i);
  return tensor;
}

// Two rows of 3 and 2 tokens, 2 channels, W = 4, a pool of 8 slots and 6 columns.
template <class Params>
Call<Params> ragged() {
  Call<Params> call;
  call.add("x", &Params::x, filled(DType::kBFloat16, {5, 2}, 1));
  call.add("weight", &Params::weight, filled(DType::kFloat32, {2, 4}, 1));
  call.add("out", &Params::out, filled(DType::kBFloat16, {5, 2}, 7));
  call.add("state", &Params::state, filled(DType::kFloat16, {8, 2, 6}, 1));
  call.add("bias", &Params::bias, filled(DType::kFloat16, {2}, 1));
  call.add("cu_seqlens", &Params::cu_seqlens, indices({0, 3, 5}));
  call.add("read_slots", &Params::read_slots, table({{0, 1, 2}, {3, 1, 2}}));
  call.add("read_columns", &Params::read_columns, indices({0, 0}));
  call.add("write_slots", &Params::write_slots, indices({4, 5}));
  call.add("window_offsets", &Params::window_offsets, indices({0, 1}));
  return call;
}

template <class Params>
Call<Params> by_starts() {
  Call<Params> call = ragged<Params>();
  call.params.cu_seqlens = {};
  call.add("starts", &Params::starts, indices({2, 0}));
  call.add("lengths", &Params::lengths, indices({3, 2}));
  return call;
}

template <class Params>
Call<Params> uniform() {
  Call<Params> call;
  call.add("x", &Params::x, filled(DType::kFloat32, {2, 3, 2}, 1));
  call.add("weight", &Params::weight, filled(DType::kFloat32, {2, 4}, 1));
  call.add("out", &Params::out, filled(DType::kFloat32, {2, 3, 2}, 7));
  call.add("state", &Params::state, filled(DType::kFloat32, {2, 2, 3}, 1));
  return call;
}

Call<Prefill> with_checkpoints() {
  Call<Prefill> call = ragged<Prefill>();
  call.add("has_initial_state", &Prefill::has_initial_state, mask(2));
  call.add("checkpoint_offsets", &Prefill::checkpoint_offsets, table({{1, 3}, {0, -1}}));
  call.add("checkpoint_slots", &Prefill::checkpoint_slots, table({{6, -1}, {7, 99}}));
  return call;
}

Call<Update> with_commit() {
  Call<Update> call = by_starts<Update>();
  call.params.window_offsets = {};
  call.add("commit_lengths", &Update::commit_lengths, indices({1, 2}));
  return call;
}

template <class Params>
std::vector<Field<Params>> common_fields() {
  return {
      // The first to speak of tokens and channels: the others have to agree with it.
      {"x", &Params::x, true, false, {}},
      {"weight", &Params::weight, true, false, {0}},
      {"out", &Params::out, true, true, {0, 1}},
      {"state", &Params::state, std::is_same_v<Params, Update>, true, {1}},
      {"bias", &Params::bias, false, false, {0}},
      {"read_slots", &Params::read_slots, false, false, {0}},
      {"read_columns", &Params::read_columns, true, false, {0}},  // beside a table
      {"write_slots", &Params::write_slots, false, false, {0}},
  };
}

template <class Params>
std::vector<Field<Params>> ragged_fields() {
  std::vector<Field<Params>> fields = common_fields<Params>();
  fields.push_back({"cu_seqlens", &Params::cu_seqlens, false, false, {}});
  fields.push_back({"window_offsets", &Params::window_offsets, false, false, {0}});
  return fields;
}

TEST(ConvValidation, TheCallsToSpoilAreValid) {
  // Otherwise the tests below would see errors of their own making.
  for (auto make : {ragged<Prefill>, by_starts<Prefill>, uniform<Prefill>, with_checkpoints}) {
    Call<Prefill> call = make();
    EXPECT_NO_THROW(conv::prefill(call.params));
    EXPECT_NO_THROW(explain(call.params));
  }
  for (auto make : {ragged<Update>, by_starts<Update>, uniform<Update>, with_commit}) {
    Call<Update> call = make();
    EXPECT_NO_THROW(conv::update(call.params));
    EXPECT_NO_THROW(explain(call.params));
  }
}

TEST(ConvValidation, EveryFieldOfPrefill) {
  std::vector<Field<Prefill>> fields = ragged_fields<Prefill>();
  fields.push_back({"has_initial_state", &Prefill::has_initial_state, false, false, {0}});
  fields.push_back({"checkpoint_offsets", &Prefill::checkpoint_offsets, false, false, {0}});
  fields.push_back({"checkpoint_slots", &Prefill::checkpoint_slots, true, false, {0, 1}});
  expect_each_field_checked(with_checkpoints, fields, run_prefill);
  expect_each_field_checked(by_starts<Prefill>,
                            std::vector<Field<Prefill>>{
                                {"starts", &Prefill::starts, true, false, {}},
                                {"lengths", &Prefill::lengths, true, false, {0}},
                            },
                            run_prefill);
}

TEST(ConvValidation, EveryFieldOfUpdate) {
  expect_each_field_checked(ragged<Update>, ragged_fields<Update>(), run_update);
  std::vector<Field<Update>> fields = common_fields<Update>();
  fields.push_back({"starts", &Update::starts, true, false, {}});
  fields.push_back({"lengths", &Update::lengths, true, false, {0}});
  fields.push_back({"commit_lengths", &Update::commit_lengths, false, false, {0}});
  expect_each_field_checked(with_commit, fields, run_update);
}

template <class Params>
std::vector<Mistake<Params>> common_mistakes() {
  using C = Call<Params>;
  return {
      {"out of another dtype than x", "out", [](C& c) { c.params.out.dtype = DType::kFloat16; }},
      {"one tap", "weight", [](C& c) { c.params.weight.shape[1] = 1; }},
      {"five taps", "weight",
       [](C& c) {
         c.add("five", &Params::weight, filled(DType::kFloat32, {2, 5}, 1));
       }},
      {"a window of two columns for four taps", "state", [](C& c) { c.params.state.shape[2] = 2; }},
      {"starts beside cu_seqlens", "starts",
       [](C& c) {
         c.add("starts", &Params::starts, indices({0, 3}));
       }},
      {"lengths beside cu_seqlens", "lengths",
       [](C& c) {
         c.add("lengths", &Params::lengths, indices({3, 2}));
       }},
      {"lengths without starts", "starts",
       [](C& c) {
         c.params.cu_seqlens = {};
         c.add("lengths", &Params::lengths, indices({3, 2}));
       }},
      {"starts without lengths", "lengths",
       [](C& c) {
         c.params.cu_seqlens = {};
         c.add("starts", &Params::starts, indices({0, 3}));
       }},
      {"falling offsets", "cu_seqlens", [](C& c) { c.tensors.at("cu_seqlens").set(6, 1); }},
      {"offsets past the tokens", "cu_seqlens", [](C& c) { c.tensors.at("cu_seqlens").set(6, 2); }},
      {"negative offsets", "cu_seqlens", [](C& c) { c.tensors.at("cu_seqlens").set(-1, 0); }},
      {"no offsets at all", "cu_seqlens", [](C& c) { c.params.cu_seqlens.shape[0] = 0; }},
      {"rows past the tokens", "starts",
       [](C& c) {
         c.params.cu_seqlens = {};
         c.add("starts", &Params::starts, indices({0, 4}));
         c.add("lengths", &Params::lengths, indices({3, 2}));
       }},
      {"rows that share a token", "starts",
       [](C& c) {
         c.params.cu_seqlens = {};
         c.add("starts", &Params::starts, indices({0, 2}));
         c.add("lengths", &Params::lengths, indices({3, 2}));
       }},
      {"a negative length", "lengths",
       [](C& c) {
         c.params.cu_seqlens = {};
         c.add("starts", &Params::starts, indices({0, 3}));
         c.add("lengths", &Params::lengths, indices({-1, 2}));
       }},
      {"x of rank 3 with offsets", "x",
       [](C& c) {
         c.add("cube", &Params::x, filled(DType::kBFloat16, {1, 5, 2}, 1));
       }},
      {"a read slot past the pool", "read_slots",
       [](C& c) { c.tensors.at("read_slots").set(8, 1, 0); }},
      {"a write slot past the pool", "write_slots",
       [](C& c) { c.tensors.at("write_slots").set(8, 1); }},
      {"a pool smaller than the rows, without read slots", "state",
       [](C& c) {
         c.params.read_slots = c.params.read_columns = {};
         c.params.write_slots = {};
         c.params.state.shape[0] = 1;
       }},
      {"a column without a table", "read_columns",
       [](C& c) {
         c.add("vector", &Params::read_slots, indices({0, 1}));
       }},
      {"a column without read slots", "read_columns", [](C& c) { c.params.read_slots = {}; }},
      {"a table without columns", "read_slots", [](C& c) { c.params.read_slots.shape[1] = 0; }},
      {"a negative first slot", "first_slot", [](C& c) { c.params.first_slot = -1; }},
      {"an unknown activation", "activation",
       [](C& c) { c.params.activation = static_cast<conv::Activation>(7); }},
      {"an unknown implementation", "impl", [](C& c) { c.params.impl = "fastest"; }},
      {"a negative number of threads", "context.threads", [](C& c) { c.context.threads = -1; }},
      {"out over x with other strides", "out",
       [](C& c) {
         Tensor& both =
             c.tensors.emplace("square", filled(DType::kBFloat16, {5, 10}, 1)).first->second;
         c.params.x = both.view().slice(1, 0, 2);
         c.params.out = c.params.x;
         c.params.out.strides[0] = 2;
       }},
      {"out over x with the channels in another order", "out",
       [](C& c) {
         c.params.out = c.params.x;
         c.params.out.strides[0] = 1, c.params.out.strides[1] = 5;
       }},
      {"out a row below x", "out",
       [](C& c) {
         Tensor& both =
             c.tensors.emplace("both", filled(DType::kBFloat16, {6, 2}, 1)).first->second;
         c.params.x = both.view().slice(0, 0, 5);
         c.params.out = both.view().slice(0, 1, 5);
       }},
      {"out inside the pool", "out", [](C& c) { c.params.out.data = c.params.state.data; }},
      {"the bias inside the pool", "state",
       [](C& c) {
         c.params.bias.data = c.params.state.data;
         c.params.bias.dtype = c.params.state.dtype;
       }},
      {"the weights inside out", "out",
       [](C& c) {
         c.params.weight.data = c.params.out.data;
         c.params.weight.dtype = c.params.out.dtype;
       }},
      {"indices inside the pool", "state",
       [](C& c) {
         std::memset(c.params.state.data, 0, 64);
         c.params.write_slots.data = c.params.state.data;
       }},
  };
}

TEST(ConvValidation, MistakesOfPrefill) {
  using C = Call<Prefill>;
  expect_mistakes_refused(with_checkpoints, common_mistakes<Prefill>(), run_prefill);
  const auto without_pool = [](TensorView Prefill::*only) {
    return [only](C& c) {
      Prefill kept;
      kept.x = c.params.x;
      kept.weight = c.params.weight;
      kept.out = c.params.out;
      kept.cu_seqlens = c.params.cu_seqlens;
      kept.*only = c.params.*only;
      c.params = kept;
    };
  };
  expect_mistakes_refused(
      with_checkpoints,
      std::vector<Mistake<Prefill>>{
          {"flat tokens without sequences", "cu_seqlens", [](C& c) { c.params.cu_seqlens = {}; }},
          {"checkpoint slots without offsets", "checkpoint_slots",
           [](C& c) { c.params.checkpoint_offsets = {}; }},
          {"checkpoints that do not rise", "checkpoint_offsets",
           [](C& c) { c.tensors.at("checkpoint_offsets").set(1, 0, 1); }},
          {"a checkpoint past the sequence", "checkpoint_offsets",
           [](C& c) { c.tensors.at("checkpoint_offsets").set(3, 1, 0); }},
          {"a checkpoint slot past the pool", "checkpoint_slots",
           [](C& c) { c.tensors.at("checkpoint_slots").set(8, 0, 0); }},
          {"read slots without a pool", "state", without_pool(&Prefill::read_slots)},
          {"read columns without a pool", "state", without_pool(&Prefill::read_columns)},
          {"write slots without a pool", "state", without_pool(&Prefill::write_slots)},
          {"window offsets without a pool", "state", without_pool(&Prefill::window_offsets)},
          {"initial states without a pool", "state", without_pool(&Prefill::has_initial_state)},
          {"checkpoints without a pool", "state", without_pool(&Prefill::checkpoint_offsets)},
          {"checkpoint slots without a pool", "state", without_pool(&Prefill::checkpoint_slots)},
          {"a negative first slot without a pool", "first_slot",
           [&](C& c) {
             without_pool (&Prefill::x)(c);
             c.params.first_slot = -1;
           }},
          {"a mask of indices", "has_initial_state",
           [](C& c) {
             c.add("mask", &Prefill::has_initial_state, indices({0, 1}));
           }},
      },
      run_prefill);
  expect_mistakes_refused(
      uniform<Prefill>,
      std::vector<Mistake<Prefill>>{
          {"x of rank 4", "x",
           [](C& c) {
             c.params.x.rank = 4;
             c.params.x.shape[3] = c.params.x.strides[3] = 1;
           }},
          {"another T in out", "out", [](C& c) { c.params.out = c.params.out.slice(1, 0, 2); }},
      },
      run_prefill);
}

TEST(ConvValidation, MistakesOfUpdate) {
  using C = Call<Update>;
  expect_mistakes_refused(ragged<Update>, common_mistakes<Update>(), run_update);
  expect_mistakes_refused(ragged<Update>,
                          std::vector<Mistake<Update>>{
                              {"commit lengths beside window offsets", "commit_lengths",
                               [](C& c) {
                                 c.add("commit", &Update::commit_lengths, indices({1, 1}));
                               }},
                              {"too few columns for the drafts of the longest row", "state",
                               [](C& c) { c.params.state.shape[2] = 4; }},
                          },
                          run_update);
  expect_mistakes_refused(with_commit,
                          std::vector<Mistake<Update>>{
                              {"more committed than there are tokens", "commit_lengths",
                               [](C& c) { c.tensors.at("commit_lengths").set(3, 1); }},
                              {"a negative commit length", "commit_lengths",
                               [](C& c) { c.tensors.at("commit_lengths").set(-1, 0); }},
                          },
                          run_update);
  expect_mistakes_refused(uniform<Update>,
                          std::vector<Mistake<Update>>{
                              {"too few columns for T drafts", "state",
                               [](C& c) {
                                 c.add("at", &Update::window_offsets, indices({0, 0}));
                               }},
                              {"another C in the pool", "state",
                               [](C& c) { c.params.state = c.params.state.slice(1, 0, 1); }},
                          },
                          run_update);
}

TEST(ConvValidation, DraftsFitExactly) {
  Call<Update> call = ragged<Update>();
  call.params.state.shape[2] = 5;  // W-2+T = 2 + 3
  EXPECT_NO_THROW(conv::update(call.params));
}

TEST(ConvValidation, OutMayBeASliceBesideX) {
  // Both in one packed projection, [tokens, x | out]: no shared element, no error.
  const Tensor packed = filled(DType::kFloat32, {5, 4}, 1);
  const Tensor weight = filled(DType::kFloat32, {2, 4}, 1), rows = indices({0, 5});
  conv::prefill({.x = packed.view().slice(1, 0, 2),
                 .weight = weight.view(),
                 .out = packed.view().slice(1, 2, 2),
                 .cu_seqlens = rows.view(),
                 .activation = conv::Activation::kNone});
  for (std::int64_t t = 0; t < 5; ++t) {
    EXPECT_EQ(packed.get(t, 0), 1);
    EXPECT_EQ(packed.get(t, 3), static_cast<double>(std::min<std::int64_t>(t + 1, 4)));
  }
}

}  // namespace
}  // namespace hyla::tests
