#include "checker.h"

#include <fmt/core.h>
#include <hyla/error.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "testing/device_memory.h"
#include "testing/far_pool.h"
#include "testing/lost_slots.h"
#include "testing/random.h"
#include "testing/replay_call.h"

namespace hyla::tool {
namespace {

using testing::Call;
using testing::CaseOptions;
using testing::Comparison;
using testing::Exact;
using testing::Judge;
using testing::ProblemSpec;

constexpr const char* kReference = "reference";

// The judge of the reference is the independent algorithm; the judge of all others the reference.
class Judges {
 public:
  explicit Judges(const Call& call) : call_(call) {}
  const Judge& of(const std::string& implementation) {
    std::optional<Judge>& judge = implementation == kReference ? independent_ : reference_;
    if (!judge.has_value()) {
      judge.emplace(call_, implementation == kReference ? Exact::kIndependent : Exact::kReference);
    }
    return *judge;
  }

 private:
  const Call& call_;
  std::optional<Judge> independent_, reference_;
};

void keep_worst(Comparison& worst, const Comparison& next) {
  if (!worst.ok) return;
  if (!next.ok || worst.tensor.empty() || next.ratio() > worst.ratio()) worst = next;
}

// The name of a tensor that the two differ in.
std::string other_bits(const Call& first, const Call& again) {
  for (std::size_t i = 0; i < first.buffers.size(); ++i) {
    const testing::Buffer& a = first.buffers[i];
    if (std::memcmp(a.data(), again.buffers[i].data(), a.data_bytes()) != 0) return a.name();
  }
  return "";
}

}  // namespace

Checker::Checker(const CheckedProblem& problem, std::function<void(const std::string&)> says)
    : problem_(problem), says_(std::move(says)) {}

std::vector<Checked> Checker::run(int cases) && {
  for (int i = 0; i <= std::min(cases, problem_.most_cases); ++i) {
    ProblemSpec spec = problem_.spec;
    spec.seed += i / 2;
    const CaseOptions options =
        i == 0   ? CaseOptions::plain()
        : i == 1 ? CaseOptions::hostile()
                 : CaseOptions::drawn(static_cast<std::uint64_t>(spec.seed * 64 + i));
    variant_ = i == 0 ? "plain" : i == 1 ? "hostile" : fmt::format("case {}", i);
    const Call call = testing::random_call(spec, options);
    on_gpu() ? on_device(call) : on_host(call);
  }
  if (on_gpu()) replayed(CaseOptions::scattered());
  if (on_gpu() && problem_.far) {
    far_pools("far pool", CaseOptions::scattered());
    far_pools("hostile far pool", CaseOptions::hostile());
  }
  return std::move(results_);
}

std::vector<Checked> Checker::run_drawn(std::uint64_t number) && {
  constexpr double kReplayed = 0.3, kLost = 0.4;
  const testing::Random draw(number, "checker");
  const CaseOptions options = CaseOptions::drawn(number);
  variant_ = fmt::format("drawn {}", number);
  const Call call = testing::random_call(problem_.spec, options);
  on_gpu() ? repeated(call, draw.chance(0, kLost)) : on_host(call);
  if (on_gpu() && draw.chance(1, kReplayed)) replayed(options);
  return std::move(results_);
}

void Checker::try_all(const Candidates& candidates, const Launch& launch) {
  const ProblemSpec& spec = problem_.spec;
  for (const Candidate& candidate : candidates) {
    const std::string& name = candidate.implementation;
    if (!candidate.supported || (!spec.impl.empty() && name != spec.impl)) continue;
    says_(fmt::format("{} ({}) by {}", testing::to_string(spec), variant_, name));
    keep(name, launch(name));
  }
}

void Checker::keep(const std::string& implementation, Comparison comparison) {
  if (!comparison.ok) comparison.failure = variant_ + ": " + comparison.failure;
  const auto found = std::find_if(results_.begin(), results_.end(), [&](const Checked& r) {
    return r.implementation == implementation;
  });
  if (found == results_.end()) {
    results_.push_back({testing::to_string(problem_.spec), implementation, comparison});
  } else {
    keep_worst(found->worst, comparison);
  }
}

void Checker::on_host(const Call& call) {
  Judges judges(call);
  try_all(testing::explain(call), [&](const std::string& name) {
    Call copy = call;
    testing::run(copy, name);
    return judges.of(name).compare(copy);
  });
}

void Checker::on_device(const Call& call) {
  const Judge judge(call);
  const testing::DeviceCall device(call);
  try_all(device.explain(), [&](const std::string& name) {
    device.upload(call);
    device.launch(name);
    return judge.compare(device.result());
  });
}

// The second time its workspace holds what the first one left.
void Checker::repeated(const Call& call, bool lost) {
  const Judge judge(call);
  const Call sent = lost ? testing::lose_slots(call) : call;
  const testing::DeviceCall device(sent);
  const auto launch = [&](const std::string& name) {
    device.upload(sent);
    device.launch(name);
    Call result = device.result();
    testing::find_slots(result, sent, call);
    return result;
  };
  try_all(device.explain(), [&](const std::string& name) {
    const Call first = launch(name);
    Comparison comparison = judge.compare(first);
    const std::string differs = other_bits(first, launch(name));
    if (comparison.ok && !differs.empty()) {
      comparison.ok = false;
      comparison.failure = differs + " has other bits when the call is repeated";
    }
    return comparison;
  });
}

// A graph of the call, replayed on other slots, lengths and values.
void Checker::replayed(const CaseOptions& options) {
  variant_ += ", replayed graph";
  const Call call = testing::random_call(problem_.spec, options);
  const std::optional<Call> found = testing::find_replay_call(problem_.spec, options, call, 1);
  if (!found.has_value()) return;
  const Call& next = *found;
  const Judge judge(next);
  const testing::DeviceCall device(call);
  try_all(device.explain(), [&](const std::string& name) {
    const testing::cuda::Captured graph([&] { device.launch(name); });
    device.upload(next);
    graph.replay();
    return judge.compare(device.result());
  });
}

void Checker::far_pools(const char* variant, const CaseOptions& options) {
  variant_ = variant;
  const Call near = testing::random_call(problem_.spec, options);
  const std::int64_t shift = testing::far_shift(near);
  if (shift == 0) throw InvalidArgument("--far", "problems with a pool", to_string(problem_.spec));
  Call far = near;
  testing::shift_slots(far, shift);
  const Judge judge(near);
  const testing::DeviceCall device(far, {.far_slots = shift});
  try_all(device.explain(), [&](const std::string& name) {
    device.upload(far);
    device.launch(name);
    Call result = device.result();
    testing::shift_slots(result, -shift);
    return judge.compare(result);
  });
}

}  // namespace hyla::tool
