// Every argument of gdn::prefill and gdn::recurrence, wrong in every way the tables know.
#include <gtest/gtest.h>

#include "ops/support/gdn_fields.h"

namespace hyla::gdn_test {
namespace {

using gdn::PrefillParams;
using gdn::RecurrenceParams;

template <class T>
void set(const TensorView& view, std::int64_t i, T value) {
  ASSERT_EQ(view.dtype, dtype_of<T>);
  static_cast<T*>(view.data)[i * view.strides[0]] = value;
}

// In place, with checkpoints every 64 tokens into a buffer.
ValidCall<PrefillParams> prefill_in_place() {
  ValidCall<PrefillParams> call(small({64, 2}));
  call.params = call.problem->prefill();
  const Case& p = *call.problem;
  add_slots(call);
  call.params.has_initial_state = call.add(Tensor::of_indices(DType::kBool, Index{1, 0}));
  call.params.host_lengths = call.add(Tensor::of_indices(DType::kInt64, Index{64, 2}));
  call.params.checkpoint_every = 64;
  call.params.checkpoints = call.add(
      Tensor(DType::kFloat32, state_shape(p.spec.layout, {2}, p.heads, p.spec.K, p.spec.V), 1));
  call.params.checkpoint_starts = call.add(Tensor::of_indices(DType::kInt64, Index{0, 1, 1}));
  return call;
}

// Into another pool, rows by starts and lengths, listed checkpoints into slots.
ValidCall<PrefillParams> prefill_to_state_out() {
  ValidCall<PrefillParams> call(small({5, 2}));
  call.params = call.problem->prefill();
  const Case& p = *call.problem;
  add_slots(call);
  call.params.cu_seqlens = {};
  call.params.starts = p.starts.view();
  call.params.lengths = p.lengths.view();
  call.params.state_out = call.add(
      Tensor(DType::kFloat32, state_shape(p.spec.layout, {12}, p.heads, p.spec.K, p.spec.V), 1));
  call.params.checkpoint_offsets =
      call.add(Tensor::of_table(DType::kInt32, {Index{1, 4}, Index{0, 2}}));
  call.params.checkpoint_slots =
      call.add(Tensor::of_table(DType::kInt32, {Index{1, 2}, Index{3, 4}}));
  return call;
}

Fields<PrefillParams> prefill_fields(bool in_place) {
  using P = PrefillParams;
  Fields<P> fields = qkv_fields<P>();
  append(fields, common_fields<P>());
  append(fields, sequence_fields<P>());
  append(fields, state_field<P>());
  if (!in_place) {  // then `state` is an input, and may be absent
    fields.back().role = Role::kInput;
    fields.back().absent_blames.clear();
  } else {
    fields.back().absent_blames = "write_slots";  // which have no pool then
  }
  append(fields, Fields<P>{
                     {"state_out",
                      "state_out",
                      Role::kOutput,
                      [](P& p) -> TensorView& { return p.state_out; },
                      "",
                      {},
                      {0}},
                     {"has_initial_state", "has_initial_state", Role::kMask,
                      [](P& p) -> TensorView& { return p.has_initial_state; }},
                     {"host_lengths", "host_lengths", Role::kIndex,
                      [](P& p) -> TensorView& { return p.host_lengths; }},
                     {"checkpoint_offsets",
                      "checkpoint_offsets",
                      Role::kIndex,
                      [](P& p) -> TensorView& { return p.checkpoint_offsets; },
                      "checkpoint_slots",
                      {"checkpoint_slots"}},
                     {"checkpoints",
                      "checkpoints",
                      Role::kOutput,
                      [](P& p) -> TensorView& { return p.checkpoints; },
                      "checkpoints",
                      {},
                      {0}},
                     {"checkpoint_starts", "checkpoint_starts", Role::kIndex,
                      [](P& p) -> TensorView& { return p.checkpoint_starts; }, "checkpoint_starts"},
                     {"checkpoint_slots", "checkpoint_slots", Role::kIndex,
                      [](P& p) -> TensorView& { return p.checkpoint_slots; }, "checkpoints"},
                 });
  return fields;
}

void add_wrong_in_place(std::vector<Wrong<PrefillParams>>& table) {
  using P = PrefillParams;
  add<P>(table, "cu_seqlens", "absent", "cu_seqlens", [](P& p) { p.cu_seqlens = {}; });
  add<P>(table, "cu_seqlens", "falling", "cu_seqlens",
         [](P& p) { set<std::int32_t>(p.cu_seqlens, 1, 67); });
  add<P>(table, "cu_seqlens", "past the tokens", "cu_seqlens",
         [](P& p) { set<std::int32_t>(p.cu_seqlens, 2, 1000); });
  add<P>(table, "starts", "beside cu_seqlens", "starts", [](P& p) { p.starts = p.write_slots; });
  add<P>(table, "update_state", "off with write_slots", "write_slots",
         [](P& p) { p.update_state = false; });
  add<P>(table, "write_slots", "without a pool", "write_slots",
         [](P& p) { p.state = p.has_initial_state = {}; });
  for (std::int64_t wrong : {-64, 1, 63, 96}) {
    add<P>(table, "checkpoint_every", std::to_string(wrong), "checkpoint_every",
           [=](P& p) { p.checkpoint_every = wrong; });
  }
  add<P>(table, "max_length", "-1", "max_length", [](P& p) { p.max_length = -1; });
  for (const std::int64_t wrong : {std::int64_t{-1}, INT64_MIN}) {
    add<P>(table, "host_lengths", std::to_string(wrong), "host_lengths",
           [=](P& p) { set<std::int64_t>(p.host_lengths, 1, wrong); });
  }
  add<P>(table, "checkpoints", "without checkpoint_every", "checkpoints",
         [](P& p) { p.checkpoint_every = 0; });
  add<P>(table, "checkpoint_starts", "without checkpoint_every", "checkpoint_starts", [](P& p) {
    p.checkpoint_every = 0;
    p.checkpoints = {};
  });
  add<P>(table, "checkpoint_offsets", "beside checkpoint_every", "checkpoint_offsets",
         [](P& p) { p.checkpoint_offsets = p.read_slots; });
  add<P>(table, "checkpoint_slots", "beside a buffer", "checkpoints",
         [](P& p) { p.checkpoint_slots = p.read_slots; });
  add<P>(table, "checkpoints", "too few", "checkpoint_starts",
         [](P& p) { p.checkpoints.shape[0] = 0; });
  add<P>(table, "checkpoint_starts", "negative", "checkpoint_starts", [](P& p) {
    set<std::int64_t>(p.checkpoint_starts, 0, -1);
    set<std::int64_t>(p.checkpoint_starts, 1, 0);
  });
  add<P>(table, "checkpoint_starts", "another count than the tokens give", "checkpoint_starts",
         [](P& p) { set<std::int64_t>(p.checkpoint_starts, 2, 2); });
  add<P>(table, "decay_cutoff_log2", "zero", "decay_cutoff_log2",
         [](P& p) { p.decay_cutoff_log2 = 0; });
  add<P>(table, "decay_cutoff_log2", "NaN", "decay_cutoff_log2",
         [](P& p) { p.decay_cutoff_log2 = std::nan(""); });
}

void add_wrong_state_out(std::vector<Wrong<PrefillParams>>& table) {
  using P = PrefillParams;
  add<P>(table, "has_initial_state", "without a pool", "state", [](P& p) {
    p.has_initial_state = p.write_slots;
    p.has_initial_state.dtype = DType::kUInt8;
    p.state = {};
  });
  add<P>(table, "state_out", "fewer slots than rows", "state_out", [](P& p) {
    p.state = p.read_slots = p.read_columns = p.write_slots = {};
    p.state_out.shape[0] = 1;
  });
  add<P>(table, "checkpoint_slots", "without a pool", "state",
         [](P& p) { p.state = p.state_out = p.read_slots = p.read_columns = p.write_slots = {}; });
  add<P>(table, "checkpoint_slots", "without a list", "checkpoint_slots",
         [](P& p) { p.checkpoint_offsets = {}; });
  add<P>(table, "checkpoint_slots", "past the pool", "checkpoint_slots",
         [](P& p) { set<std::int32_t>(p.checkpoint_slots, 1, 12); });
  add<P>(table, "checkpoint_slots", "too few columns", "checkpoint_slots", [](P& p) {
    p.checkpoint_offsets = {};
    p.checkpoint_every = 64;
    p.checkpoint_slots.shape[1] = 0;
    // Row 1 claims 64 tokens, the tensors too; nothing is read before the refusal.
    set<std::int32_t>(p.lengths, 0, 0);
    p.q.shape[0] = p.k.shape[0] = p.v.shape[0] = p.out.shape[0] = 64;
    p.gate.value.shape[0] = p.beta.value.shape[0] = 64;
    set<std::int32_t>(p.starts, 1, 0);
    set<std::int32_t>(p.lengths, 1, 64);
  });
  add<P>(table, "checkpoint_offsets", "past the sequence", "checkpoint_offsets",
         [](P& p) { set<std::int32_t>(p.checkpoint_offsets, 0, 6); });
  add<P>(table, "checkpoint_offsets", "not rising", "checkpoint_offsets",
         [](P& p) { set<std::int32_t>(p.checkpoint_offsets, 0, 4); });
}

void add_wrong_prefill_heads(std::vector<Wrong<PrefillParams>>& table) {
  using P = PrefillParams;
  struct Heads {
    std::int64_t q, k, v;
    const char* blamed;
  };
  for (const Heads& h : {Heads{0, 0, 4, "q"}, Heads{2, 1, 4, "k"}, Heads{2, 2, 3, "v"},
                         Heads{2, 2, 1, "v"}, Heads{3, 2, 2, "k"}, Heads{2, 4, 4, "k"},
                         Heads{4, 2, 1, "k"}, Heads{2, 0, 0, "k"}, Heads{2, 2, 0, "v"}}) {
    add<P>(table, "q", "heads " + std::to_string(h.q) + std::to_string(h.k) + std::to_string(h.v),
           h.blamed, [=](P& p) {
             p.q.shape[1] = h.q;
             p.k.shape[1] = h.k;
             p.v.shape[1] = h.v;
           });
  }
  add<P>(table, "q", "K no multiple of 8", "q", [](P& p) { p.q.shape[2] = p.k.shape[2] = 4; });
  add<P>(table, "v", "V above 256", "v", [](P& p) { p.v.shape[2] = 264; });
  add<P>(table, "k", "another float type than q", "k", [](P& p) { p.k.dtype = DType::kFloat16; });
  add<P>(table, "out", "another float type than q", "out",
         [](P& p) { p.out.dtype = DType::kBFloat16; });
}

TEST(GdnValidation, Prefill) {
  using P = PrefillParams;
  Names covered;
  std::size_t count = 0;
  const auto check = [&](const std::function<ValidCall<P>()>& make, bool in_place,
                         const std::function<void(std::vector<Wrong<P>>&)>& more) {
    ValidCall<P> call = make();
    std::vector<Wrong<P>> table = generic_wrongs(call, prefill_fields(in_place));
    add_wrong_contexts(table, "q");
    add_wrong_numbers(table);
    if (in_place) add_wrong_slots(table);
    add_wrong_prefill_heads(table);
    more(table);
    covered.merge(expect_refusals<P>(make, table,
                                     [](const P& p, const Context& c) { gdn::prefill(p, {}, c); }));
    count += table.size();
  };
  check(prefill_in_place, true, add_wrong_in_place);
  check(prefill_to_state_out, false, add_wrong_state_out);
  RecordProperty("wrong_calls", static_cast<int>(count));

  const P params;
  [[maybe_unused]] const auto& [q, k, v, out, cu_seqlens, starts, lengths, max_length, host_lengths,
                                state, state_out, update_state, gate, beta, read_slots,
                                read_columns, write_slots, first_slot, has_initial_state,
                                checkpoint_every, checkpoint_offsets, checkpoints,
                                checkpoint_starts, checkpoint_slots, layout, scale, l2norm,
                                l2norm_eps, decay_cutoff_log2, impl] = params;
  const Names fields{"q",
                     "k",
                     "v",
                     "out",
                     "cu_seqlens",
                     "starts",
                     "lengths",
                     "max_length",
                     "host_lengths",
                     "state",
                     "state_out",
                     "update_state",
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
                     "has_initial_state",
                     "checkpoint_every",
                     "checkpoint_offsets",
                     "checkpoints",
                     "checkpoint_starts",
                     "checkpoint_slots",
                     "layout",
                     "scale",
                     "l2norm_eps",
                     "decay_cutoff_log2",
                     "impl",
                     "context"};
  EXPECT_EQ(covered, fields);
}

ValidCall<RecurrenceParams> recurrence_call(bool by_starts) {
  ValidCall<RecurrenceParams> call(small({3, 2}));
  Packed packed(*call.problem, 2, 3);
  call.params = packed.params(*call.problem);
  call.params.qkv = call.add(std::move(packed.qkv));
  call.params.out = call.add(std::move(packed.out));
  add_slots(call);
  if (by_starts) {
    call.params.cu_seqlens = {};
    call.params.starts = call.problem->starts.view();
    call.params.lengths = call.problem->lengths.view();
  }
  return call;
}

TEST(GdnValidation, Recurrence) {
  using P = RecurrenceParams;
  Fields<P> fields = common_fields<P>();
  for (auto& field : fields) field.inner_any = true;
  append(fields, state_field<P>(true));
  append(fields, sequence_fields<P>());
  append(
      fields,
      Fields<P>{
          {"qkv", "qkv", Role::kGate, [](P& p) -> TensorView& { return p.qkv; }, "qkv", {"out"}}});
  Names covered;
  std::size_t count = 0;
  for (bool by_starts : {false, true}) {
    const std::function<ValidCall<P>()> make = [=] { return recurrence_call(by_starts); };
    ValidCall<P> call = make();
    std::vector<Wrong<P>> table = generic_wrongs(call, fields);
    add_wrong_contexts(table, "qkv");
    add_wrong_numbers(table);
    add_wrong_slots(table);
    const auto size = [&](const std::string& field, std::int64_t P::*member, std::int64_t value) {
      add<P>(table, field, std::to_string(value), field, [=](P& p) { p.*member = value; });
    };
    for (std::int64_t heads : {-1, 0, 3}) size("value_heads", &P::value_heads, heads);
    size("value_heads", &P::value_heads, std::int64_t{1} << 62);
    for (std::int64_t heads : {-1, 0}) size("key_heads", &P::key_heads, heads);
    for (std::int64_t dim : {-8, 0, 7, 264}) {
      size("key_dim", &P::key_dim, dim);
      size("value_dim", &P::value_dim, dim);
    }
    add<P>(table, "key_heads", "not those of the rows", "qkv", [](P& p) { p.key_heads = 1; });
    add<P>(table, "out", "another float type than qkv", "out",
           [](P& p) { p.out.dtype = DType::kFloat16; });
    if (!by_starts) {
      add<P>(table, "cu_seqlens", "absent", "cu_seqlens", [](P& p) { p.cu_seqlens = {}; });
    }
    covered.merge(expect_refusals<P>(make, table,
                                     [](const P& p, const Context& c) { gdn::recurrence(p, c); }));
    count += table.size();
  }
  RecordProperty("wrong_calls", static_cast<int>(count));

  const P params;
  [[maybe_unused]] const auto& [qkv, state, out, key_heads, value_heads, key_dim, value_dim,
                                cu_seqlens, starts, lengths, gate, beta, read_slots, read_columns,
                                write_slots, first_slot, layout, scale, l2norm, l2norm_eps, impl] =
      params;
  const Names names{"qkv",        "state",      "out",          "key_heads",    "value_heads",
                    "key_dim",    "value_dim",  "cu_seqlens",   "starts",       "lengths",
                    "gate.kind",  "gate.value", "gate.A_log",   "gate.dt_bias", "beta.kind",
                    "beta.value", "read_slots", "read_columns", "write_slots",  "first_slot",
                    "layout",     "scale",      "l2norm_eps",   "impl",         "context"};
  EXPECT_EQ(covered, names);
}

TEST(GdnValidation, PrefillBounds) {
  const gdn::PrefillBounds valid{.max_sequences = 4,
                                 .max_tokens = 100,
                                 .query_heads = 2,
                                 .key_heads = 2,
                                 .value_heads = 4,
                                 .key_dim = 64,
                                 .value_dim = 128,
                                 .io = DType::kBFloat16,
                                 .device = {}};
  EXPECT_NO_THROW(gdn::prefill_workspace_bytes(valid));
  const auto refuses = [&](const std::string& argument,
                           const std::function<void(gdn::PrefillBounds&)>& bend) {
    gdn::PrefillBounds bounds = valid;
    bend(bounds);
    try {
      gdn::prefill_workspace_bytes(bounds);
      ADD_FAILURE() << argument << " was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), argument) << error.what();
    }
  };
  using B = gdn::PrefillBounds;
  refuses("max_sequences", [](B& b) { b.max_sequences = -1; });
  refuses("max_tokens", [](B& b) { b.max_tokens = -1; });
  refuses("query_heads", [](B& b) { b.query_heads = 0; });
  refuses("key_heads", [](B& b) { b.key_heads = -2; });
  refuses("key_heads", [](B& b) { b.key_heads = 1; });
  refuses("value_heads", [](B& b) { b.value_heads = 3; });
  refuses("key_dim", [](B& b) { b.key_dim = 12; });
  refuses("value_dim", [](B& b) { b.value_dim = 512; });
  refuses("io", [](B& b) { b.io = DType::kInt8; });
  refuses("device", [](B& b) { b.device.index = -1; });
}

}  // namespace
}  // namespace hyla::gdn_test
