#include <fmt/core.h>
#include <sys/utsname.h>

#include <algorithm>
#include <ctime>

#include "build_info.h"
#include "commands.h"
#include "cpu_times.h"
#include "output.h"
#include "peers.h"
#include "plans.h"
#include "plot.h"
#include "suites.h"
#include "testing/device_call.h"
#include "testing/device_memory.h"
#include "testing/memory_pages.h"
#include "testing/random_problem.h"
#include "testing/work.h"

namespace hyla::tool {
namespace {

using testing::Call;
using testing::ProblemSpec;

struct Options {
  std::vector<std::string> problems;
  std::string suite = "quick", json, plot, peers;
  double seconds = 0.2;
  bool all = false, tiny = false, plans = false;
  PlanOptions sweep;
};

struct Result {
  std::string problem, implementation;
  double us = 0, limit_us = 0, ratio = 0;
  double chain_us = 0;     // decode and MTP on a GPU: the same waits without math
  testing::HostTime host;  // GPU: what the host spends on the call
  double best_us = 0;      // CPU: the best turn
  double huge_pages = 0;   // CPU: of the memory it was measured in, the part that lies in them
  std::string beside;      // CPU: what else was measured in turn; its problem, time and the ratio
  std::string beside_problem;
  double beside_us = 0, beside_ratio = 0;
  bool tiny = false;
  testing::Work work;
  std::vector<Peer> peers;
};

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&seconds));
  return text;
}

// The device that was measured: all problems of a run share it.
std::string device_name(const std::vector<ProblemSpec>& specs) {
  for (const DeviceInfo& info : devices()) {
    if (!specs.empty() && info.device.kind == specs.front().device) return info.name;
  }
  return devices().front().name;
}

nlohmann::json machine(const std::string& name) {
  utsname system{};
  uname(&system);
  const std::vector<DeviceInfo> all = devices();
  return {{"name", name},
          {"driver", ""},
          {"cpu", all.front().name},
          {"threads", all.front().multiprocessors},
          {"memory_bytes", all.front().memory_bytes},
          {"page_bytes", testing::page_bytes()},
          {"system", std::string(system.sysname) + " " + system.release},
          {"compiler", build_compiler()}};
}

nlohmann::json report(const std::vector<Result>& results, const std::string& device) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Result& r : results) {
    nlohmann::json peers = nlohmann::json::array();
    for (const Peer& peer : r.peers) peers.push_back({{"name", peer.name}, {"us", peer.us}});
    nlohmann::json row = {{"problem", r.problem},
                          {"impl", r.implementation},
                          {"us", r.us},
                          {"limit_us", r.limit_us},
                          {"ratio", r.ratio},
                          {"bytes", r.work.bytes},
                          {"flops", r.work.flops},
                          {"matrix_flops", r.work.matrix_flops},
                          {"peers", peers}};
    if (r.chain_us > 0) row["chain_us"] = r.chain_us;
    if (r.host.call_us > 0) row["host_us"] = r.host.call_us;
    if (r.host.launch_us > 0) row["launch_us"] = r.host.launch_us;
    if (r.best_us > 0) row["best_us"] = r.best_us, row["huge_pages"] = r.huge_pages;
    if (r.tiny) row["tiny"] = true;
    if (!r.beside.empty()) {
      row["beside"] = {
          {"problem", r.beside_problem}, {"us", r.beside_us}, {"ratio", r.beside_ratio}};
    }
    rows.push_back(std::move(row));
  }
  return {{"hyla", version()},
          {"commit", build_commit()},
          {"sources_digest", sources_digest()},
          {"machine", machine(device)},
          {"date", now()},
          {"results", rows}};
}

