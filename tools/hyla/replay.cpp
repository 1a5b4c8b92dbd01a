#include <fmt/core.h>

#include <filesystem>

#include "commands.h"
#include "output.h"
#include "suites.h"
#include "testing/compare.h"
#include "testing/random_problem.h"
#include "testing/recording.h"

namespace hyla::tool {
namespace {

struct Options {
  std::string file, record, output, impl, json;
};

int record(const Options& options) {
  if (options.output.empty()) throw CLI::RequiredError("-o FILE with --record");
  check_writable("-o", options.output);
  const testing::ProblemSpec spec = choose_problems({options.record}, {}).front();
  const std::string impl = options.impl.empty() ? spec.impl : options.impl;
  const testing::Recording recording = testing::record(
      testing::random_call(spec, testing::CaseOptions::hostile()), testing::to_string(spec), impl);
  const std::vector<std::byte> bytes = testing::encode(recording);
  write_text("-o", options.output,
             std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  fmt::print("recorded {} by {}: {} bytes in {}\n", testing::to_string(spec),
             recording.implementation, bytes.size(), options.output);
  return kGood;
}

int play(const Options& options) {
  check_writable("--json", options.json);
  const testing::Recording recording = testing::read_recording(options.file);
  std::FILE* out = table_stream(options.json);
  fmt::print(out, "{} ({}), recorded by {}\n", recording.call.operation(),
             recording.problem.empty() ? "no problem string" : recording.problem,
             recording.implementation);
  const testing::Replayed replayed = testing::replay(recording, options.impl);
  fmt::print(out, "ran {}\n", replayed.implementation);
  nlohmann::json digests = nlohmann::json::object();
  for (const auto& [name, digest] : replayed.digests) {
    fmt::print(out, "  {:<14} {:016x}\n", name, digest);
    digests[name] = fmt::format("{:016x}", digest);
  }
  bool ok = replayed.bit_exact;
  std::string verdict = "identical to the recorded outputs";
  if (!replayed.bit_exact && replayed.implementation != recording.implementation) {
    const testing::Comparison comparison = testing::Judge(recording.call).compare(replayed.result);
    ok = comparison.ok;
    verdict = ok ? fmt::format("within the error model (error {:.2e}, bound {:.2e}), not identical",
                               comparison.max_error, comparison.bound)
                 : comparison.failure;
  } else if (!replayed.bit_exact) {
    verdict = replayed.difference;
  }
  fmt::print(out, "{}: {}\n", ok ? good(out, "ok") : bad(out, "FAILED"), verdict);
  write_json(options.json, {{"operation", recording.call.operation()},
                            {"problem", recording.problem},
                            {"recorded_by", recording.implementation},
                            {"impl", replayed.implementation},
                            {"outputs", digests},
                            {"bit_exact", replayed.bit_exact},
                            {"ok", ok}});
  return ok ? kGood : kCheckFailed;
}

}  // namespace

void add_replay(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("replay", "Run a recorded call again and compare with what it gave then");
  auto options = std::make_shared<Options>();
  CLI::Option* file = command->add_option("file", options->file, "A recorded call");
  file->type_name("FILE");
  command->add_option("--record", options->record, "Record a random call of this problem instead")
      ->type_name("PROBLEM")
      ->excludes(file);
  command->add_option("-o,--output", options->output, "Where --record writes")->type_name("FILE");
  command->add_option("--impl", options->impl, "Run this implementation")->type_name("NAME");
  command->add_option("--json", options->json, "Write the outcome to FILE (- for stdout)")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  hyla replay --record gdn_decode:b=4,hq=2,hv=4 -o call.hyla\n"
      "  hyla replay call.hyla\n\n"
      "The same implementation must give the same bits; another one is judged by the error model.");
  command->callback([options] {
    if (options->record.empty() && options->file.empty()) {
      throw CLI::RequiredError("FILE or --record");
    }
    exit_code() = options->record.empty() ? play(*options) : record(*options);
  });
}

}  // namespace hyla::tool
