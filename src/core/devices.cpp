#include "core/devices.h"

#include <hyla/version.h>
#include <unistd.h>

#include <fstream>
#include <thread>

namespace hyla {
namespace {

// The marketing name where the system tells it; nothing depends on it.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

DeviceInfo host() {
  DeviceInfo info;
  info.name = cpu_name();
  info.multiprocessors = static_cast<int>(std::thread::hardware_concurrency());
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  if (pages > 0 && size > 0) {
    info.memory_bytes = static_cast<std::size_t>(pages) * static_cast<std::size_t>(size);
  }
  return info;
}

#define HYLA_STRING_(x) #x
#define HYLA_STRING(x) HYLA_STRING_(x)

}  // namespace

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> result{host()};
  for (const DeviceInfo& info : core::cuda_devices()) result.push_back(info);
  return result;
}

const char* version() {
  return HYLA_STRING(HYLA_VERSION_MAJOR) "." HYLA_STRING(HYLA_VERSION_MINOR) "." HYLA_STRING(
      HYLA_VERSION_PATCH);
}

bool built_with_cuda() {
#ifdef HYLA_HAS_CUDA
  return true;
#else
  return false;
#endif
}

#ifndef HYLA_HAS_CUDA
std::vector<DeviceInfo> core::cuda_devices() { return {}; }
#endif

}  // namespace hyla
