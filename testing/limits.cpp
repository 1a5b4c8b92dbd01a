#include "testing/limits.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/gemm_rate.h"
#include "cpu/parallel.h"
#include "testing/median.h"

namespace hyla::testing {
namespace {

// The best vector instructions of the machine it runs on, whatever the build was for.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HYLA_BEST_VECTORS \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HYLA_BEST_VECTORS
#endif

HYLA_BEST_VECTORS void update(float* data, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) data[i] = data[i] * 0.999f + 0.001f;
}

HYLA_BEST_VECTORS std::uint32_t total(const std::uint32_t* data, std::size_t count) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += data[i];
  return sum;
}

constexpr int kLanes = 128;  // independent chains: enough to hide the latency of any FMA unit
constexpr int kRounds = 20000;

HYLA_BEST_VECTORS void multiply_add(float* data, int rounds) {
  float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = data[i];
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < kLanes; ++i) x[i] = x[i] * 0.999f + 0.001f;
  }
  for (int i = 0; i < kLanes; ++i) data[i] = x[i];
}

Context on(int threads) {
  Context context;
  context.threads = threads;
  return context;
}

constexpr double kSmallBytes = 256 << 10;  // below this a second thread costs more than it brings
constexpr double kLargestBytes = 1 << 30;  // larger buffers stream at the same rate

}  // namespace

Timing time_runs(const std::function<void()>& body, double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLeast = 3, kMost = 10000;
  body();
  std::vector<double> times;
  const auto begin = Clock::now();
  while (static_cast<int>(times.size()) < kMost) {
    const auto before = Clock::now();
    body();
    const auto after = Clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(after - before).count());
    const double spent = std::chrono::duration<double>(after - begin).count();
    if (spent >= seconds && static_cast<int>(times.size()) >= kLeast) break;
  }
  return {median(times), *std::min_element(times.begin(), times.end()),
          static_cast<int>(times.size())};
}

double streaming_us(double bytes, int threads, double seconds) {
  const double moved = std::min(bytes, kLargestBytes);
  const Context context = on(threads);
  const int count = moved < kSmallBytes ? 1 : cpu::thread_count(context);
  const std::size_t floats = std::max<std::size_t>(static_cast<std::size_t>(moved / 8), 1);
  const auto data = std::make_unique<float[]>(floats);
  const std::size_t share =
      (floats + static_cast<std::size_t>(count) - 1) / static_cast<std::size_t>(count);
  const auto update_part = [&](int member) {
    const std::size_t begin = std::min(floats, share * static_cast<std::size_t>(member));
    update(data.get() + begin, std::min(share, floats - begin));
  };
  const auto run = [&] { cpu::parallel_for(context, count, update_part); };
  return time_runs(run, seconds).median_us * (bytes > 0 ? bytes / moved : 1);
}

double copying_us(double bytes, int threads, double seconds) {
  const double moved = std::min(bytes, kLargestBytes);
  const Context context = on(threads);
  const int count = moved < kSmallBytes ? 1 : cpu::thread_count(context);
  const std::size_t size = std::max<std::size_t>(static_cast<std::size_t>(moved / 2), 1);
  const std::vector<std::byte> from(size, std::byte{1});
  std::vector<std::byte> to(size);
  const auto copy_part = [&](int member) {
    const auto range = cpu::part_of(static_cast<std::int64_t>(size), count, member);
    std::memcpy(to.data() + range.begin, from.data() + range.begin,
                static_cast<std::size_t>(range.end - range.begin));
  };
  const auto run = [&] { cpu::parallel_for(context, count, copy_part); };
  return time_runs(run, seconds).median_us * (bytes > 0 ? bytes / moved : 1);
}

double reading_us(double bytes, int threads, double seconds) {
  const double moved = std::min(bytes, kLargestBytes);
  const Context context = on(threads);
  const int count = moved < kSmallBytes ? 1 : cpu::thread_count(context);
  const std::size_t words = std::max<std::size_t>(static_cast<std::size_t>(moved / 4), 1);
  const std::vector<std::uint32_t> data(words, 1u);
  std::vector<std::uint32_t> totals(static_cast<std::size_t>(count));
  const auto read_part = [&](int member) {
    const auto range = cpu::part_of(static_cast<std::int64_t>(words), count, member);
    totals[static_cast<std::size_t>(member)] =
        total(data.data() + range.begin, static_cast<std::size_t>(range.end - range.begin));
  };
  const auto run = [&] { cpu::parallel_for(context, count, read_part); };
  return time_runs(run, seconds).median_us * (bytes > 0 ? bytes / moved : 1);
}

double peak_flops(int threads) {
  static std::map<int, double> known;
  const Context context = on(threads);
  const int count = cpu::thread_count(context);
  const auto found = known.find(count);
  if (found != known.end()) return found->second;
  std::vector<float> data(static_cast<std::size_t>(count) * kLanes, 1.0f);
  const auto chain = [&](int member) { multiply_add(data.data() + member * kLanes, kRounds); };
  const Timing timing = time_runs([&] { cpu::parallel_for(context, count, chain); }, 0.1);
  const double flops = 2.0 * kLanes * kRounds * count / (timing.min_us * 1e-6);
  known[count] = flops;
  return flops;
}

double gemm_flops(int threads, DType operands) {
  static std::map<std::pair<int, bool>, double> known;
  const Context context = on(threads);
  const int count = cpu::thread_count(context);
  const cpu::GemmRateKernels& kernels = cpu::gemm_rate_kernels(cpu::best_target());
  const bool pairs = operands == DType::kBFloat16 && kernels.pairs != nullptr;
  const auto found = known.find({count, pairs});
  if (found != known.end()) return found->second;
  constexpr int kProducts = 200;
  std::vector<float> data(static_cast<std::size_t>(count) * cpu::kGemmRateFloats, 0.5f);
  const auto multiply = [&](int member) {
    (pairs ? kernels.pairs : kernels.singles)(kProducts,
                                              data.data() + member * cpu::kGemmRateFloats);
  };
  const Timing timing = time_runs([&] { cpu::parallel_for(context, count, multiply); }, 0.1);
  const double flops = cpu::kGemmRateFlops * kProducts * count / (timing.min_us * 1e-6);
  known[{count, pairs}] = flops;
  return flops;
}

}  // namespace hyla::testing
