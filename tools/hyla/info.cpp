#include <fmt/core.h>
#include <hyla/backend.h>

#include "build_info.h"
#include "commands.h"
#include "output.h"

namespace hyla::tool {
namespace {

nlohmann::json collect() {
  nlohmann::json result = {{"hyla", version()},
                           {"commit", build_commit()},
                           {"sources_digest", sources_digest()},
                           {"compiler", build_compiler()},
                           {"build_type", build_type()},
                           {"cuda", built_with_cuda()}};
  const CpuInfo cpu = cpu_info();
  result["cpu"] = {{"target", cpu.target}, {"vectors", cpu.vectors}, {"threads", cpu.threads}};
  result["devices"] = nlohmann::json::array();
  for (const DeviceInfo& device : devices()) {
    result["devices"].push_back({{"device", name_of(device.device)},
                                 {"name", device.name},
                                 {"compute_capability", device.compute_capability},
                                 {"multiprocessors", device.multiprocessors},
                                 {"memory_bytes", device.memory_bytes}});
  }
  result["operations"] = nlohmann::json::object();
  for (const std::string& operation : operations()) {
    result["operations"][operation] = implementations(operation);
  }
  return result;
}

std::string details(const DeviceInfo& device) {
  const double gib = static_cast<double>(device.memory_bytes) / (1 << 30);
  if (device.device.kind == Device::Kind::kCpu) {
    return fmt::format("{} threads, {:.1f} GiB", device.multiprocessors, gib);
  }
  return fmt::format("sm_{}, {} multiprocessors, {:.1f} GiB", device.compute_capability,
                     device.multiprocessors, gib);
}

void print() {
  fmt::print("hyla {}, commit {}\n", version(), build_commit());
  fmt::print("built by {}, {}, {}\n", build_compiler(), build_type(),
             built_with_cuda() ? "with CUDA" : "without CUDA");
  const CpuInfo cpu = cpu_info();
  fmt::print("CPU kernels: {} by {}; threads by {}\n\n", cpu.target, cpu.vectors, cpu.threads);
  fmt::print("devices\n");
  for (const DeviceInfo& device : devices()) {
    fmt::print("  {:<8} {} ({})\n", name_of(device.device), device.name, details(device));
  }
  fmt::print("\noperations and their implementations, best first\n");
  for (const std::string& operation : operations()) {
    std::string names;
    for (const std::string& name : implementations(operation)) {
      names += (names.empty() ? "" : ", ") + name;
    }
    fmt::print("  {:<18} {}\n", operation, names);
  }
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("info", "Version, build, devices, operations and implementations");
  auto json = std::make_shared<std::string>();
  command->add_option("--json", *json, "Write the same as JSON to FILE (- for stdout)")
      ->type_name("FILE");
  command->footer("Examples:\n  hyla info\n  hyla info --json -");
  command->callback([json] {
    check_writable("--json", *json);
    if (*json != "-") print();
    write_json(*json, collect());
  });
}

}  // namespace hyla::tool
