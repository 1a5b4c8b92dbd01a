#include "cpu/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace hyla::cpu {
namespace {

#if defined(HYLA_OTHER_CPUS) && defined(__x86_64__)
const char* find_amx() { return nullptr; }
#elif defined(__x86_64__) && defined(__linux__)
const char* find_amx() {
  constexpr unsigned kTiles = 1u << 24, kBFloat16 = 1u << 22, kSystemSaves = 1u << 27;
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0 || (d & kBFloat16) == 0) {
    return "the CPU has no AMX for bfloat16";
  }
  constexpr std::uint32_t kTileState = 3u << 17;  // configuration and data
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSystemSaves) == 0)
    return "the system has no AMX";
  std::uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kTileState) != kTileState) return "the system has no AMX";
  // Linux gives a process room for tiles when it asks.
  constexpr long kRequest = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequest, kTileData) != 0) return "the system gives no AMX tiles";
  return nullptr;
}
#else
const char* find_amx() { return "AMX is used on Linux on x86-64 only"; }
#endif

}  // namespace

const char* amx_refuses() {
  static const char* const reason = find_amx();
  return reason;
}

}  // namespace hyla::cpu
