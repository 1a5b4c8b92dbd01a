#include "plans.h"

#include <fmt/core.h>
#include <hyla/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <optional>

#include "commands.h"
#include "output.h"
#include "suites.h"
#include "testing/device_memory.h"
#include "testing/device_prefill.h"
#include "testing/median.h"
#include "testing/prefill_shapes.h"

namespace hyla::tool {
namespace {

using testing::ProblemSpec;

constexpr double kGoodRatio = 1.05;
// From here on a shape is near the limit or beyond it, and all its plans are timed again.
constexpr double kDoubtfulRatio = 1.03;
// Expected to take so many times as long as the chosen one: not timed.
constexpr double kHopeless = 4;
// The same of a form that its implementation would not take: neighbours of what is chosen.
constexpr double kHopelessForm = 1.3;
// Took so many times as long as the fastest so far: timed no further.
constexpr double kLost = 1.5;
constexpr double kError = 0.004;  // of a median, relative
constexpr int kLeastReplays = 5, kMostReplays = 40;
constexpr int kLeastAgain = 15;  // replays

struct PlanTime {
  std::string name;
  double expected_us = 0;
  double us = 0;                        // 0: not timed
  double first_us = 0;                  // of the first time, where it was timed again
  bool lost = false;                    // after a few replays it was clear
  std::string taken{};                  // the form that the implementation takes
  std::optional<gdn::PlanForm> form{};  // one that it would not take
  gdn::PlanLook look{}, assumed{};      // of it; the second: if only the longest were known
};

// " 2x1+": parts, blocks of value rows a CTA (cuda_relay: pieces of a part), and whether chunks are
// prepared beside the walk.
std::string suffix_of(const gdn::PlanForm& form) {
  const gdn::Walks& w = form.walks;
  return fmt::format(" {}x{}{}", w.parts, w.blocks_a_cta * w.cuts, w.beside ? "+" : "");
}

struct ShapeTimes {
  std::string problem;
  bool unknown = false;         // only the device knows the lengths of its sequences
  bool again = false;           // timed a second time
  std::vector<PlanTime> plans;  // the chosen one first

  const PlanTime& chosen() const { return plans.front(); }
  // To the fastest of all forms, or of the plans in the forms that they take.
  double ratio(bool all_forms = true) const {
    double best = chosen().us;
    for (const PlanTime& plan : plans) {
      if (plan.us > 0 && (all_forms || !plan.form)) best = std::min(best, plan.us);
    }
    return chosen().us / best;
  }
};

// Replays of one plan over all copies of a problem.
class Replays {
 public:
  Replays(const testing::DevicePrefill& problem, const PlanTime& plan)
      : graph_([&] { plan.form ? problem.launch(*plan.form) : problem.launch(plan.name); }),
        copies_(static_cast<double>(problem.copies())) {
    graph_.replay_us();  // the first one loads code and warms the clocks
  }

  void once() { times_.push_back(graph_.replay_us() / copies_); }
  int count() const { return static_cast<int>(times_.size()); }
  double median() const { return testing::median(times_); }
  bool settled(int least) const {
    if (count() < least) return false;
    double sum = 0, squares = 0;
    for (const double us : times_) sum += us;
    const double n = count(), mean = sum / n;
    for (const double us : times_) squares += (us - mean) * (us - mean);
    return count() >= kMostReplays || std::sqrt(squares / (n - 1) / n) < kError * mean;
  }

