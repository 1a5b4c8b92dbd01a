// Calls that must be refused: by InvalidArgument that names the culprit, before anything is
// written.
#pragma once

#include <hyla/backend.h>

#include <functional>
#include <map>
#include <string>

#include "ops/support/guarded.h"

namespace hyla::tests {

// A valid call, with the tensors that its views look into by name.
template <class Params>
struct Call {
  Params params{};
  Context context{};
  std::map<std::string, Tensor> tensors;

  void add(const char* name, TensorView Params::*field, Tensor tensor) {
    params.*field = tensors.emplace(name, std::move(tensor)).first->second.view();
  }
};

template <class Params>
struct Field {
  const char* name;
  TensorView Params::*view;
  bool required, written;
  std::vector<int> fixed_dims;  // dimensions whose size other arguments decide
};

template <class Params>
struct Mistake {
  const char* what;
  const char* culprit;
  std::function<void(Call<Params>&)> make;
};

template <class Params, class Run>
void expect_refused(Call<Params>& call, const std::string& culprit, Run&& run) {
  const std::map<std::string, Tensor> before = call.tensors;
  const auto refused = [&](auto&& attempt) {
    try {
      attempt();
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), culprit) << error.what();
      EXPECT_EQ(std::string(error.what()).rfind(culprit + ":", 0), 0u) << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "another error: " << error.what();
    }
  };
  refused([&] { run(call.params, call.context); });
  if (call.params.impl == nullptr) refused([&] { explain(call.params, call.context); });
  for (const auto& [name, tensor] : call.tensors) {
    EXPECT_TRUE(tensor.same_memory(before.at(name))) << name << " was written";
  }
}

// Every way in which a single view can be wrong by itself, tried on every field. `make` gives a
// fresh valid call.
template <class Params, class Make, class Run>
void expect_each_field_checked(Make&& make, const std::vector<Field<Params>>& fields, Run&& run) {
  for (const Field<Params>& field : fields) {
    const auto attempt = [&](const std::string& what, auto&& spoil) {
      SCOPED_TRACE(std::string(field.name) + ": " + what);
      Call<Params> call = make();
      TensorView& view = call.params.*(field.view);
      ASSERT_TRUE(view.present()) << "the valid call lacks it";
      spoil(view);
      expect_refused(call, field.name, run);
    };
    const TensorView good = make().params.*(field.view);
    const bool floats = good.dtype == DType::kFloat32 || good.dtype == DType::kBFloat16 ||
                        good.dtype == DType::kFloat16;
    if (field.required) attempt("absent", [](TensorView& view) { view = {}; });
    attempt("on another device", [](TensorView& view) { view.device = Device::cuda(0); });
    attempt("of a foreign dtype",
            [&](TensorView& view) { view.dtype = floats ? DType::kInt32 : DType::kFloat32; });
    attempt("of an 8-bit dtype", [](TensorView& view) { view.dtype = DType::kInt8; });
    attempt("null", [](TensorView& view) { view.data = nullptr; });
    if (size_of(good.dtype) > 1) {
      attempt("misaligned",
              [](TensorView& view) { view.data = static_cast<char*>(view.data) + 1; });
    }
    attempt("of rank 0", [](TensorView& view) { view.rank = 0; });
    attempt("of rank -1", [](TensorView& view) { view.rank = -1; });
    attempt("of rank 7", [](TensorView& view) { view.rank = 7; });
    attempt("of rank 4", [](TensorView& view) {
      for (int d = view.rank; d < 4; ++d) view.shape[d] = view.strides[d] = 1;
      view.rank = 4;
    });
    for (int d = 0; d < good.rank; ++d) {
      const std::string dim = " in dimension " + std::to_string(d);
      attempt("of negative size" + dim, [&](TensorView& view) { view.shape[d] = -1; });
      attempt("of negative stride" + dim, [&](TensorView& view) { view.strides[d] = -1; });
      attempt("of an endless extent" + dim,
              [&](TensorView& view) { view.shape[d] = view.strides[d] = std::int64_t{1} << 40; });
      if (field.written && good.shape[d] > 1) {
        attempt("over itself" + dim, [&](TensorView& view) { view.strides[d] = 0; });
      }
    }
    for (int d : field.fixed_dims) {
      const std::string dim = " in dimension " + std::to_string(d);
      attempt("one too long" + dim, [&](TensorView& view) { ++view.shape[d]; });
      attempt("one too short" + dim, [&](TensorView& view) { --view.shape[d]; });
    }
  }
}

template <class Params, class Make, class Run>
void expect_mistakes_refused(Make&& make, const std::vector<Mistake<Params>>& mistakes, Run&& run) {
  for (const Mistake<Params>& mistake : mistakes) {
    SCOPED_TRACE(mistake.what);
    Call<Params> call = make();
    mistake.make(call);
    expect_refused(call, mistake.culprit, run);
  }
}

}  // namespace hyla::tests
