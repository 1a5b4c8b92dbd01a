// The arguments that several GDN operations share, and how they can be wrong.
#pragma once

#include <cmath>

#include "ops/support/gdn_wrong.h"

namespace hyla::gdn_test {

inline Spec small(Index lengths) {
  Spec spec{.lengths = std::move(lengths), .K = 8, .V = 16, .slots = 12};
  spec.gate = gdn::Gate::Kind::kRaw;
  spec.beta = gdn::Beta::Kind::kLogit;
  return spec;
}

template <class Params>
using Fields = std::vector<TensorField<Params>>;

// What all parameter structs have.
template <class P>
Fields<P> common_fields() {
  return {
      {"out", "out", Role::kOutput, [](P& p) -> TensorView& { return p.out; }, "out"},
      {"gate.value", "gate", Role::kGate, [](P& p) -> TensorView& { return p.gate.value; }, "gate"},
      {"gate.A_log", "A_log", Role::kGate, [](P& p) -> TensorView& { return p.gate.A_log; },
       "A_log"},
      {"gate.dt_bias", "dt_bias", Role::kGate, [](P& p) -> TensorView& { return p.gate.dt_bias; },
       "dt_bias"},
      {"beta.value", "beta", Role::kGate, [](P& p) -> TensorView& { return p.beta.value; }, "beta"},
      {"read_slots",
       "read_slots",
       Role::kIndex,
       [](P& p) -> TensorView& { return p.read_slots; },
       "read_columns",
       {"read_columns"},
       {1}},
      {"read_columns", "read_columns", Role::kIndex,
       [](P& p) -> TensorView& { return p.read_columns; }, "read_columns"},
      {"write_slots", "write_slots", Role::kIndex,
       [](P& p) -> TensorView& { return p.write_slots; }},
  };
}

template <class P>
void append(Fields<P>& to, Fields<P> more) {
  to.insert(to.end(), more.begin(), more.end());
}

template <class P>
Fields<P> qkv_fields() {
  return {
      {"q", "q", Role::kInput, [](P& p) -> TensorView& { return p.q; }, "q", {"k", "v"}},
      {"k", "k", Role::kInput, [](P& p) -> TensorView& { return p.k; }, "k", {"v"}},
      {"v", "v", Role::kInput, [](P& p) -> TensorView& { return p.v; }, "v", {"k"}},
  };
}

template <class P>
Fields<P> norm_fields() {
  return {
      {"norm.z", "norm.z", Role::kInput, [](P& p) -> TensorView& { return p.norm.z; },
       "norm.weight"},
      {"norm.weight", "norm.weight", Role::kGate, [](P& p) -> TensorView& { return p.norm.weight; },
       "norm.weight"},
  };
}

template <class P>
Fields<P> sequence_fields() {
  return {
      {"cu_seqlens",
       "cu_seqlens",
       Role::kIndex,
       [](P& p) -> TensorView& { return p.cu_seqlens; },
       "",
       {"read_slots", "host_lengths"}},
      {"starts",
       "starts",
       Role::kIndex,
       [](P& p) -> TensorView& { return p.starts; },
       "starts",
       {"lengths"}},
      {"lengths", "lengths", Role::kIndex, [](P& p) -> TensorView& { return p.lengths; },
       "lengths"},
  };
}

template <class P>
Fields<P> state_field(bool inner_any = false) {
  return {{"state",
           "state",
           Role::kOutput,
           [](P& p) -> TensorView& { return p.state; },
           "state",
           {},
           {0},
           inner_any}};
}

// A table of read slots whose second column is the one to read, separate write slots.
template <class P>
void add_slots(ValidCall<P>& call) {
  std::vector<Index> table;
  Index columns, write;
  for (std::int64_t row = 0; row < call.problem->rows; ++row) {
    table.push_back({0, call.problem->slot(row)});
    columns.push_back(1);
    write.push_back(8 + row);
  }
  call.params.read_slots = call.add(Tensor::of_table(DType::kInt32, table));
  call.params.read_columns = call.add(Tensor::of_indices(DType::kInt32, columns));
  call.params.write_slots = call.add(Tensor::of_indices(DType::kInt32, write));
}

template <class P>
void add_norm(ValidCall<P>& call, std::int64_t rows) {
  const Case& p = *call.problem;
  Random random(1);
  Tensor z(DType::kFloat32, {p.total, p.heads, p.spec.V}, 1), weight(DType::kFloat32, {p.spec.V});
  z.fill(random, -1, 1);
  weight.fill(random, 0, 1);
  call.params.norm.z = call.add(std::move(z)).slice(0, 0, rows);
  call.params.norm.weight = call.add(std::move(weight));
}

// Slots that are out of range, in the tables that add_slots made.
template <class P>
void add_wrong_slots(std::vector<Wrong<P>>& table) {
  const auto entry = [&](const std::string& field, TensorView P::*member, std::int64_t i,
                         std::int32_t value) {
    table.push_back({field, "slot " + std::to_string(value), {field}, [=](P& p, Context&) {
                       TensorView& view = p.*member;
                       const std::int64_t column = view.rank == 2 ? view.strides[1] : 0;
                       static_cast<std::int32_t*>(view.data)[i * view.strides[0] + column] = value;
                     }});
  };
  for (std::int32_t slot : {12, 1 << 30}) {
    entry("read_slots", &P::read_slots, 0, slot);
    entry("read_slots", &P::read_slots, 1, slot);
    entry("write_slots", &P::write_slots, 1, slot);
  }
  table.push_back({"read_columns", "without a table", {"read_columns"}, [](P& p, Context&) {
                     p.read_slots = p.read_slots.select(1, 1);
                   }});
  table.push_back({"state", "fewer slots than rows", {"state"}, [](P& p, Context&) {
                     p.read_slots = p.read_columns = p.write_slots = {};
                     p.state.shape[0] = 1;
                   }});
}

template <class P>
void add(std::vector<Wrong<P>>& table, const std::string& field, const std::string& what,
         const std::string& blamed, const std::function<void(P&)>& bend) {
  table.push_back({field, what, {blamed}, [=](P& p, Context&) { bend(p); }});
}

template <class P>
void add_wrong_norms(std::vector<Wrong<P>>& table) {
  add<P>(table, "norm.eps", "zero", "norm.eps", [](P& p) { p.norm.eps = 0; });
  add<P>(table, "norm.eps", "NaN", "norm.eps", [](P& p) { p.norm.eps = std::nan(""); });
  add<P>(table, "norm.gate", "no enumerator", "norm.gate",
         [](P& p) { p.norm.gate = static_cast<norm::Activation>(2); });
}

template <class P>
void add_wrong_row_heads(std::vector<Wrong<P>>& table) {
  add<P>(table, "q", "no heads", "q", [](P& p) {
    p.q.shape[p.q.rank - 2] = 0;
    p.k.shape[p.k.rank - 2] = 0;
  });
  add<P>(table, "v", "heads not a multiple", "v",
         [](P& p) { p.v.shape[p.v.rank - 2] = p.out.shape[p.out.rank - 2] = 3; });
  add<P>(table, "q", "K no multiple of 8", "q",
         [](P& p) { p.q.shape[p.q.rank - 1] = p.k.shape[p.k.rank - 1] = 4; });
  add<P>(table, "v", "V above 256", "v", [](P& p) { p.v.shape[p.v.rank - 1] = 264; });
  add<P>(table, "k", "another float type than q", "k", [](P& p) { p.k.dtype = DType::kFloat16; });
  add<P>(table, "v", "another float type than q", "v", [](P& p) { p.v.dtype = DType::kBFloat16; });
  add<P>(table, "out", "another float type than q", "out",
         [](P& p) { p.out.dtype = DType::kFloat16; });
}

}  // namespace hyla::gdn_test
