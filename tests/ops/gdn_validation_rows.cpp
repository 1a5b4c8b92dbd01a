// Every argument of gdn::decode and gdn::mtp, wrong in every way the tables know.
#include <gtest/gtest.h>

#include "ops/support/gdn_fields.h"

namespace hyla::gdn_test {
namespace {

using gdn::DecodeParams;
using gdn::MtpParams;

template <class P>
Fields<P> row_fields() {
  Fields<P> fields = qkv_fields<P>();
  append(fields, common_fields<P>());
  append(fields, state_field<P>());
  append(fields, norm_fields<P>());
  return fields;
}

ValidCall<DecodeParams> decode_call() {
  ValidCall<DecodeParams> call(small({1, 1}));
  call.params = call.problem->decode();
  add_slots(call);
  add_norm(call, call.problem->rows);
  return call;
}

TEST(GdnValidation, Decode) {
  using P = DecodeParams;
  ValidCall<P> call = decode_call();
  std::vector<Wrong<P>> table = generic_wrongs(call, row_fields<P>());
  add_wrong_contexts(table, "q");
  add_wrong_numbers(table);
  add_wrong_slots(table);
  add_wrong_norms(table);
  add_wrong_row_heads(table);
  add<P>(table, "q", "two tokens a row", "q", [](P& p) {
    p.q = p.q.split(0, 2);  // [1, 2, H, K]
  });
  add<P>(table, "v", "without the token dimension of q", "v", [](P& p) {
    p.q = p.q.split(0, 1);
    p.k = p.k.split(0, 1);
  });

  const std::function<ValidCall<P>()> make = decode_call;
  Names covered =
      expect_refusals<P>(make, table, [](const P& p, const Context& c) { gdn::decode(p, c); });
  RecordProperty("wrong_calls", static_cast<int>(table.size()));

  // A new field breaks this binding: add it here, to the list and to the table.
  [[maybe_unused]] const auto& [q, k, v, state, out, gate, beta, read_slots, read_columns,
                                write_slots, first_slot, layout, scale, l2norm, l2norm_eps, norm,
                                impl] = call.params;
  [[maybe_unused]] const auto& [gate_kind, gate_value, A_log, dt_bias] = gate;
  [[maybe_unused]] const auto& [beta_kind, beta_value] = beta;
  [[maybe_unused]] const auto& [z, weight, eps, activation] = norm;
  const Names fields{"q",
                     "k",
                     "v",
                     "state",
                     "out",
                     "gate.kind",
                     "gate.value",
                     "gate.A_log",
                     "gate.dt_bias",
                     "beta.kind",
                     "beta.value",
                     "read_slots",
                     "read_columns",
                     "write_slots",
                     "first_slot",
                     "layout",
                     "scale",
                     "l2norm_eps",
                     "norm.z",
                     "norm.weight",
                     "norm.eps",
                     "norm.gate",
                     "impl",
                     "context"};  // l2norm: both legal
  EXPECT_EQ(covered, fields);
}

// Ragged, with the state after every token and committed lengths.
ValidCall<MtpParams> mtp_with_states_out() {
  ValidCall<MtpParams> call(small({3, 2}));
  call.params = call.problem->mtp();
  const Case& p = *call.problem;
  add_slots(call);
  add_norm(call, p.total);
  call.params.states_out = call.add(
      Tensor(DType::kFloat32, state_shape(p.spec.layout, {2, 3}, p.heads, p.spec.K, p.spec.V), 1));
  call.params.commit_lengths = call.add(Tensor::of_indices(DType::kInt32, Index{1, 2}));
  return call;
}

// Rows by starts and lengths, with step slots.
ValidCall<MtpParams> mtp_with_step_slots() {
  ValidCall<MtpParams> call(small({3, 2}));
  call.params = call.problem->mtp();
  add_slots(call);
  add_norm(call, call.problem->total);
  call.params.cu_seqlens = {};
  call.params.starts = call.problem->starts.view();
  call.params.lengths = call.problem->lengths.view();
  call.params.step_slots =
      call.add(Tensor::of_table(DType::kInt32, {Index{4, 5, 6}, Index{7, 10, 9999}}));
  return call;
}

ValidCall<MtpParams> uniform_mtp() {
  ValidCall<MtpParams> call(small({2, 2}));
  call.params = call.problem->uniform();
  add_slots(call);
  return call;
}

Fields<MtpParams> mtp_fields() {
  using P = MtpParams;
  Fields<P> fields = row_fields<P>();
  append(fields, sequence_fields<P>());
  append(fields, Fields<P>{
                     {"states_out",
                      "states_out",
                      Role::kOutput,
                      [](P& p) -> TensorView& { return p.states_out; },
                      "",
                      {},
                      {0, 1}},
                     {"step_slots",
                      "step_slots",
                      Role::kIndex,
                      [](P& p) -> TensorView& { return p.step_slots; },
                      "",
                      {},
                      {1}},
                     {"commit_lengths", "commit_lengths", Role::kIndex,
                      [](P& p) -> TensorView& { return p.commit_lengths; }},
                 });
  return fields;
}

void set_int32(const TensorView& view, std::int64_t i, std::int32_t value) {
  static_cast<std::int32_t*>(view.data)[i * view.strides[0]] = value;
}

void add_wrong_state_options(std::vector<Wrong<MtpParams>>& table) {
  using P = MtpParams;
  add<P>(table, "update_state", "not said", "update_state", [](P& p) { p.update_state.reset(); });
  add<P>(table, "write_slots", "without update_state", "write_slots",
         [](P& p) { p.update_state = false; });
  add<P>(table, "commit_lengths", "without update_state", "commit_lengths", [](P& p) {
    p.update_state = false;
    p.write_slots = {};
  });
  add<P>(table, "states_out", "beside step_slots", "states_out",
         [](P& p) { p.step_slots = p.read_slots; });
  add<P>(table, "states_out", "too few rows", "states_out",
         [](P& p) { p.states_out.shape[0] = 1; });
  add<P>(table, "states_out", "too few tokens", "states_out",
         [](P& p) { p.states_out.shape[1] = 2; });
  for (std::int32_t wrong : {-1, 4}) {
    add<P>(table, "commit_lengths", "outside the row", "commit_lengths",
           [=](P& p) { set_int32(p.commit_lengths, 0, wrong); });
  }
  add<P>(table, "cu_seqlens", "falling", "cu_seqlens", [](P& p) { set_int32(p.cu_seqlens, 1, 6); });
  add<P>(table, "cu_seqlens", "negative", "cu_seqlens",
         [](P& p) { set_int32(p.cu_seqlens, 0, -1); });
  add<P>(table, "cu_seqlens", "past the tokens", "cu_seqlens",
         [](P& p) { set_int32(p.cu_seqlens, 2, 100); });
  add<P>(table, "cu_seqlens", "no offset at all", "cu_seqlens",
         [](P& p) { p.cu_seqlens.shape[0] = 0; });
  add<P>(table, "cu_seqlens", "missing for ragged tensors", "q", [](P& p) { p.cu_seqlens = {}; });
  add<P>(table, "starts", "beside cu_seqlens", "starts", [](P& p) { p.starts = p.write_slots; });
  add<P>(table, "lengths", "beside cu_seqlens", "lengths", [](P& p) { p.lengths = p.write_slots; });
}

void add_wrong_step_options(std::vector<Wrong<MtpParams>>& table) {
  using P = MtpParams;
  add<P>(table, "update_state", "off with step_slots", "update_state", [](P& p) {
    p.update_state = false;
    p.write_slots = {};
  });
  add<P>(table, "commit_lengths", "with step_slots and nowhere to write", "commit_lengths",
         [](P& p) {
           p.commit_lengths = p.lengths;
           p.write_slots = {};
         });
  add<P>(table, "step_slots", "too few columns", "step_slots",
         [](P& p) { p.step_slots.shape[1] = 2; });
  add<P>(table, "step_slots", "past the pool", "step_slots",
         [](P& p) { set_int32(p.step_slots, 1, 12); });
  add<P>(table, "starts", "negative", "starts", [](P& p) { set_int32(p.starts, 0, -1); });
  add<P>(table, "starts", "past the tokens", "starts", [](P& p) { set_int32(p.starts, 0, 6); });
  add<P>(table, "starts", "a shared token", "starts", [](P& p) { set_int32(p.starts, 1, 2); });
  add<P>(table, "lengths", "negative", "lengths", [](P& p) { set_int32(p.lengths, 1, -1); });
  add<P>(table, "lengths", "past the tokens", "starts",
         [](P& p) { set_int32(p.lengths, 1, 1 << 30); });
}

TEST(GdnValidation, Mtp) {
  using P = MtpParams;
  Names covered;
  std::size_t count = 0;
  const auto check = [&](const std::function<ValidCall<P>()>& make,
                         const std::function<void(std::vector<Wrong<P>>&)>& more) {
    ValidCall<P> call = make();
    std::vector<Wrong<P>> table = generic_wrongs(call, mtp_fields());
    add_wrong_contexts(table, "q");
    add_wrong_numbers(table);
    add_wrong_slots(table);
    add_wrong_row_heads(table);
    more(table);
    covered.merge(
        expect_refusals<P>(make, table, [](const P& p, const Context& c) { gdn::mtp(p, c); }));
    count += table.size();
  };
  check(mtp_with_states_out, [](auto& table) {
    add_wrong_norms(table);
    add_wrong_state_options(table);
  });
  check(mtp_with_step_slots, add_wrong_step_options);
  check(uniform_mtp, [](auto&) {});
  RecordProperty("wrong_calls", static_cast<int>(count));

  const P params;
  [[maybe_unused]] const auto& [q, k, v, state, out, update_state, gate, beta, read_slots,
                                read_columns, write_slots, first_slot, cu_seqlens, starts, lengths,
                                states_out, step_slots, commit_lengths, layout, scale, l2norm,
                                l2norm_eps, norm, impl] = params;
  const Names fields{"q",           "k",
                     "v",           "state",
                     "out",         "update_state",
                     "gate.kind",   "gate.value",
                     "gate.A_log",  "gate.dt_bias",
                     "beta.kind",   "beta.value",
                     "read_slots",  "read_columns",
                     "write_slots", "first_slot",
                     "cu_seqlens",  "starts",
                     "lengths",     "states_out",
                     "step_slots",  "commit_lengths",
                     "layout",      "scale",
                     "l2norm_eps",  "norm.z",
                     "norm.weight", "norm.eps",
                     "norm.gate",   "impl",
                     "context"};
  EXPECT_EQ(covered, fields);
}

}  // namespace
}  // namespace hyla::gdn_test
