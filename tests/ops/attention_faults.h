// Ways in which any tensor argument can be wrong, applied to an otherwise valid call.
#pragma once

#include <gtest/gtest.h>
#include <hyla/error.h>
#include <hyla/tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace attention_test {

template <class Params>
struct Argument {
  const char* name;
  std::function<hyla::TensorView&(Params&)> of;
  bool required = true;
  bool contiguous = true;  // the last dimension must be
  bool written = false;
  // Dimensions that may not shrink by one, and the argument that the message is about.
  std::vector<std::pair<int, const char*>> shrink = {};
};

template <class Params>
struct Fault {
  std::string what;
  std::string blamed;
  std::function<void(Params&)> apply;
};

template <class Params>
std::vector<Fault<Params>> tensor_faults(const std::vector<Argument<Params>>& arguments) {
  using hyla::TensorView;
  std::vector<Fault<Params>> faults;
  for (const auto& a : arguments) {
    const auto add = [&](const std::string& what, std::function<void(TensorView&)> change,
                         const char* blamed) {
      faults.push_back({std::string(a.name) + ": " + what, blamed,
                        [of = a.of, change](Params& p) { change(of(p)); }});
    };
    if (a.required)
      add(
          "absent", [](TensorView& v) { v = {}; }, a.name);
    add(
        "a dimension too many",
        [](TensorView& v) {
          v.shape[v.rank] = 1;
          v.strides[v.rank++] = 1;
        },
        a.name);
    add(
        "a dimension too few", [](TensorView& v) { --v.rank; }, a.name);
    add(
        "rank 7", [](TensorView& v) { v.rank = 7; }, a.name);
    add(
        "negative rank", [](TensorView& v) { v.rank = -1; }, a.name);
    add(
        "dtype", [](TensorView& v) { v.dtype = hyla::DType::kBool; }, a.name);
    add(
        "device", [](TensorView& v) { v.device = hyla::Device::cuda(0); }, a.name);
    add(
        "negative size", [](TensorView& v) { v.shape[0] = -1; }, a.name);
    add(
        "negative stride", [](TensorView& v) { v.strides[0] = -1; }, a.name);
    add(
        "stride of 2^62", [](TensorView& v) { v.strides[0] = std::int64_t{1} << 62; }, a.name);
    add(
        "null", [](TensorView& v) { v.data = nullptr; }, a.name);
    add(
        "size of 2^62", [](TensorView& v) { v.shape[0] = std::int64_t{1} << 62; }, a.name);
    if (a.contiguous)
      add(
          "inner stride 2", [](TensorView& v) { v.strides[v.rank - 1] = 2; }, a.name);
    if (a.written)
      add(
          "rows over each other", [](TensorView& v) { v.strides[0] = 0; }, a.name);
    for (const auto& [dim, blamed] : a.shrink) {
      add(
          "dimension " + std::to_string(dim) + " one smaller",
          [d = dim](TensorView& v) { --v.shape[d]; }, blamed);
    }
  }
  return faults;
}

// The call fails with an InvalidArgument about the right argument, and nothing has been written.
template <class Call, class Params>
void expect_refused(const Call& call, Params params, const Fault<Params>& fault,
                    const std::function<std::vector<std::vector<unsigned char>>()>& outputs) {
  SCOPED_TRACE(fault.what);
  fault.apply(params);
  const auto before = outputs();
  try {
    call(params);
    ADD_FAILURE() << "accepted";
  } catch (const hyla::InvalidArgument& error) {
    EXPECT_EQ(error.argument(), fault.blamed) << error.what();
    EXPECT_EQ(std::string(error.what()).rfind(fault.blamed + ": expected ", 0), 0u) << error.what();
    EXPECT_FALSE(error.got().empty()) << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
  }
  EXPECT_EQ(outputs(), before) << "something was written";
}

}  // namespace attention_test
