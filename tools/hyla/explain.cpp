#include <fmt/core.h>

#include <algorithm>

#include "commands.h"
#include "output.h"
#include "suites.h"
#include "testing/random_problem.h"

namespace hyla::tool {
namespace {

void print_keys() {
  for (testing::Operation operation : testing::all_operations()) {
    fmt::print("{}\n", testing::name_of(operation));
    for (const testing::KeyInfo& key : testing::keys_of(operation)) {
      fmt::print("  {:<11} {} ({})\n", key.name, key.meaning, key.values);
    }
    fmt::print("\n");
  }
}

void explain_problem(const std::string& problem, const std::string& json_path) {
  const testing::ProblemSpec spec = choose_problems({problem}, {}).front();
  const std::vector<Candidate> candidates = explain(spec, testing::random_call(spec));
  std::FILE* out = table_stream(json_path);
  std::size_t width = 0;
  for (const Candidate& c : candidates) width = std::max(width, c.implementation.size());
  fmt::print(out, "{}\n\n", testing::to_string(spec));
  Table table(out, {{"candidate", width}, {"verdict", 7}, {"reason"}});
  nlohmann::json rows = nlohmann::json::array();
  bool chosen = false;
  for (const Candidate& c : candidates) {
    const bool runs = c.supported && !chosen;
    chosen = chosen || runs;
    const std::string reason =
        c.expected_us > 0 ? "expects " + microseconds(c.expected_us) + " us" : c.reason;
    table.row({c.implementation, runs ? "runs" : c.supported ? "can run" : "refuses", reason});
    rows.push_back({{"implementation", c.implementation},
                    {"supported", c.supported},
                    {"runs", runs},
                    {"reason", c.reason},
                    {"expected_us", c.expected_us}});
  }
  write_json(json_path, {{"problem", testing::to_string(spec)}, {"candidates", rows}});
}

struct Options {
  std::string problem, json;
  bool keys = false;
};

}  // namespace

void add_explain(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("explain", "Which implementation runs a problem, and why not the others");
  auto options = std::make_shared<Options>();
  command->add_option("problem", options->problem, "operation:key=value,...")->type_name("PROBLEM");
  command->add_option("--json", options->json, "Write the same as JSON to FILE (- for stdout)")
      ->type_name("FILE");
  command->add_flag("--keys", options->keys, "List every operation with its keys and their values");
  command->footer(
      "Examples:\n"
      "  hyla explain gdn_decode:b=64,state=bf16\n"
      "  hyla explain gdn_prefill:lens=65+0+130,layout=kv\n"
      "  hyla explain --keys");
  command->callback([options] {
    if (options->keys) return print_keys();
    if (options->problem.empty()) throw CLI::RequiredError("PROBLEM");
    check_writable("--json", options->json);
    explain_problem(options->problem, options->json);
  });
}

}  // namespace hyla::tool
