// hyla: look at, check, measure and replay the operations of the library.
#include <fmt/core.h>
#include <hyla/backend.h>
#include <hyla/error.h>

#include <exception>
#include <new>
#include <string>

#include "commands.h"

namespace hyla::tool {

int& exit_code() {
  static int code = kGood;
  return code;
}

namespace {

constexpr const char* kFooter =
    R"(A PROBLEM is operation:key=value,... with the operation's defaults for keys left out:
  gdn_decode:b=64,hq=16,hv=32,state=bf16
  gdn_prefill:lens=8192x4              four sequences of 8192 tokens
  gdn_mtp:lens=3+1+4,mode=accepted     rows of 3, 1 and 4 tokens
`hyla explain --keys` lists all operations and keys.

Exit code: 0 good, 1 a check failed, 2 bad usage.)";

// One line: what a caller reads in a log.
int complain(const std::string& message) {
  std::string line = message;
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  fmt::print(stderr, "hyla: {}\n", line);
  return kBadUsage;
}

// CLI11 would say that a command is missing, without naming the word that is none.
void require_known_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::string known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->check_name(argv[1])) return;
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  throw InvalidArgument("command", "one of " + known, argv[1]);
}

int run(int argc, char** argv) {
  CLI::App app{"Inference kernels for hybrid linear attention models", "hyla"};
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("hyla ") + version());
  app.require_subcommand(1);
  add_info(app);
  add_explain(app);
  add_check(app);
  add_bench(app);
  add_replay(app);
  add_demo(app);
  require_known_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return complain(std::string(error.what()) + " (see hyla --help)");
  }
  return exit_code();
}

}  // namespace
}  // namespace hyla::tool

int main(int argc, char** argv) {
  using hyla::tool::complain;
  try {
    return hyla::tool::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return complain("memory: not enough on this machine");
  } catch (const std::exception& error) {
    return complain(error.what());
  }
}