 private:
  testing::cuda::Captured graph_;
  double copies_;
  std::vector<double> times_;
};

// Plans take turns, so that a clock that changes changes all of them.
void time_plans(const testing::DevicePrefill& problem, std::vector<PlanTime>& plans, int least) {
  std::vector<std::pair<PlanTime*, std::unique_ptr<Replays>>> racing;
  for (PlanTime& plan : plans) {
    if (plan.expected_us > kHopeless * plans.front().expected_us) continue;
    plan.lost = false;
    racing.emplace_back(&plan, std::make_unique<Replays>(problem, plan));
  }
  bool settled = false;
  while (!settled) {
    settled = true;
    double best = 0;
    for (auto& [plan, replays] : racing) {
      if (plan->lost) continue;
      replays->once();
      plan->us = replays->median();
      settled = settled && replays->settled(least);
      best = best == 0 ? plan->us : std::min(best, plan->us);
    }
    for (auto& [plan, replays] : racing) {
      plan->lost = plan->lost || (replays->count() >= 2 && plan->us > kLost * best);
    }
  }
}

// Is another plan or form expected to take up to `ratio` times as long as the chosen one?
bool has_neighbour(const ProblemSpec& spec, testing::DeviceArena& arena, double ratio) {
  const testing::DevicePrefill problem(spec, arena, 1);
  std::vector<double> expected;  // the chosen one first
  for (const Candidate& candidate : problem.explain()) {
    if (candidate.expected_us > 0) expected.push_back(candidate.expected_us);
  }
  for (const gdn::PlanForm& form : problem.forms()) {
    if (!form.chosen) expected.push_back(form.walks.us);
  }
  if (expected.size() < 2) return false;
  return *std::min_element(expected.begin() + 1, expected.end()) <= ratio * expected.front();
}

ShapeTimes measure(const ProblemSpec& spec, testing::DeviceArena& arena) {
  const testing::DevicePrefill problem(spec, arena);
  ShapeTimes result;
  result.problem = testing::to_string(spec);
  result.unknown = !spec.longest && !spec.told && testing::row_lengths(spec).size() > 1;
  for (const Candidate& candidate : problem.explain()) {
    if (candidate.expected_us == 0) continue;
    result.plans.push_back(
        {.name = candidate.implementation, .expected_us = candidate.expected_us});
  }
  if (result.plans.empty()) {
    throw InvalidArgument("problem", "one with a cost model", result.problem);
  }
  const auto look = [&](PlanTime& plan, const gdn::Walks& walks) {
    const std::string name = plan.name.substr(0, plan.name.find(' '));
    plan.look = problem.look(name, walks);
    // What cuda_fused does depends on what it was told.
    if (spec.told && name != "cuda_fused") plan.assumed = problem.look(name, walks, true);
  };
  for (PlanTime& plan : result.plans) look(plan, {.parts = 1});
  const double most_us = kHopelessForm * result.chosen().expected_us;
  for (const gdn::PlanForm& form : problem.forms()) {
    if (form.chosen) {
      for (PlanTime& plan : result.plans) {
        if (plan.name != form.implementation) continue;
        plan.taken = suffix_of(form);
        look(plan, form.walks);
      }
    } else if (form.walks.us <= most_us) {
      result.plans.push_back({.name = std::string(form.implementation) + suffix_of(form),
                              .expected_us = form.walks.us,
                              .form = form});
      look(result.plans.back(), form.walks);
    }
  }
  time_plans(problem, result.plans, kLeastReplays);
  // The second times replace the first, whichever plan they favour.
  for (PlanTime& plan : result.plans) plan.first_us = plan.us;
  result.again = result.ratio() > kDoubtfulRatio;
  if (result.again) time_plans(problem, result.plans, kLeastAgain);
  return result;
}

// "split 57.2 (60)": microseconds, and what was expected; ">" where it was not timed to the end.
std::string describe(const PlanTime& plan) {
  const std::string name = plan.name.substr(plan.name.find('_') + 1) + plan.taken;
  if (plan.us == 0) return fmt::format("{} - ({:.3g})", name, plan.expected_us);
  return fmt::format("{} {}{:.4g} ({:.4g})", name, plan.lost ? ">" : "", plan.us, plan.expected_us);
}

std::string describe(const ShapeTimes& times) {
  std::string text;
  for (const PlanTime& plan : times.plans) {
    text += (text.empty() ? "" : "  ") + describe(plan);
  }
  return text;
}

std::pair<std::int64_t, std::int64_t> parse_range(const std::string& text) {
  constexpr std::int64_t kMost = 1'000'000;
  const std::size_t colon = std::min(text.find(':'), text.size());
  std::int64_t first = 0, count = 0;
  const char *begin = text.data(), *end = begin + text.size();
  const auto a = std::from_chars(begin, begin + colon, first);
  const auto b = std::from_chars(std::min(begin + colon + 1, end), end, count);
  const bool good = a.ec == std::errc() && a.ptr == begin + colon && b.ec == std::errc() &&
                    b.ptr == end && first >= 0 && first <= kMost && count >= 1 && count <= kMost;
  if (!good) throw InvalidArgument("--shapes", "FIRST:COUNT, such as 0:200", "'" + text + "'");
  return {first, count};
}

std::vector<ProblemSpec> shapes(const PlanOptions& options) {
  if (!options.problems.empty()) return choose_problems(options.problems, "");
  const auto [first, count] = parse_range(options.shapes);
  std::vector<ProblemSpec> specs;
  for (std::int64_t i = first; i < first + count; ++i) {
    specs.push_back(testing::random_prefill_shape(options.seed, i));
    const bool one = testing::row_lengths(specs.back()).size() == 1;  // which the host knows
    if (options.lengths == "drawn") continue;
    specs.back().longest = one || options.lengths == "known";
    specs.back().told = options.lengths == "host";
  }
  require_device(specs.front());
  return specs;
}

// How far the model is from each plan's time, over all shapes that timed it.
void print_errors(std::FILE* out, const std::vector<ShapeTimes>& all) {
  std::map<std::string, std::vector<double>> errors;
  for (const ShapeTimes& times : all) {
    for (const PlanTime& plan : times.plans) {
      if (plan.us == 0) continue;
      const std::string name = plan.form ? plan.form->implementation : plan.name;
      errors[name + (plan.form ? ", other forms" : "")].push_back(plan.us / plan.expected_us);
    }
  }
  for (auto& [name, ratios] : errors) {
    std::sort(ratios.begin(), ratios.end());
    const auto at = [&, &sorted = ratios](double part) {
      return sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1))];
    };
    fmt::print(out, "{:<26}  timed {:>3}, time / expected: {:.2f}, {:.2f} to {:.2f} for 4 of 5\n",
               name, ratios.size(), at(0.5), at(0.1), at(0.9));
  }
}