// Those to measure: the forced one, all that can run, or the one that the library would choose.
std::vector<std::string> choose_implementations(const Call& call, const ProblemSpec& spec,
                                                bool all) {
  std::vector<std::string> chosen;
  const std::vector<Candidate> candidates = explain(spec, call);
  for (const Candidate& candidate : candidates) {
    if (!candidate.supported) continue;
    if (!spec.impl.empty() && candidate.implementation != spec.impl) continue;
    if (all || chosen.empty()) chosen.push_back(candidate.implementation);
  }
  if (chosen.empty() && !spec.impl.empty()) require_implementation(spec);
  if (chosen.empty()) throw Unsupported(testing::to_string(spec), candidates);
  return chosen;
}

bool on_gpu(const ProblemSpec& spec) { return spec.device == Device::Kind::kCuda; }

double matrix_flops(double seconds) {
  static const double peak = testing::cuda::matrix_flops(seconds);
  return peak;
}

// What is reached of the device's matrix products: "460 (57%)" TFLOP/s.
std::string matrix_share(const Result& r, bool gpu, double seconds) {
  if (!gpu || r.work.matrix_flops == 0) return "";
  const double flops = r.work.matrix_flops / r.us * 1e6;
  return fmt::format("{:.0f} ({:.0f}%)", flops * 1e-12, 100 * flops / matrix_flops(seconds));
}

// A call takes at least the time of its memory traffic and at least that of its arithmetic.
double gpu_limit_us(const ProblemSpec& spec, const testing::Work& work, double seconds) {
  if (spec.mode == testing::Mode::kAll && spec.lens.empty()) {
    // One read, as many writes as tokens.
    return testing::cuda::spreading_us(work.bytes, static_cast<int>(spec.t), seconds);
  }
  // Decode reads a cache and writes next to nothing.
  const bool reads = spec.operation == testing::Operation::kAttentionDecode;
  const double memory = reads ? testing::cuda::reading_us(work.bytes, seconds)
                              : testing::cuda::streaming_us(work.bytes, seconds);
  if (work.matrix_flops == 0) return memory;
  return std::max(memory, work.matrix_flops / matrix_flops(seconds) * 1e6);
}

bool reads_pages(const ProblemSpec& spec) {
  return on_gpu(spec) && spec.operation == testing::Operation::kAttentionDecode && spec.page > 0 &&
         spec.kvlen.size() == 1 && testing::value_dim(spec) == spec.d;
}

// One state a row, and few enough tokens for the kernels that move them.
bool moves_tokens(const ProblemSpec& spec) {
  return spec.operation == testing::Operation::kGdnMtp && spec.mode != testing::Mode::kAll &&
         spec.lens.empty() && spec.t <= testing::cuda::kMostMovedTokens;
}

// At small batch decode is latency, and this is its limit; a paged cache is read page by page.
// And several tokens' inputs and outputs lie in more places than a stream of as many bytes.
bool has_chain(const ProblemSpec& spec) {
  if (reads_pages(spec)) return true;
  if (!on_gpu(spec) || spec.k != 128 || spec.v != 128 || size_of(spec.io) != 2 || spec.pdl) {
    return false;
  }
  return spec.operation == testing::Operation::kGdnDecode || moves_tokens(spec);
}

double chain_us(const ProblemSpec& spec, double seconds) {
  if (!has_chain(spec)) return 0;
  if (reads_pages(spec)) {
    const auto size = static_cast<std::int64_t>(size_of(spec.kv));
    return testing::cuda::pages_us({spec.b, spec.kvlen.front(), spec.page, spec.hk, spec.d * size},
                                   seconds);
  }
  const auto heads_a_key = static_cast<int>(spec.hv / spec.hq);
  const auto state_bytes =
      static_cast<int>(spec.k * spec.v * static_cast<int>(size_of(spec.state)));
  if (moves_tokens(spec)) {
    return testing::cuda::moving_tokens_us({.rows = static_cast<int>(spec.b),
                                            .tokens = static_cast<int>(spec.t),
                                            .heads = static_cast<int>(spec.hv),
                                            .heads_a_key = heads_a_key,
                                            .state_bytes = state_bytes},
                                           seconds);
  }
  testing::cuda::ChainShape shape;
  shape.heads = static_cast<int>(spec.b * spec.hv);
  shape.heads_a_key = heads_a_key;
  shape.state_bytes = state_bytes;
  return testing::cuda::chain_us(shape, seconds);
}

