// The kernel that recurrence_kernel.h gives to CUDA programs, judged like every implementation of
// gdn.recurrence.
#include "gpu/documented_recurrence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuDocumentedRecurrence = Gpu;

const std::vector<std::string> kShapes = {"k=128,v=128", "k=16,v=24,io=f32",
                                          "k=64,v=64,io=f16,state=bf16",
                                          "k=32,v=128,io=f32,state=f16"};

bool launched(const DeviceCall& gpu) {
  return launch_documented_recurrence(std::get<gdn::RecurrenceParams>(gpu.params()),
                                      gpu.context().stream.handle());
}

// Puts a tensor of the call into memory with other strides, in a dtype of its own.
void respace(Call& call, TensorView& view, const char* name, DType dtype,
             std::vector<std::int64_t> strides) {
  const TensorView from = view;
  Buffer buffer(name, dtype, {view.shape, view.shape + view.rank}, std::move(strides));
  std::vector<double> values;
  for_each_element(from, [&](std::int64_t, std::int64_t offset) {
    values.push_back(is_poison(from, offset) ? std::nan("") : load_element(from, offset));
  });
  for_each_element(buffer.view(), [&](std::int64_t i, std::int64_t offset) {
    const double value = values[static_cast<std::size_t>(i)];
    if (!std::isnan(value)) store_element(buffer.view(), offset, value);
  });
  call.buffers.push_back(std::move(buffer));
  view = call.buffers.back().view();
}

// The document has one slot a sequence, gates in the work dtype and one pair of strides for both.
Call documented_call(const std::string& problem, int seed) {
  CaseOptions options;
  options.shuffled = true;
  options.padding = (seed & 1) != 0;
  options.gaps = (seed & 2) != 0;
  Call call = random_call(parse_problem(problem + ",seed=" + std::to_string(seed)), options);
  auto& p = std::get<gdn::RecurrenceParams>(call.params);
  const std::int64_t heads = p.value_heads, tokens = p.qkv.shape[0];
  const std::vector<std::int64_t> strides = options.gaps
                                                ? std::vector<std::int64_t>{2, 2 * tokens + 3}
                                                : std::vector<std::int64_t>{heads, 1};
  respace(call, p.gate.value, "gate", p.qkv.dtype, strides);
  respace(call, p.beta.value, "beta", p.qkv.dtype, strides);
  return call;
}

// first_slot is not among the document's arguments.
bool expressible(const Call& call) { return first_slot(call) == 0; }

void check(const Call& call, const std::string& problem) {
  const DeviceCall gpu(call);
  ASSERT_TRUE(launched(gpu)) << problem;
  const Comparison comparison = Judge(call).compare(gpu.result());
  EXPECT_TRUE(comparison.ok) << problem << ": " << comparison.failure << " (" << comparison.tensor
                             << " error " << comparison.max_error << ", bound " << comparison.bound
                             << ")";
}

TEST_F(GpuDocumentedRecurrence, EveryStrideAndDtype) {
  int ran = 0;
  for (const std::string& shape : kShapes) {
    for (const char* heads : {"hq=2,hv=4", "hq=3,hv=3", "hq=1,hv=5"}) {
      for (int seed = 0; seed < 8; ++seed) {
        const std::string problem =
            std::string("gdn_recurrence:lens=5+0+1+17+2,") + heads + "," + shape;
        const Call call = documented_call(problem, seed);
        if (!expressible(call)) continue;
        check(call, problem + ",seed=" + std::to_string(seed));
        ++ran;
      }
    }
  }
  EXPECT_GE(ran, 48);
}

// A channel stride of three, and a state whose innermost stride is not its smallest.
TEST_F(GpuDocumentedRecurrence, InnermostStridesAreFree) {
  const std::string problem = "gdn_recurrence:lens=4+7,hq=2,hv=4,k=16,v=24,io=f32";
  Call call = documented_call(problem, 0);
  auto& p = std::get<gdn::RecurrenceParams>(call.params);
  const std::int64_t channels = p.qkv.shape[1], values = p.out.shape[1];
  respace(call, p.qkv, "qkv", p.qkv.dtype, {3 * channels + 5, 3});
  respace(call, p.out, "out", p.out.dtype, {2 * values + 1, 2});
  respace(call, p.state, "state", p.state.dtype, {4 * 24 * 50, 24 * 50, 2, 40});
  check(call, problem);
}

}  // namespace
}  // namespace hyla::testing
