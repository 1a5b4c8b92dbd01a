#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>

#include "checker.h"
#include "commands.h"
#include "output.h"
#include "suites.h"
#include "testing/device_memory.h"
#include "testing/draw_problem.h"
#include "time_limit.h"

namespace hyla::tool {
namespace {

using testing::Comparison;
using testing::ProblemSpec;

struct Options {
  std::vector<std::string> problems;
  std::string suite = "quick", json, share = "0/1";
  int cases = 1;
  bool far = false, trace = false;
  double random = 0, limit = 0;
  std::uint64_t seed = 0, drawn = 0;
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

class Report {
 public:
  Report(const std::string& json, std::size_t width)
      : json_(json),
        out_(table_stream(json)),
        table_(out_, {{"problem", width},
                      {"impl", 15},
                      {"tensor", 11},
                      {"max error", 10, true},
                      {"bound", 10, true},
                      {"verdict", 6}}) {}

  void refused(const ProblemSpec& spec) {
    ++not_run_;
    table_.row({testing::to_string(spec), spec.impl.empty() ? "none" : spec.impl, "", "", "",
                bad(out_, "refused")});
  }

  void add(const Checked& r) {
    const Comparison& c = r.worst;
    ++(c.ok ? passed_ : failed_);
    table_.row({r.problem, r.implementation, c.tensor, fmt::format("{:.2e}", c.max_error),
                fmt::format("{:.2e}", c.bound), c.ok ? good(out_, "ok") : bad(out_, "FAILED")});
    if (!c.ok) fmt::print(out_, "    {}\n", c.failure);
    std::fflush(out_);  // what comes next may not end
    nlohmann::json row = {{"problem", r.problem},
                          {"impl", r.implementation},
                          {"max_error", c.max_error},
                          {"bound", c.bound},
                          {"ok", c.ok},
                          {"tensor", c.tensor}};
    if (!c.ok) row["failure"] = c.failure;
    rows_.push_back(row);
  }

  int finish(const std::string& what) const {
    const std::string refused = not_run_ > 0 ? fmt::format(", {} refused", not_run_) : "";
    fmt::print(out_, "\n{} passed, {} failed{}{}\n", passed_, failed_, refused, what);
    write_json(json_, {{"results", rows_}});
    return failed_ > 0 || not_run_ > 0 ? kCheckFailed : kGood;
  }

 private:
  std::string json_;
  std::FILE* out_;
  Table table_;
  nlohmann::json rows_ = nlohmann::json::array();
  int passed_ = 0, failed_ = 0, not_run_ = 0;
};

// Tells the time limit, and stderr where it is asked to, what begins.
class Says {
 public:
  explicit Says(const Options& options) : limit_(options.limit), trace_(options.trace) {}
  void operator()(const std::string& what) {
    limit_.begin(what);
    if (trace_) fmt::print(stderr, "{}\n", what);
  }

 private:
  TimeLimit limit_;
  bool trace_;
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
  Report report(options.json, width);
  Progress progress(problems.size());
  Says says(options);
  for (const CheckedProblem& problem : problems) {
    progress.show(testing::to_string(problem.spec));
    says(testing::to_string(problem.spec));
    Checker checker(problem, std::ref(says));
    const std::vector<Checked> results = options.drawn != 0
                                             ? std::move(checker).run_drawn(options.drawn)
                                             : std::move(checker).run(options.cases);
    progress.clear();
    progress.step();
    if (results.empty()) report.refused(problem.spec);
    for (const Checked& result : results) report.add(result);
  }
  return report.finish("");
}

// Operations with the keys that are fixed; all where none is given.
std::vector<std::string> drawn_operations(const Options& options) {
  std::vector<std::string> chosen = options.problems;
  if (chosen.empty()) {
    for (const testing::Operation operation : testing::all_operations()) {
      chosen.push_back(testing::name_of(operation) + std::string(has_gpu() ? ":device=cuda" : ""));
    }
  }
  for (const std::string& text : chosen) {
    const ProblemSpec spec = testing::parse_problem(text);
    require_device(spec);
    require_implementation(spec);
  }
  return chosen;
}

// New problems in turns, until the time is over.
int check_random(const Options& options) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kWidth = 100;
  check_writable("--json", options.json);
  const Share share = Share::parse(options.share);
  const std::vector<std::string> operations = drawn_operations(options);
  testing::cuda::reuse_memory();
  Report report(options.json, kWidth);
  Says says(options);
  const auto begin = Clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::uint64_t drawn = 0;
  int refused = 0;  // one after the other: after an error of the device nothing works any more
  for (; spent() < options.random && refused < 5; ++drawn) {
    const std::uint64_t number = (options.seed << 32) + drawn * share.count + share.index + 1;
    const std::optional<ProblemSpec> spec =
        testing::draw_problem(operations[drawn % operations.size()], number);
    if (!spec.has_value()) continue;
    const CheckedProblem problem{*spec};
    says(testing::to_string(problem.spec));
    try {
      for (const Checked& result : Checker(problem, std::ref(says)).run_drawn(number)) {
        report.add(result);
      }
      refused = 0;
    } catch (const std::exception& error) {
      Checked failed{testing::to_string(problem.spec), "", {}};
      failed.worst.ok = false;
      failed.worst.failure = fmt::format("drawn {}: {}", number, error.what());
      report.add(failed);
      ++refused;
    }
  }
  return report.finish(fmt::format(", {} problems drawn", drawn));
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
  command->add_option("--cases", options->cases, "Hostile variants of each problem")
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
  command
      ->add_option("--random", options->random,
                   "Check problems that are drawn, for so many seconds, of the operations given "
                   "(default: all; on the GPU where there is one)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0));
  command->add_option("--seed", options->seed, "Which problems --random draws")
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{0xffffffff}));
  command
      ->add_option("--drawn", options->drawn,
                   "One variant instead: that number, as a failure of --random names it")
      ->type_name("NUMBER");
  command
      ->add_option("--limit", options->limit,
                   "Fail and name the problem when an implementation takes longer (0: no limit)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0));
  command->footer(
      "Examples:\n"
      "  hyla check\n"
      "  hyla check gdn_decode:b=7,hq=2,hv=4,layout=kv --cases 20\n"
      "  hyla check --suite quick --json check.json\n"
      "  hyla check --random 60 --seed 7 --limit 20\n"
      "  hyla check --random 10 gdn_mtp gdn_prefill:k=128,v=128,device=cuda");
  command->callback(
      [options] { exit_code() = options->random > 0 ? check_random(*options) : check(*options); });
}

}  // namespace hyla::tool
