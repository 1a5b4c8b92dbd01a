#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "commands.h"
#include "output.h"
#include "suites.h"
#include "testing/compare.h"
#include "testing/device_call.h"
#include "testing/device_memory.h"
#include "testing/far_pool.h"
#include "testing/random_problem.h"
#include "testing/replay_call.h"

namespace hyla::tool {
namespace {

using testing::Call;
using testing::CaseOptions;
using testing::Comparison;
using testing::Exact;
using testing::Judge;
using testing::ProblemSpec;

struct Options {
  std::vector<std::string> problems;
  std::string suite = "quick", json, share = "0/1";
  int seeds = 1;
  bool far = false, trace = false;
};

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

struct Result {
  std::string problem, implementation;
  Comparison worst;
};

void keep_worst(Comparison& worst, const Comparison& next) {
  if (!worst.ok) return;
  if (!next.ok || worst.tensor.empty() || next.ratio() > worst.ratio()) worst = next;
}

// Every implementation that takes a problem, on one variant of its tensors after the other.
class Checker {
 public:
  Checker(const CheckedProblem& problem, int seeds, bool trace)
      : spec_(problem.spec),
        far_(problem.far),
        seeds_(std::min(seeds, problem.most_cases)),
        trace_(trace) {}

  std::vector<Result> run() {
    const bool gpu = spec_.device == Device::Kind::kCuda;
    for (int i = 0; i <= seeds_; ++i) {
      ProblemSpec drawn = spec_;
      drawn.seed += i / 2;
      const CaseOptions options =
          i == 0   ? CaseOptions::plain()
          : i == 1 ? CaseOptions::hostile()
                   : CaseOptions::drawn(static_cast<std::uint64_t>(drawn.seed * 64 + i));
      variant_ = i == 0 ? "plain" : i == 1 ? "hostile" : fmt::format("case {}", i);
      const Call call = testing::random_call(drawn, options);
      gpu ? on_device(call) : on_host(call);
    }
    if (gpu) replayed();
    if (gpu && far_) far_pools();
    return std::move(results_);
  }

 private:
  bool wanted(const Candidate& candidate) const {
    if (!candidate.supported) return false;
    if (!spec_.impl.empty() && candidate.implementation != spec_.impl) return false;
    if (trace_) {
      fmt::print(stderr, "{} ({}) by {}\n", testing::to_string(spec_), variant_,
                 candidate.implementation);
    }
    return true;
  }

  void keep(const Candidate& candidate, Comparison comparison) {
    if (!comparison.ok) comparison.failure = variant_ + ": " + comparison.failure;
    const auto found = std::find_if(results_.begin(), results_.end(), [&](const Result& r) {
      return r.implementation == candidate.implementation;
    });
    if (found == results_.end()) {
      results_.push_back({testing::to_string(spec_), candidate.implementation, comparison});
    } else {
      keep_worst(found->worst, comparison);
    }
  }

  void on_host(const Call& call) {
    Judges judges(call);
    for (const Candidate& candidate : testing::explain(call)) {
      if (!wanted(candidate)) continue;
      Call copy = call;
      testing::run(copy, candidate.implementation);
      keep(candidate, judges.of(candidate.implementation).compare(copy));
    }
  }

  void on_device(const Call& call) {
    const Judge judge(call);
    const testing::DeviceCall device(call);
    for (const Candidate& candidate : device.explain()) {
      if (!wanted(candidate)) continue;
      device.upload(call);
      device.launch(candidate.implementation);
      keep(candidate, judge.compare(device.result()));
    }
  }

  // A graph of the call, replayed on other slots, lengths and values.
  void replayed() {
    variant_ = "replayed graph";
    CaseOptions options = CaseOptions::scattered();
    const Call call = testing::random_call(spec_, options);
    const Call next = testing::replay_call(spec_, options, call, 1);
    const Judge judge(next);
    const testing::DeviceCall device(call);
    for (const Candidate& candidate : device.explain()) {
      if (!wanted(candidate)) continue;
      const testing::cuda::Captured graph([&] { device.launch(candidate.implementation); });
      device.upload(next);
      graph.replay();
      keep(candidate, judge.compare(device.result()));
    }
  }

  void far_pools() {
    variant_ = "far pool";
    CaseOptions options = CaseOptions::scattered();
    const Call near = testing::random_call(spec_, options);
    const std::int64_t shift = testing::far_shift(near);
    if (shift == 0) throw InvalidArgument("--far", "problems with a pool", to_string(spec_));
    Call far = near;
    testing::shift_slots(far, shift);
    const Judge judge(near);
    const testing::DeviceCall device(far, {.far_slots = shift});
    for (const Candidate& candidate : device.explain()) {
      if (!wanted(candidate)) continue;
      device.upload(far);
      device.launch(candidate.implementation);
      Call result = device.result();
      testing::shift_slots(result, -shift);
      keep(candidate, judge.compare(result));
    }
  }