// How many of the shapes went to a plan close to the fastest, and which one lost most.
void print_choices(std::FILE* out, const char* which, const std::vector<ShapeTimes>& shapes) {
  if (shapes.empty()) return;
  const auto within = [&](bool all_forms) {
    return std::count_if(shapes.begin(), shapes.end(), [&](const ShapeTimes& times) {
      return times.ratio(all_forms) <= kGoodRatio;
    });
  };
  const ShapeTimes& worst = *std::max_element(
      shapes.begin(), shapes.end(),
      [](const ShapeTimes& a, const ShapeTimes& b) { return a.ratio() < b.ratio(); });
  fmt::print(out,
             "{}: within {:.2f} of the fastest form: {} of {} (of the plans as they are: {}); "
             "the worst {:.3f}: {}\n",
             which, kGoodRatio, within(true), shapes.size(), within(false), worst.ratio(),
             worst.problem);
}

// What scripts/fit_plans.py learns from.
nlohmann::json report(const gdn::PlanLook& look) {
  if (look.model_us == 0) return nullptr;
  return {{"model_us", look.model_us}, {"features", look.features}};
}

nlohmann::json report(const std::vector<ShapeTimes>& all) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ShapeTimes& times : all) {
    nlohmann::json plans = nlohmann::json::array();
    for (const PlanTime& plan : times.plans) {
      plans.push_back({{"impl", plan.name},
                       {"form", plan.taken},
                       {"expected_us", plan.expected_us},
                       {"us", plan.us},
                       {"first_us", plan.first_us},
                       {"lost", plan.lost},
                       {"look", report(plan.look)},
                       {"assumed", report(plan.assumed)}});
    }
    rows.push_back({{"problem", times.problem},
                    {"ratio", times.ratio()},
                    {"lengths_known", !times.unknown},
                    {"timed_again", times.again},
                    {"plans", plans}});
  }
  return {{"hyla", version()}, {"features_key", gdn::plan_features_key()}, {"results", rows}};
}

}  // namespace

int bench_plans(const PlanOptions& options) {
  check_writable("--json", options.json);
  const std::vector<ProblemSpec> specs = shapes(options);
  std::FILE* out = table_stream(options.json);
  Table table(out, {{"ratio", 5, true},
                    {"plans: us (expected), the chosen one first", 74, false},
                    {"problem", 0, false}});
  Progress progress(specs.size());
  testing::DeviceArena arena;
  std::vector<ShapeTimes> all;
  for (const ProblemSpec& spec : specs) {
    progress.show(testing::to_string(spec));
    if (options.near > 0 && !has_neighbour(spec, arena, options.near)) {
      progress.step();
      continue;
    }
    all.push_back(measure(spec, arena));
    progress.clear();
    progress.step();
    table.row(
        {fmt::format("{:.3f}", all.back().ratio()), describe(all.back()), all.back().problem});
  }
  fmt::print(out, "\n");
  print_errors(out, all);
  print_choices(out, "all shapes", all);
  for (const bool unknown : {false, true}) {
    std::vector<ShapeTimes> some;
    std::copy_if(all.begin(), all.end(), std::back_inserter(some),
                 [&](const ShapeTimes& times) { return times.unknown == unknown; });
    print_choices(out, unknown ? "lengths on the device only" : "longest length or all known",
                  some);
  }
  write_json(options.json, report(all));
  return kGood;
}

}  // namespace hyla::tool
