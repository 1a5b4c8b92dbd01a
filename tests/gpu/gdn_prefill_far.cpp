// Prefill with more than 2^31 elements from its first token to its last: a few tokens, each far
// from the next, with nothing but NaN between them. A 32-bit offset anywhere reads poison, or
// leaves an output unwritten.
#include <gtest/gtest.h>

#include <string>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuPrefillFar = Gpu;

constexpr std::int64_t kTokens = 96;
// The last 16 tokens lie beyond 2^31 elements.
constexpr std::int64_t kApart = (std::int64_t{1} << 31) / 80 / 64 * 64 + 64;

// The tensor's tokens in device memory, kApart elements from one to the next.
struct FarTokens {
  std::size_t token_bytes, apart_bytes;
  cuda::Memory memory;

  explicit FarTokens(const TensorView& view)
      : token_bytes(static_cast<std::size_t>(view.shape[1] * view.shape[2]) * size_of(view.dtype)),
        apart_bytes(static_cast<std::size_t>(kApart) * size_of(view.dtype)),
        memory(cuda::allocate(kTokens * apart_bytes)) {
    cuda::fill(memory.get(), 0xff, kTokens * apart_bytes);  // NaN
  }

  void* at(std::int64_t token) const {
    return static_cast<std::byte*>(memory.get()) + static_cast<std::size_t>(token) * apart_bytes;
  }
  void upload(const TensorView& from) const {
    for (std::int64_t t = 0; t < kTokens; ++t) {
      cuda::upload(at(t), from.select(0, t).data, token_bytes);
    }
  }
  void download(const TensorView& to) const {
    for (std::int64_t t = 0; t < kTokens; ++t) {
      cuda::download(to.select(0, t).data, at(t), token_bytes);
    }
  }
  void place(TensorView& view) const {
    view.data = memory.get();
    view.strides[0] = kApart;
  }
};

gdn::PrefillParams& params(Call& call) { return std::get<gdn::PrefillParams>(call.params); }

void check_far(const std::string& problem) {
  Call near = random_call(parse_problem("gdn_prefill:lens=80+16," + problem));
  const gdn::PrefillParams& of = params(near);
  ASSERT_EQ(of.q.shape[0], kTokens);
  const Judge judge(near);
  const FarTokens q(of.q), k(of.k), v(of.v), out(of.out);
  q.upload(of.q), k.upload(of.k), v.upload(of.v);
  const DeviceCall gpu(near);
  Params far = gpu.params();
  auto& p = std::get<gdn::PrefillParams>(far);
  q.place(p.q), k.place(p.k), v.place(p.v), out.place(p.out);
  const std::size_t bytes = workspace_bytes(far, gpu.context());
  const cuda::Memory workspace(cuda::allocate(bytes + 1));
  int ran = 0;
  for (const Candidate& candidate : explain(p, gpu.context())) {
    if (!candidate.supported) continue;
    gpu.upload(near);
    cuda::fill(out.memory.get(), 0xff, kTokens * out.apart_bytes);
    run(far, {workspace.get(), bytes, gpu.context().device}, gpu.context(),
        candidate.implementation);
    Call result = gpu.result();
    out.download(params(result).out);
    const Comparison comparison = judge.compare(result);
    EXPECT_TRUE(comparison.ok) << problem << " by " << candidate.implementation << ": "
                               << comparison.failure;
    ++ran;
  }
  EXPECT_GT(ran, 0) << problem;
}

TEST_F(GpuPrefillFar, TokensFarFromEachOther) {
  for (const char* problem : {"hq=1,hv=2,seed=1", "hq=1,hv=2,norm=1,io=f16,seed=2",
                              "hq=1,hv=1,k=64,v=64,seed=3", "hq=1,hv=1,k=256,v=128,seed=4",
                              "hq=1,hv=1,k=64,v=40,io=f32,seed=5", "hq=1,hv=1,k=72,v=40,seed=6"}) {
    check_far(problem);
  }
}

// A list that claims more columns than there is memory in the world.
TEST_F(GpuPrefillFar, AListOfOneNumberAgainAndAgain) {
  for (const char* problem :
       {"hq=1,hv=2", "hq=1,hv=1,k=64,v=64", "hq=1,hv=1,k=256,v=64", "hq=1,hv=1,io=f32"}) {
    Call call =
        random_call(parse_problem(std::string("gdn_prefill:lens=130,checkpoint=128,") + problem));
    gdn::PrefillParams& p = params(call);
    p.checkpoint_every = 0;
    call.buffers.emplace_back("checkpoint_offsets", DType::kInt32, std::vector<std::int64_t>{1});
    call.buffers.back().set(0, 77);
    p.checkpoint_offsets = call.buffers.back().view();
    p.checkpoint_offsets.rank = 2;
    p.checkpoint_offsets.shape[1] = 1;
    p.checkpoint_offsets.strides[0] = p.checkpoint_offsets.strides[1] = 0;
    const Judge judge(call);
    const DeviceCall gpu(call);
    Params endless = gpu.params();
    std::get<gdn::PrefillParams>(endless).checkpoint_offsets.shape[1] = std::int64_t{1} << 40;
    const std::size_t bytes = workspace_bytes(endless, gpu.context());
    const cuda::Memory workspace(cuda::allocate(bytes + 1));
    int ran = 0;
    for (const Candidate& candidate :
         explain(std::get<gdn::PrefillParams>(endless), gpu.context())) {
      if (!candidate.supported) continue;
      gpu.upload(call);
      run(endless, {workspace.get(), bytes, gpu.context().device}, gpu.context(),
          candidate.implementation);
      const Comparison comparison = judge.compare(gpu.result());
      EXPECT_TRUE(comparison.ok) << problem << " by " << candidate.implementation << ": "
                                 << comparison.failure;
      ++ran;
    }
    EXPECT_GT(ran, 0) << problem;
  }
}

}  // namespace
}  // namespace hyla::testing
