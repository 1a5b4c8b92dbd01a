// One valid call, bent in one way at a time: each must be refused with the right argument's name,
// what was expected and what came, and leave every byte as it was.
#pragma once

#include <gtest/gtest.h>
#include <hyla/backend.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ops/support/gdn_case.h"

namespace hyla::gdn_test {

// A call with everything it points to.
template <class Params>
struct ValidCall {
  explicit ValidCall(const Spec& spec) : problem(std::make_unique<Case>(spec)) {}
  std::unique_ptr<Case> problem;
  std::vector<std::unique_ptr<Tensor>> extras;
  Params params;
  Context context;

  TensorView add(Tensor tensor) {
    extras.push_back(std::make_unique<Tensor>(std::move(tensor)));
    return extras.back()->view();
  }
  std::vector<const Tensor*> tensors() const {
    const Case& p = *problem;
    std::vector<const Tensor*> all{&p.q,      &p.k,       &p.v,         &p.out,   &p.gate,
                                   &p.A_log,  &p.dt_bias, &p.beta,      &p.state, &p.cu_seqlens,
                                   &p.starts, &p.lengths, &p.read_slots};
    for (const auto& extra : extras) all.push_back(extra.get());
    std::erase_if(all, [](const Tensor* tensor) { return !tensor->view().present(); });
    return all;
  }
};

using Names = std::set<std::string>;

template <class Params>
struct Wrong {
  std::string field;  // of the params struct, or "context"
  std::string what;
  Names blamed;  // arguments that may carry the error
  std::function<void(Params&, Context&)> bend;
};

enum class Role {
  kInput,   // float, contiguous inner dimension
  kGate,    // float, any strides
  kOutput,  // as kInput, written
  kIndex,
  kMask,
};

// A tensor argument and how it can be wrong.
template <class Params>
struct TensorField {
  std::string field, argument;
  Role role;
  TensorView& (*view)(Params&);
  std::string absent_blames = {};  // empty: it may be absent
  Names shape_blames = {};         // besides the argument itself
  std::set<int> free_dims = {};    // whose size nothing else fixes
  bool inner_any = false;          // kOutput whose strides are all free
};

template <class Params>
void add_wrong_shapes(std::vector<Wrong<Params>>& table, const TensorField<Params>& f,
                      const TensorView& valid) {
  auto view = f.view;
  Names blamed = f.shape_blames;
  blamed.insert(f.argument);
  const auto add = [&](const std::string& what, const std::function<void(TensorView&)>& bend) {
    table.push_back({f.field, what, blamed, [=](Params& p, Context&) { bend(view(p)); }});
  };
  add("one dimension more", [](TensorView& v) {
    v.shape[v.rank] = v.strides[v.rank] = 1;
    ++v.rank;
  });
  add("one dimension less", [](TensorView& v) { --v.rank; });
  add("rank 7", [](TensorView& v) { v.rank = 7; });
  add("rank -1", [](TensorView& v) { v.rank = -1; });
  for (int d = 0; d < valid.rank; ++d) {
    add("negative size", [=](TensorView& v) { v.shape[d] = -1; });
    if (f.free_dims.contains(d)) continue;
    add("dimension " + std::to_string(d) + " larger", [=](TensorView& v) { ++v.shape[d]; });
    add("dimension " + std::to_string(d) + " smaller", [=](TensorView& v) { --v.shape[d]; });
  }
}

template <class Params>
void add_wrong_memory(std::vector<Wrong<Params>>& table, const TensorField<Params>& f,
                      const TensorView& valid) {
  auto view = f.view;
  const auto add = [&](const std::string& what, const std::function<void(TensorView&)>& bend) {
    table.push_back({f.field, what, {f.argument}, [=](Params& p, Context&) { bend(view(p)); }});
  };
  add("on another device", [](TensorView& v) { v.device = Device::cuda(0); });
  add("null pointer", [](TensorView& v) { v.data = nullptr; });
  if (size_of(valid.dtype) > 1) {
    add("misaligned", [](TensorView& v) { v.data = static_cast<char*>(v.data) + 1; });
  }
  add("negative stride", [](TensorView& v) { v.strides[0] = -v.strides[0]; });
  add("beyond 2^63 bytes",
      [](TensorView& v) { v.strides[0] = std::numeric_limits<std::int64_t>::max(); });
  const int last = valid.rank - 1;
  if (f.role == Role::kInput || (f.role == Role::kOutput && !f.inner_any)) {
    add("inner dimension not contiguous", [=](TensorView& v) { v.strides[last] = 2; });
  }
  if (f.role == Role::kOutput) {
    add("written through stride 0", [](TensorView& v) { v.strides[0] = 0; });
    add("written through overlapping rows", [](TensorView& v) { v.strides[0] = 1; });
  }
  const auto dtype = [&](DType wrong) {
    add(std::string("dtype ") + name_of(wrong), [=](TensorView& v) { v.dtype = wrong; });
  };
  dtype(static_cast<DType>(200));
  dtype(f.role == Role::kIndex || f.role == Role::kMask ? DType::kFloat32 : DType::kInt32);
  dtype(f.role == Role::kMask ? DType::kInt64 : DType::kInt8);
}

// All generic ways for the tensors that the valid call has.
template <class Params>
std::vector<Wrong<Params>> generic_wrongs(ValidCall<Params>& call,
                                          const std::vector<TensorField<Params>>& fields) {
  std::vector<Wrong<Params>> table;
  Names written;
  for (const auto& f : fields) {
    if (f.role == Role::kOutput) written.insert(f.argument);
  }
  for (const auto& f : fields) {
    const TensorView valid = f.view(call.params);
    if (!valid.present()) continue;
    auto view = f.view;
    if (!f.absent_blames.empty()) {
      table.push_back(
          {f.field, "absent", {f.absent_blames}, [=](Params& p, Context&) { view(p) = {}; }});
    }
    add_wrong_shapes(table, f, valid);
    add_wrong_memory(table, f, valid);
    if (f.role != Role::kOutput) continue;
    for (const auto& other : fields) {
      if (other.argument == f.argument || !other.view(call.params).present()) continue;
      auto onto = other.view;
      table.push_back({f.field, "over the memory of " + other.argument, written,
                       [=](Params& p, Context&) { view(p).data = onto(p).data; }});
    }
  }
  return table;
}

template <class Params>
void add_wrong_contexts(std::vector<Wrong<Params>>& table, const std::string& first_tensor) {
  const auto add = [&](const std::string& what, const std::string& blamed,
                       const std::function<void(Context&)>& bend) {
    table.push_back({"context", what, {blamed}, [=](Params&, Context& c) { bend(c); }});
  };
  add("negative device", "context.device", [](Context& c) { c.device.index = -1; });
  add("negative threads", "context.threads", [](Context& c) { c.threads = -1; });
  add("stream on a CPU", "context.stream", [](Context& c) { c.stream = Stream::cuda(nullptr); });
  add("no stream on a GPU", "context.stream", [](Context& c) { c.device = Device::cuda(0); });
  add("tensors elsewhere", first_tensor, [](Context& c) {
    c.device = Device::cuda(0);
    c.stream = Stream::cuda(nullptr);
  });
}

// scale, l2norm_eps, layout, first_slot, impl: in all parameter structs.
template <class Params>
void add_wrong_numbers(std::vector<Wrong<Params>>& table) {
  const auto add = [&](const std::string& field, const std::string& what,
                       const std::function<void(Params&)>& bend) {
    table.push_back({field, what, {field}, [=](Params& p, Context&) { bend(p); }});
  };
  static constexpr double kInf = std::numeric_limits<double>::infinity();
  add("scale", "infinite", [](Params& p) { p.scale = kInf; });
  add("scale", "NaN", [](Params& p) { p.scale = std::nan(""); });
  for (double eps : {0.0, -1e-6, kInf, std::nan("")}) {
    add("l2norm_eps", std::to_string(eps), [=](Params& p) {
      p.l2norm = true;
      p.l2norm_eps = eps;
    });
  }
  add("layout", "no enumerator", [](Params& p) { p.layout = static_cast<gdn::StateLayout>(7); });
  add("first_slot", "negative", [](Params& p) { p.first_slot = -1; });
  add("impl", "unknown", [](Params& p) { p.impl = "referense"; });
  add("impl", "empty", [](Params& p) { p.impl = ""; });
  const auto gate = [&](const std::string& field, const std::string& what,
                        const std::string& blamed, const std::function<void(Params&)>& bend) {
    table.push_back({field, what, {blamed}, [=](Params& p, Context&) { bend(p); }});
  };
  gate("gate.kind", "no enumerator", "gate.kind",
       [](Params& p) { p.gate.kind = static_cast<gdn::Gate::Kind>(4); });
  gate("gate.kind", "none with a value", "gate", [](Params& p) {
    p.gate.kind = gdn::Gate::Kind::kNone;
    p.gate.A_log = p.gate.dt_bias = {};
  });
  gate("gate.A_log", "beside a linear gate", "A_log",
       [](Params& p) { p.gate.kind = gdn::Gate::Kind::kLinear; });
  gate("gate.dt_bias", "beside a log gate", "dt_bias", [](Params& p) {
    p.gate.kind = gdn::Gate::Kind::kLog;
    p.gate.A_log = {};
  });
  gate("beta.kind", "no enumerator", "beta.kind",
       [](Params& p) { p.beta.kind = static_cast<gdn::Beta::Kind>(-1); });
  gate("beta.kind", "none with a value", "beta",
       [](Params& p) { p.beta.kind = gdn::Beta::Kind::kNone; });
}

template <class Params>
std::vector<Expectation> untouched(const ValidCall<Params>& call) {
  std::vector<Expectation> all;
  for (const Tensor* tensor : call.tensors()) all.emplace_back(*tensor, "a tensor");
  return all;
}

// The message of the refusal, after a look at its form; explain() must give the same.
template <class Run>
std::string refusal(const Names& blamed, Run&& run) {
  try {
    run();
    ADD_FAILURE() << "was accepted";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_TRUE(blamed.contains(error.argument())) << message;
    EXPECT_TRUE(message.starts_with(error.argument() + ": expected ")) << message;
    EXPECT_NE(message.find(", got "), std::string::npos) << message;
    EXPECT_FALSE(error.expected().empty() || error.got().empty()) << message;
    return message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "the wrong class of error: " << error.what();
  }
  return "";
}

// Runs the whole table over copies of the call; gives the fields that it covered.
template <class Params>
Names expect_refusals(const std::function<ValidCall<Params>()>& make,
                      const std::vector<Wrong<Params>>& table,
                      const std::function<void(const Params&, const Context&)>& run) {
  ValidCall<Params> call = make();
  EXPECT_NO_THROW(run(call.params, call.context)) << "the call that is to be bent is itself wrong";
  call = make();
  std::vector<Expectation> pristine = untouched(call);
  const auto unchanged = [&] {
    return std::all_of(pristine.begin(), pristine.end(),
                       [](const Expectation& e) { return e.unchanged(); });
  };
  Names covered;
  for (const Wrong<Params>& wrong : table) {
    SCOPED_TRACE(wrong.field + ": " + wrong.what);
    covered.insert(wrong.field);
    Params params = call.params;
    Context context = call.context;
    wrong.bend(params, context);
    const bool bent_contents = !unchanged();
    if (bent_contents) pristine = untouched(call);
    const std::string message = refusal(wrong.blamed, [&] { run(params, context); });
    if (wrong.field != "impl") {
      EXPECT_EQ(refusal(wrong.blamed, [&] { explain(params, context); }), message);
    }
    EXPECT_TRUE(unchanged()) << "something was written";
    if (bent_contents) {
      call = make();
      pristine = untouched(call);
    }
  }
  for (const Expectation& expectation : pristine) expectation.check();  // guard zones too
  return covered;
}

}  // namespace hyla::gdn_test
