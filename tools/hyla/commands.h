// The subcommands of the tool. Each add_* registers one with its options; its callback leaves the
// exit code in the place that exit_code() names.
#pragma once

#include <CLI/CLI.hpp>

namespace hyla::tool {

inline constexpr int kGood = 0, kCheckFailed = 1, kBadUsage = 2;

int& exit_code();

void add_info(CLI::App& app);
void add_explain(CLI::App& app);
void add_check(CLI::App& app);
void add_bench(CLI::App& app);
void add_replay(CLI::App& app);
void add_demo(CLI::App& app);

}  // namespace hyla::tool
