// Programmatic dependent launch: a chain of all operations that support it, each reading what the
// one before it wrote, gives the same bits as plain launches, in and out of a CUDA graph.
#include <gtest/gtest.h>
#include <hyla/conv.h>
#include <hyla/gdn.h>
#include <hyla/norm.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuProgrammaticLaunch = Gpu;

constexpr std::int64_t kRows = 7, kKeyHeads = 2, kHeads = 4, kDim = 128, kWidth = 4;
constexpr std::int64_t kKeys = 2 * kKeyHeads * kDim, kValues = kHeads * kDim;
constexpr std::int64_t kChannels = kKeys + kValues;

struct ChainOptions {
  DType state = DType::kFloat32;
  gdn::StateLayout layout = gdn::StateLayout::kVK;
  const char* impl = nullptr;  // of decode, MTP and recurrence
};

// The tensors of a small GDN layer on the device.
class Chain {
 public:
  explicit Chain(const ChainOptions& options) : options_(options) {
    x_ = tensor("x", DType::kBFloat16, {kRows, kChannels}, 1);
    mixed_ = tensor("mixed", DType::kBFloat16, {kRows, kChannels}, 0);
    z_ = tensor("z", DType::kBFloat16, {kRows, kHeads, kDim}, 1);
    norm_weight_ = tensor("norm_weight", DType::kFloat32, {kDim}, 1);
    gate_ = tensor("gate", DType::kBFloat16, {kRows, kHeads}, 1);
    beta_ = tensor("beta", DType::kBFloat16, {kRows, kHeads}, 1);
    A_log_ = tensor("A_log", DType::kFloat32, {kHeads}, 1);
    dt_bias_ = tensor("dt_bias", DType::kFloat32, {kHeads}, 1);
    filter_ = tensor("filter", DType::kBFloat16, {kChannels, kWidth}, 0.5);
    windows_ = tensor("windows", DType::kBFloat16, {kRows, kChannels, kWidth - 1}, 1);
    value_windows_ = tensor("value_windows", DType::kBFloat16, {kRows, kValues, kWidth - 1}, 1);
    for (int i = 0; i < 3; ++i) {
      states_[i] =
          tensor("state" + std::to_string(i), options.state, {kRows, kHeads, kDim, kDim}, 0.1);
    }
    for (int i = 0; i < 5; ++i) {
      outs_[i] = tensor("out" + std::to_string(i), DType::kBFloat16, {kRows, kHeads, kDim}, 0);
    }
    std::vector<std::int32_t> offsets(kRows + 1);
    for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int32_t>(i);
    cu_seqlens_ = upload("cu_seqlens", DType::kInt32, {kRows + 1}, offsets.data(),
                         offsets.size() * sizeof(std::int32_t));
    cuda::synchronize();
  }

  // Seven launches; the last writes the values that the first of the next round reads.
  void round(bool programmatic) const {
    Context context;
    context.device = Device::cuda(0);
    context.stream = cuda::stream();
    context.programmatic_launch = programmatic;
    conv::update({.x = x_, .weight = filter_, .out = mixed_, .state = windows_}, context);
    norm(mixed_.slice(1, kKeys, kValues).split(1, kDim), outs_[0], context);
    const TensorView keys = mixed_.slice(1, 0, kKeys).split(1, kDim);
    const TensorView q = keys.slice(1, 0, kKeyHeads), k = keys.slice(1, kKeyHeads, kKeyHeads);
    gdn::decode({.q = q,
                 .k = k,
                 .v = outs_[0],
                 .state = states_[0],
                 .out = outs_[1],
                 .gate = gdn::Gate::raw(gate_, A_log_, dt_bias_),
                 .beta = gdn::Beta::logit(beta_),
                 .layout = options_.layout,
                 .l2norm = true,
                 .impl = options_.impl},
                context);
    gdn::MtpParams mtp;
    mtp.q = q;
    mtp.k = k;
    mtp.v = outs_[1];
    mtp.state = states_[1];
    mtp.out = outs_[2];
    mtp.gate = gdn::Gate::raw(gate_, A_log_, dt_bias_);
    mtp.beta = gdn::Beta::logit(beta_);
    mtp.cu_seqlens = cu_seqlens_;
    mtp.layout = options_.layout;
    mtp.l2norm = true;
    mtp.update_state = true;
    mtp.impl = options_.impl;
    gdn::mtp(mtp, context);
    conv::prefill({.x = flat(outs_[2]),
                   .weight = filter_.slice(0, kKeys, kValues),
                   .out = mixed_.slice(1, kKeys, kValues),
                   .state = value_windows_,
                   .cu_seqlens = cu_seqlens_},
                  context);
    gdn::RecurrenceParams recurrence;
    recurrence.qkv = mixed_;
    recurrence.state = states_[2];
    recurrence.out = flat(outs_[3]);
    recurrence.key_heads = kKeyHeads;
    recurrence.value_heads = kHeads;
    recurrence.key_dim = recurrence.value_dim = kDim;
    recurrence.gate = gdn::Gate::raw(gate_, A_log_, dt_bias_);
    recurrence.beta = gdn::Beta::logit(beta_);
    recurrence.cu_seqlens = cu_seqlens_;
    recurrence.layout = options_.layout;
    recurrence.impl = options_.impl;
    gdn::recurrence(recurrence, context);
    norm(outs_[3], x_.slice(1, kKeys, kValues).split(1, kDim), context);
  }

