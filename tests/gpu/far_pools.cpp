// Pools of more than 2^31 elements: the slots of a small problem at the far end of a large pool, in
// front of them nothing but NaN. A 32-bit offset anywhere reads poison or leaves a slot unwritten.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using GpuFarPools = Gpu;

bool holds_slots(std::string_view name) {
  return name == "read_slots" || name == "write_slots" || name == "step_slots" ||
         name == "checkpoint_slots";
}

// Adds `shift` to every slot number that is not null; one out of range stays out of range.
void shift_slots(Call& call, std::int64_t shift) {
  const std::int64_t first = first_slot(call);
  for (const NamedTensor& tensor : tensors(call)) {
    if (!holds_slots(tensor.name)) continue;
    for_each_element(tensor.view, [&](std::int64_t, std::int64_t offset) {
      const double slot = load_element(tensor.view, offset);
      if (slot >= static_cast<double>(first)) {
        store_element(tensor.view, offset, slot + static_cast<double>(shift));
      }
    });
  }
}

std::int64_t slot_elements(const Call& call) {
  for (const NamedTensor& tensor : tensors(call)) {
    if (tensor.name == "state") return tensor.view.strides[0];
  }
  return 0;
}

void check_far(const std::string& problem, const CaseOptions& options) {
  const Call near = random_call(parse_problem(problem), options);
  constexpr std::int64_t kBeyond = (std::int64_t{1} << 31) + (1 << 20);
  const std::int64_t shift = kBeyond / slot_elements(near) + 1;
  Call far = near;
  shift_slots(far, shift);
  const Judge judge(near);
  const DeviceCall gpu(far, {.far_slots = shift});
  int ran = 0;
  for (const Candidate& candidate : gpu.explain()) {
    if (!candidate.supported) continue;
    gpu.upload(far);
    gpu.launch(candidate.implementation);
    Call result = gpu.result();
    shift_slots(result, -shift);
    const Comparison comparison = judge.compare(result);
    EXPECT_TRUE(comparison.ok) << problem << " by " << candidate.implementation << ": "
                               << comparison.failure;
    ++ran;
  }
  EXPECT_GT(ran, 0) << problem;
}

TEST_F(GpuFarPools, EveryOperationWithAPool) {
  CaseOptions options;
  options.shuffled = options.padding = options.elsewhere = true;
  for (const char* problem :
       {"gdn_decode:b=9,hq=2,hv=4", "gdn_decode:b=9,hq=2,hv=4,layout=kv,state=bf16",
        "gdn_mtp:b=5,t=3,hq=2,hv=4", "gdn_mtp:b=5,t=8,hq=2,hv=4,layout=kv",
        "gdn_recurrence:lens=3+0+9+1,hq=2,hv=4",
        "gdn_recurrence:lens=3+0+9+1,hq=2,hv=4,layout=vk,state=bf16",
        "conv_update:b=9,hq=2,hv=4,k=64,v=64",
        "conv_update:b=9,t=3,hq=2,hv=4,k=64,v=64,drafts=3,channels_last=1",
        "conv_prefill:lens=3+0+90+1,hq=2,hv=4,k=64,v=64",
        "conv_prefill:lens=3+0+90+1,hq=2,hv=4,k=64,v=64,channels_last=1"}) {
    check_far(problem, options);
  }
}

TEST_F(GpuFarPools, HostileTensors) {
  for (const char* problem : {"gdn_decode:b=9,hq=2,hv=4,seed=1", "gdn_mtp:b=5,t=3,hq=2,hv=4,seed=2",
                              "gdn_recurrence:lens=3+0+9+1,hq=2,hv=4,seed=3",
                              "conv_update:b=9,hq=2,hv=4,k=64,v=64,seed=4",
                              "conv_prefill:lens=3+0+90+1,hq=2,hv=4,k=64,v=64,seed=5"}) {
    check_far(problem, CaseOptions::hostile());
  }
}

}  // namespace
}  // namespace hyla::testing
