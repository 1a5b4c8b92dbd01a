// What every GPU test does: run all CUDA implementations that take a problem and judge them by the
// reference.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "testing/compare.h"
#include "testing/device_call.h"
#include "testing/device_memory.h"
#include "testing/random_problem.h"
#include "testing/replay_call.h"

namespace hyla::testing {

inline bool has_gpu() {
  for (const DeviceInfo& info : devices()) {
    if (info.compute_capability == 90) return true;
  }
  return false;
}

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no Hopper GPU here";
    cuda::reuse_memory();
  }
};

// Tests that take long are cut by a part of the problem string, so that they can run side by side.
class GpuParts : public Gpu, public ::testing::WithParamInterface<std::string> {};

// Every implementation that takes the call must agree with the reference. Returns how many there
// were.
inline int check_call(const std::string& problem, const Call& call) {
  const Judge judge(call);
  int ran = 0;
  const DeviceCall gpu(call);
  for (const Candidate& candidate : gpu.explain()) {
    if (!candidate.supported) continue;
    gpu.upload(call);
    gpu.launch(candidate.implementation);
    const Comparison comparison = judge.compare(gpu.result());
    EXPECT_TRUE(comparison.ok) << problem << " by " << candidate.implementation << ": "
                               << comparison.failure << " (" << comparison.tensor << " error "
                               << comparison.max_error << ", bound " << comparison.bound << ")";
    ++ran;
  }
  EXPECT_GT(ran, 0) << problem;
  return ran;
}

// Options in turns, so that neighbours in a loop differ.
inline CaseOptions options_in_turn(std::uint64_t seed) {
  CaseOptions options;
  options.shuffled = seed % 2 != 0;
  options.starts = seed % 3 == 0;
  options.extras = seed % 4 == 0;
  options.wide_indices = seed % 5 == 0;
  return options;
}

inline int check_all(const std::string& problem, const CaseOptions& options) {
  return check_call(problem, random_call(parse_problem(problem), options));
}

// Captures the call once and replays it on other slots, lengths and values of the same problem.
inline void check_replays(const std::string& problem, const CaseOptions& options) {
  const ProblemSpec spec = parse_problem(problem);
  const Call first = random_call(spec, options);
  const DeviceCall gpu(first);
  const cuda::Captured graph([&] { gpu.launch(""); });
  for (int replay = 1; replay <= 3; ++replay) {
    const Call next = replay_call(spec, options, first, replay);
    gpu.upload(next);
    graph.replay();
    const Comparison comparison = Judge(next).compare(gpu.result());
    EXPECT_TRUE(comparison.ok) << problem << ", replay " << replay << ": " << comparison.failure;
  }
}

inline void expect_same_bits(const Call& first, const Call& again, const std::string& what) {
  for (std::size_t i = 0; i < first.buffers.size(); ++i) {
    const Buffer& a = first.buffers[i];
    EXPECT_TRUE(std::equal(a.data(), a.data() + a.data_bytes(), again.buffers[i].data()))
        << what << " " << a.name();
  }
}

// The same call gives the same bits.
inline void check_repeats(const std::string& problem) {
  const Call call = random_call(parse_problem(problem));
  const DeviceCall gpu(call);
  gpu.launch("");
  const Call first = gpu.result();
  for (int repeat = 0; repeat < 5; ++repeat) {
    gpu.upload(call);
    gpu.launch("");
    expect_same_bits(first, gpu.result(), problem);
  }
}

}  // namespace hyla::testing
