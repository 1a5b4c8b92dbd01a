// The serving loop of examples/, as a subcommand.
#include <fmt/core.h>
#include <hyla/backend.h>

#include <memory>

#include "../../examples/serving/loop.h"
#include "commands.h"
#include "testing/serving_memory.h"

namespace hyla::tool {
namespace {

// The first GPU that hyla has kernels for; null: there is none.
const DeviceInfo* find_gpu(const std::vector<DeviceInfo>& all) {
  for (const DeviceInfo& info : all) {
    if (info.device.kind == Device::Kind::kCuda && info.compute_capability == 90) return &info;
  }
  return nullptr;
}

// Null: the CPU.
const DeviceInfo* choose_gpu(const std::vector<DeviceInfo>& all, const std::string& device) {
  if (device == "cpu") return nullptr;
  const DeviceInfo* gpu = find_gpu(all);
  if (device == "cuda" && gpu == nullptr) {
    throw InvalidArgument("--device", "cpu or auto", "cuda, but there is no Hopper GPU here");
  }
  return gpu;
}

int serve(serving::Options options, const DeviceInfo* gpu, const std::string& dtype) {
  options.bfloat16 = dtype == "bfloat16" || (dtype == "auto" && gpu != nullptr);
  if (gpu == nullptr) return serving::run(options);
  options.device = gpu->name;
  testing::ServingMemory memory(gpu->device);
  return serving::run(options, memory);
}

}  // namespace

void add_demo(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "demo", "Serve a small hybrid model with random weights and verify every token");
  auto options = std::make_shared<serving::Options>();
  auto device = std::make_shared<std::string>("auto");
  auto dtype = std::make_shared<std::string>("auto");
  command->add_option("--requests", options->requests, "How many requests arrive")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--drafts", options->drafts, "Most draft tokens of a row; 0: none")
      ->check(CLI::Range(0, 7))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the weights and the prompts")
      ->capture_default_str();
  command
      ->add_option("--device", *device, "Where operations run; auto: on a GPU where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--dtype", *dtype, "Of activations and keys; auto: bfloat16 on a GPU")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))
      ->capture_default_str();
  command->add_flag("--quiet", options->quiet, "No progress, only the summary");
  command->footer(
      "Examples:\n  hyla demo\n  hyla demo --requests 40 --drafts 5\n"
      "  hyla demo --device cuda --dtype float32\n"
      "The program is examples/serving_loop.cpp; examples/README.md explains it.");
  command->callback([options, device, dtype] {
    const std::vector<DeviceInfo> all = devices();
    const DeviceInfo* gpu = choose_gpu(all, *device);
    // What goes wrong here is not the user's: it counts as a failed check.
    try {
      exit_code() = serve(*options, gpu, *dtype);
    } catch (const std::exception& error) {
      fmt::print(stderr, "hyla: demo: {}\n", error.what());
      exit_code() = kCheckFailed;
    }
  });
}

}  // namespace hyla::tool
