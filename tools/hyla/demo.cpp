// The serving loop of examples/, as a subcommand.
#include <fmt/core.h>

#include <memory>

#include "../../examples/serving/loop.h"
#include "commands.h"

namespace hyla::tool {

void add_demo(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "demo", "Serve a small hybrid model with random weights and verify every token");
  auto options = std::make_shared<serving::Options>();
  command->add_option("--requests", options->requests, "How many requests arrive")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--drafts", options->drafts, "Most draft tokens of a row; 0: none")
      ->check(CLI::Range(0, 7))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the weights and the prompts")
      ->capture_default_str();
  command->add_flag("--quiet", options->quiet, "No progress, only the summary");
  command->footer(
      "Examples:\n  hyla demo\n  hyla demo --requests 40 --drafts 5\n"
      "The program is examples/serving_loop.cpp; examples/README.md explains it.");
  command->callback([options] {
    // What goes wrong here is not the user's: it counts as a failed check.
    try {
      exit_code() = serving::run(*options);
    } catch (const std::exception& error) {
      fmt::print(stderr, "hyla: demo: {}\n", error.what());
      exit_code() = kCheckFailed;
    }
  });
}

}  // namespace hyla::tool
