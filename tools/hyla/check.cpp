#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "commands.h"
#include "output.h"
#include "suites.h"
#include "testing/compare.h"
#include "testing/device_call.h"
#include "testing/random_problem.h"

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
  std::string suite = "quick", json;
  int seeds = 1;
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

// A copy of the call after an implementation ran on it.
Call outcome(const ProblemSpec& spec, const Call& call, const std::string& implementation) {
  if (spec.device == Device::Kind::kCuda) {
    const testing::DeviceCall device(call);
    device.launch(implementation);
    return device.result();
  }
  Call copy = call;
  testing::run(copy, implementation);
  return copy;
}

// Every implementation that takes the problem, on friendly and on hostile tensors.
std::vector<Result> check_problem(const ProblemSpec& spec, int seeds) {
  std::vector<Result> results;
  for (int variant = 0; variant <= seeds; ++variant) {
    ProblemSpec drawn = spec;
    drawn.seed += variant / 2;
    const Call call = testing::random_call(
        drawn, variant == 0 ? CaseOptions::plain()
               : variant == 1
                   ? CaseOptions::hostile()
                   : CaseOptions::drawn(static_cast<std::uint64_t>(drawn.seed * 64 + variant)));
    Judges judges(call);
    for (const Candidate& candidate : explain(spec, call)) {
      if (!candidate.supported) continue;
      if (!spec.impl.empty() && candidate.implementation != spec.impl) continue;
      const Comparison comparison = judges.of(candidate.implementation)
                                        .compare(outcome(spec, call, candidate.implementation));
      const auto found = std::find_if(results.begin(), results.end(), [&](const Result& r) {
        return r.implementation == candidate.implementation;
      });
      if (found == results.end()) {
        results.push_back({testing::to_string(spec), candidate.implementation, comparison});
      } else {
        keep_worst(found->worst, comparison);
      }
    }
  }
  return results;
}

int check(const Options& options) {
  check_writable("--json", options.json);
  const std::vector<ProblemSpec> specs = choose_problems(options.problems, options.suite);
  std::size_t width = 0;
  for (const ProblemSpec& spec : specs) {
    require_implementation(spec);
    width = std::max(width, testing::to_string(spec).size());
  }
  std::FILE* out = table_stream(options.json);
  Table table(out, {{"problem", width},
                    {"impl", 15},
                    {"tensor", 11},
                    {"max error", 10, true},
                    {"bound", 10, true},
                    {"verdict", 6}});
  Progress progress(specs.size());
  nlohmann::json rows = nlohmann::json::array();
  int passed = 0, failed = 0, not_run = 0;
  for (const ProblemSpec& spec : specs) {
    progress.show(testing::to_string(spec));
    const std::vector<Result> results = check_problem(spec, options.seeds);
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
  command->footer(
      "Examples:\n"
      "  hyla check\n"
      "  hyla check gdn_decode:b=7,hq=2,hv=4,layout=kv --cases 20\n"
      "  hyla check --suite quick --json check.json");
  command->callback([options] { exit_code() = check(*options); });
}

}  // namespace hyla::tool