  // Everything on the device, by name.
  std::map<std::string, std::vector<std::byte>> bytes() const {
    cuda::synchronize();
    std::map<std::string, std::vector<std::byte>> result;
    for (const auto& [name, memory] : memory_) {
      std::vector<std::byte>& to = result[name];
      to.resize(memory.bytes);
      cuda::download(to.data(), memory.data.get(), to.size());
    }
    return result;
  }

 private:
  struct Memory {
    cuda::Memory data;
    std::size_t bytes = 0;
  };

  static TensorView flat(const TensorView& view) {
    return TensorView::dense(view.data, view.dtype, {kRows, kValues}, view.device);
  }

  void norm(const TensorView& x, const TensorView& out, const Context& context) const {
    norm::gated_rms({.x = x, .z = z_, .weight = norm_weight_, .out = out}, context);
  }

  TensorView upload(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                    const void* from, std::size_t bytes) {
    Memory& memory = memory_[name];
    memory.data.reset(cuda::allocate(bytes));
    memory.bytes = bytes;
    cuda::upload(memory.data.get(), from, bytes);
    Buffer layout(name, dtype, std::move(shape));
    TensorView view = layout.view();
    view.data = memory.data.get();
    view.device = Device::cuda(0);
    return view;
  }

  TensorView tensor(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                    double deviation) {
    Buffer values(name, dtype, shape);
    if (deviation > 0) values.fill_normal(++seed_, 0, deviation);
    return upload(name, dtype, std::move(shape), values.data(), values.data_bytes());
  }

  ChainOptions options_;
  std::uint64_t seed_ = 0;
  std::map<std::string, Memory> memory_;
  TensorView x_, mixed_, z_, norm_weight_, gate_, beta_, A_log_, dt_bias_, filter_, windows_,
      value_windows_, cu_seqlens_, states_[3], outs_[5];
};

constexpr int kRounds = 24;

void expect_same(const Chain& plain, const Chain& programmatic, const char* what) {
  const auto want = plain.bytes(), got = programmatic.bytes();
  for (const auto& [name, bytes] : want) EXPECT_EQ(bytes, got.at(name)) << what << ": " << name;
}

void check_chain(const ChainOptions& options) {
  const Chain plain(options), launched(options), captured(options);
  const auto before = plain.bytes();
  for (int i = 0; i < kRounds; ++i) plain.round(false);
  for (int i = 0; i < kRounds; ++i) launched.round(true);
  const cuda::Captured graph([&] {
    for (int i = 0; i < kRounds / 2; ++i) captured.round(true);
  });
  graph.replay();
  graph.replay();
  const auto after = plain.bytes();
  for (const char* name : {"x", "state0", "state1", "state2", "windows", "out3"}) {
    EXPECT_NE(before.at(name), after.at(name)) << name << " did not change";
  }
  expect_same(plain, launched, "launched");
  expect_same(plain, captured, "in a graph");
}

TEST_F(GpuProgrammaticLaunch, AChainOfDependentCallsKeepsItsBits) {
  for (gdn::StateLayout layout : {gdn::StateLayout::kVK, gdn::StateLayout::kKV}) {
    for (DType state : {DType::kFloat32, DType::kBFloat16}) {
      check_chain({state, layout, nullptr});
    }
  }
  check_chain({DType::kFloat32, gdn::StateLayout::kVK, "cuda_rows"});
}

}  // namespace
}  // namespace hyla::testing