  ProblemSpec spec_;
  bool far_;
  int seeds_;
  bool trace_;
  std::string variant_;
  std::vector<Result> results_;
};

// Of "I/N": the problems whose number leaves the remainder I.
struct Share {
  std::size_t index = 0, count = 1;

  static Share parse(const std::string& text) {
    constexpr std::size_t kMost = 1 << 16;
    Share share;
    const char* end = text.data() + text.size();
    const auto [slash, first] = std::from_chars(text.data(), end, share.index);
    const bool split = first == std::errc() && slash != end && *slash == '/';
    const auto [rest, second] =
        split ? std::from_chars(slash + 1, end, share.count) : std::from_chars_result{};
    if (!split || second != std::errc() || rest != end || share.index >= share.count ||
        share.count > kMost) {
      throw InvalidArgument("--share", "I/N with I from 0 to N - 1", text);
    }
    return share;
  }

  template <class T>
  void take(std::vector<T>& all) const {
    std::size_t kept = 0;
    for (std::size_t i = index; i < all.size(); i += count) all[kept++] = all[i];
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(kept), all.end());
  }
};

int check(const Options& options) {
  check_writable("--json", options.json);
  const Share share = Share::parse(options.share);
  std::vector<CheckedProblem> problems =
      choose_checks(options.problems, options.suite, options.far);
  share.take(problems);
  std::size_t width = 0;
  for (const CheckedProblem& problem : problems) {
    require_implementation(problem.spec);
    width = std::max(width, testing::to_string(problem.spec).size());
  }
  testing::cuda::reuse_memory();
  std::FILE* out = table_stream(options.json);
  Table table(out, {{"problem", width},
                    {"impl", 15},
                    {"tensor", 11},
                    {"max error", 10, true},
                    {"bound", 10, true},
                    {"verdict", 6}});
  Progress progress(problems.size());
  nlohmann::json rows = nlohmann::json::array();
  int passed = 0, failed = 0, not_run = 0;
  for (const CheckedProblem& problem : problems) {
    const ProblemSpec& spec = problem.spec;
    progress.show(testing::to_string(spec));
    const std::vector<Result> results = Checker(problem, options.seeds, options.trace).run();
    progress.clear();
    progress.step();
    if (results.empty()) {
      ++not_run;
      table.row({testing::to_string(spec), spec.impl.empty() ? "none" : spec.impl, "", "", "",
                 bad(out, "refused")});
    }
    for (const Result& r : results) {
      const Comparison& c = r.worst;
      ++(c.ok ? passed : failed);
      table.row({r.problem, r.implementation, c.tensor, fmt::format("{:.2e}", c.max_error),
                 fmt::format("{:.2e}", c.bound), c.ok ? good(out, "ok") : bad(out, "FAILED")});
      if (!c.ok) fmt::print(out, "    {}\n", c.failure);
      nlohmann::json row = {{"problem", r.problem},
                            {"impl", r.implementation},
                            {"max_error", c.max_error},
                            {"bound", c.bound},
                            {"ok", c.ok},
                            {"tensor", c.tensor}};
      if (!c.ok) row["failure"] = c.failure;
      rows.push_back(row);
    }
  }
  const std::string refused = not_run > 0 ? fmt::format(", {} refused", not_run) : "";
  fmt::print(out, "\n{} passed, {} failed{}\n", passed, failed, refused);
  write_json(options.json, {{"results", rows}});
  return failed > 0 || not_run > 0 ? kCheckFailed : kGood;
}

}  // namespace

void add_check(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "check",
      "Run every implementation that this machine has on random, strided, NaN-poisoned tensors\n"
      "and compare with the float64 reference; the reference itself is compared with a second,\n"
      "independent implementation");
  auto options = std::make_shared<Options>();
  command->add_option("problems", options->problems, "operation:key=value,... (default: a suite)")
      ->type_name("PROBLEM");
  command->add_option("--suite", options->suite, "Problems to check: " + suite_names())
      ->capture_default_str()
      ->type_name("NAME");
  command->add_option("--cases", options->seeds, "Hostile variants of each problem")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  command->add_option("--json", options->json, "Write the results to FILE (- for stdout)")
      ->type_name("FILE");
  command
      ->add_option("--share", options->share, "The share I of N of the problems, for N processes")
      ->capture_default_str()
      ->type_name("I/N");
  command->add_flag("--far", options->far,
                    "CUDA: also with pools of more than 2^31 elements (the suite gpu does it where "
                    "it matters)");
  command->add_flag("--trace", options->trace, "Say on stderr what begins");
  command->footer(
      "Examples:\n"
      "  hyla check\n"
      "  hyla check gdn_decode:b=7,hq=2,hv=4,layout=kv --cases 20\n"
      "  hyla check --suite quick --json check.json");
  command->callback([options] { exit_code() = check(*options); });
}

}  // namespace hyla::tool