// States and values below the smallest normal float32, as decay makes them.
void make_tiny(const Call& call) {
  for (const testing::NamedTensor& tensor : testing::tensors(call)) {
    if (tensor.name != "state" && tensor.name != "v") continue;
    testing::for_each_element(tensor.view, [&](std::int64_t, std::int64_t offset) {
      const double value = testing::load_element(tensor.view, offset);
      testing::store_element(tensor.view, offset, value * 1e-39);
    });
  }
}

std::vector<Result> measure_gpu(const ProblemSpec& spec, const Call& call, const Options& options) {
  std::vector<Result> results;
  const testing::Work work = testing::work_of(spec);
  double limit = 0, chain = 0;
  for (const std::string& name : choose_implementations(call, spec, options.all)) {
    Result r;
    r.implementation = name;
    r.us = testing::device_call_us(call, name, options.seconds);
    if (limit == 0) {
      limit = gpu_limit_us(spec, work, options.seconds / 4);
      chain = chain_us(spec, options.seconds / 4);
    }
    r.limit_us = limit;
    r.ratio = limit > 0 ? r.us / limit : 0;
    r.chain_us = chain;
    r.host = testing::device_call_host_time(call, name);
    results.push_back(std::move(r));
  }
  return results;
}

std::vector<Result> measure_cpu(const ProblemSpec& spec, const Call& call, bool tiny,
                                const Options& options) {
  std::vector<Result> results;
  const std::optional<Beside> other = beside(spec, tiny);
  const Call other_call = other ? testing::random_call(other->spec) : Call();
  for (const std::string& name : choose_implementations(call, spec, options.all)) {
    const CpuTimes times =
        cpu_times(spec, call, name, other ? &other_call : nullptr, options.seconds);
    Result r;
    r.implementation = name;
    r.us = times.us, r.best_us = times.best_us;
    r.limit_us = times.limit_us, r.ratio = times.ratio;
    r.huge_pages = testing::huge_page_share();
    if (other) {
      r.beside = other->name, r.beside_problem = testing::to_string(other->spec);
      r.beside_us = times.beside_us, r.beside_ratio = times.beside_ratio;
    }
    results.push_back(std::move(r));
  }
  return results;
}

std::vector<Result> measure(const BenchProblem& problem, const std::vector<Peer>& peers,
                            const Options& options) {
  const ProblemSpec& spec = problem.spec;
  const Call call = testing::random_call(spec);
  if (problem.tiny) make_tiny(call);
  std::vector<Result> results = on_gpu(spec) ? measure_gpu(spec, call, options)
                                             : measure_cpu(spec, call, problem.tiny, options);
  for (Result& r : results) {
    r.problem = testing::to_string(spec);
    r.tiny = problem.tiny;
    r.work = testing::work_of(spec);
    r.peers = peers_of(peers, spec);
  }
  return results;
}

// "4 KiB", or "huge 97%" where the system gave larger ones.
std::string pages(const Result& r) {
  if (r.huge_pages < 0.005) return fmt::format("{} KiB", testing::page_bytes() / 1024);
  return fmt::format("huge {:.0f}%", 100 * r.huge_pages);
}

std::string title(const BenchProblem& problem) {
  return testing::to_string(problem.spec) + (problem.tiny ? " (tiny)" : "");
}

bool has_beside(const BenchProblem& problem) {
  return !on_gpu(problem.spec) && beside(problem.spec, problem.tiny);
}

// "0.57 of f32"
std::string compared_with(const Result& r) {
  return r.beside.empty() ? "" : fmt::format("{:.2f} of {}", r.beside_ratio, r.beside);
}

