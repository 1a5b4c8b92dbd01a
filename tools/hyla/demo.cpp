#include <fmt/core.h>

#include "commands.h"

namespace hyla::tool {

void add_demo(CLI::App& app) {
  CLI::App* command = app.add_subcommand("demo", "A serving loop of a small hybrid model");
  command->callback([] {
    fmt::print(stderr, "hyla: demo: not part of this build\n");
    exit_code() = kBadUsage;
  });
}

}  // namespace hyla::tool