// "4.61 (1.26x) FlashInfer": its time, how many times ours that is, its name.
std::string best_peer(const Result& r) {
  if (r.peers.empty()) return "";
  const Peer& best = r.peers.front();
  return fmt::format("{} ({:.2f}x) {}", microseconds(best.us), best.us / r.us, best.name);
}

void write_plot(const std::string& path, const std::vector<Result>& results,
                const std::string& device) {
  if (path.empty()) return;
  std::vector<Bar> bars;
  for (const Result& r : results) {
    bars.push_back({r.problem + (r.tiny ? " (tiny)" : "") + "  (" + r.implementation + ")",
                    fmt::format("{} us, {:.2f}x", microseconds(r.us), r.ratio), r.us, r.limit_us});
  }
  const std::string title = fmt::format("hyla {} on {}", version(), device);
  write_text("--plot", path, bar_chart(title, bars));
}

int bench(const Options& options) {
  check_writable("--json", options.json);
  check_writable("--plot", options.plot);
  // A cold measurement allocates hundreds of tensors, which took longer than measuring them.
  testing::cuda::reuse_memory();
  const std::vector<BenchProblem> problems =
      choose_benchmarks(options.problems, options.suite, options.tiny);
  std::vector<ProblemSpec> specs;
  for (const BenchProblem& problem : problems) specs.push_back(problem.spec);
  const std::vector<Peer> peers = load_peers(options.peers);
  std::size_t width = 0;
  for (const BenchProblem& problem : problems) width = std::max(width, title(problem).size());
  std::FILE* out = table_stream(options.json);
  std::vector<Column> columns = {{"problem", width, false}, {"impl", 15, false}, {"us", 9, true},
                                 {"limit us", 9, true},     {"ratio", 8, true},  {"GB/s", 7, true},
                                 {"GFLOP/s", 8, true}};
  const bool matrix = std::any_of(specs.begin(), specs.end(), [](const ProblemSpec& spec) {
    return on_gpu(spec) && testing::work_of(spec).matrix_flops > 0;
  });
  if (matrix) columns.push_back({"TFLOP/s", 10, true});
  const bool gpu = std::any_of(specs.begin(), specs.end(), on_gpu);
  const bool chains = std::any_of(specs.begin(), specs.end(), has_chain);
  if (chains) columns.push_back({"chain us", 9, true});
  if (gpu) columns.push_back({"host us", 8, true}), columns.push_back({"launch us", 9, true});
  const bool cpu = !std::all_of(specs.begin(), specs.end(), on_gpu);
  if (cpu) columns.push_back({"best us", 9, true}), columns.push_back({"pages", 9, true});
  const bool compared = std::any_of(problems.begin(), problems.end(), has_beside);
  if (compared) columns.push_back({"beside", 16, false});
  if (!peers.empty()) columns.push_back({"best peer", 0, false});
  Table table(out, columns);
  Progress progress(problems.size());
  std::vector<Result> results;
  for (const BenchProblem& problem : problems) {
    const ProblemSpec& spec = problem.spec;
    progress.show(title(problem));
    const std::vector<Result> measured = measure(problem, peers, options);
    progress.clear();
    progress.step();
    for (const Result& r : measured) {
      std::vector<std::string> cells = {title(problem),
                                        r.implementation,
                                        microseconds(r.us),
                                        microseconds(r.limit_us),
                                        fmt::format("{:.2f}", r.ratio),
                                        fmt::format("{:.2f}", r.work.bytes / r.us * 1e-3),
                                        fmt::format("{:.2f}", r.work.flops / r.us * 1e-3)};
      if (matrix) cells.push_back(matrix_share(r, on_gpu(spec), options.seconds / 4));
      if (chains) cells.push_back(r.chain_us > 0 ? microseconds(r.chain_us) : "");
      if (gpu) cells.push_back(fmt::format("{:.2f}", r.host.call_us));
      if (gpu) cells.push_back(fmt::format("{:.2f}", r.host.launch_us));
      if (cpu) cells.push_back(on_gpu(spec) ? "" : microseconds(r.best_us));
      if (cpu) cells.push_back(on_gpu(spec) ? "" : pages(r));
      if (compared) cells.push_back(compared_with(r));
      cells.push_back(best_peer(r));
      table.row(cells);
      results.push_back(r);
    }
  }
  write_json(options.json, report(results, device_name(specs)));
  write_plot(options.plot, results, device_name(specs));
  return kGood;
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("bench", "Time calls and compare with what the machine can do");
  auto options = std::make_shared<Options>();
  command->add_option("problems", options->problems, "operation:key=value,... (default: a suite)")
      ->type_name("PROBLEM");
  command->add_option("--suite", options->suite, "Problems to measure: " + suite_names())
      ->capture_default_str()
      ->type_name("NAME");
  command->add_flag("--all", options->all, "Every implementation that can run, not only the best");
  command->add_flag(
      "--plans", options->plans,
      "Prefill on a GPU, where a cost model compares implementations: all of them and their "
      "forms,\n"
      "and how far the one it chooses is from the fastest; without problems, of random shapes");
  command
      ->add_option("--shapes", options->sweep.shapes,
                   "--plans: which of the random shapes, FIRST:COUNT")
      ->capture_default_str()
      ->type_name("RANGE");
  command->add_option("--seed", options->sweep.seed, "--plans: of the random shapes")
      ->capture_default_str()
      ->type_name("SEED");
  command
      ->add_option(
          "--lengths", options->sweep.lengths,
          "--plans: is the longest of several sequences known to the caller of the\n"
          "random shapes, all lengths (host), none (device), or drawn: the longest or none")
      ->capture_default_str()
      ->check(CLI::IsMember({"drawn", "known", "host", "device"}))
      ->type_name("WHO");
  command
      ->add_option(
          "--near", options->sweep.near,
          "--plans: only shapes where another plan or form is expected to take up to RATIO\n"
          "times as long as the chosen one: where the choice may go wrong")
      ->check(CLI::Range(1.0, 100.0))
      ->type_name("RATIO");
  command->add_flag("--tiny", options->tiny,
                    "States and values below the smallest normal number: denormals must cost "
                    "nothing");
  command->add_option("--min-time", options->seconds, "Seconds to spend on each, at the least")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0))
      ->type_name("SECONDS");
  command->add_option("--peers", options->peers, "Print the times of others from FILE beside ours")
      ->type_name("FILE");
  command->add_option("--json", options->json, "Write the results to FILE (- for stdout)")
      ->type_name("FILE");
  command->add_option("--plot", options->plot, "Draw the results to FILE.svg")->type_name("FILE");
  command->footer(
      "The limit is measured in the same run, on the same threads: an in-place update of the same\n"
      "bytes (attention decode: reading them; convolution over tokens on a CPU: a copy), or the\n"
      "same arithmetic where that takes longer. On a CPU call and limit take turns, and 'ratio' "
      "is\n"
      "the median over the turns; 'pages' are those of memory: huge ones make what is read once "
      "up\n"
      "to 1.5 times faster. On a GPU 'host us' is what the host spends on a call, 'launch us' the\n"
      "launch of an empty kernel, and 'chain us', for decode and MTP, a kernel that waits for the "
      "same\n"
      "loads, or reads the same pages, without computing: the limit where the time is latency.\n"
      "\n"
      "Examples:\n"
      "  hyla bench gdn_decode:b=8 gdn_decode:b=8,state=bf16\n"
      "  hyla bench --suite cpu --json cpu.json --plot cpu.svg\n"
      "  hyla bench gdn_decode:b=32,threads=1 --all\n"
      "  hyla bench --plans --seed 7 --shapes 100:50");
  command->callback([options] {
    options->sweep.problems = options->problems;
    options->sweep.json = options->json;
    exit_code() = options->plans ? bench_plans(options->sweep) : bench(*options);
  });
}

}  // namespace hyla::tool
