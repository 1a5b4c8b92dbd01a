#include "testing/limits.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu/gemm_rate.h"
#include "cpu/parallel.h"

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
constexpr int kRounds = 20000, kProducts = 200;

HYLA_BEST_VECTORS void multiply_add(float* data, int rounds) {
  float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = data[i];
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < kLanes; ++i) x[i] = x[i] * 0.999f + 0.001f;
  }
  for (int i = 0; i < kLanes; ++i) data[i] = x[i];
}

constexpr double kSmallBytes = 256 << 10;  // below this a second thread costs more than it brings
constexpr double kLargestBytes = 1 << 30;  // larger buffers stream at the same rate

int threads_for(double bytes, const Context& on) {
  return bytes < kSmallBytes ? 1 : cpu::thread_count(on);
}

// Runs body(member) on so many threads.
template <class Body>
std::function<void()> on_threads(Context on, int count, Body body) {
  on.threads = count;
  return [on, count, body] { cpu::parallel_for(on, count, body); };
}

}  // namespace

Limit streaming(double bytes, const Context& on) {
  const double moved = std::min(bytes, kLargestBytes);
  const int count = threads_for(moved, on);
  const auto floats = std::max<std::int64_t>(static_cast<std::int64_t>(moved / 8), 1);
  const auto data = std::make_shared<std::vector<float>>(static_cast<std::size_t>(floats));
  const auto update_part = [=](int member) {
    const auto range = cpu::part_of(floats, count, member);
    update(data->data() + range.begin, static_cast<std::size_t>(range.end - range.begin));
  };
  return {on_threads(on, count, update_part), bytes > 0 ? bytes / moved : 1};
}

Limit copying(double bytes, const Context& on) {
  const double moved = std::min(bytes, kLargestBytes);
  const int count = threads_for(moved, on);
  const auto size = std::max<std::int64_t>(static_cast<std::int64_t>(moved / 2), 1);
  using Bytes = std::vector<std::byte>;
  const auto from = std::make_shared<Bytes>(static_cast<std::size_t>(size), std::byte{1});
  const auto to = std::make_shared<Bytes>(static_cast<std::size_t>(size));
  const auto copy_part = [=](int member) {
    const auto range = cpu::part_of(size, count, member);
    std::memcpy(to->data() + range.begin, from->data() + range.begin,
                static_cast<std::size_t>(range.end - range.begin));
  };
  return {on_threads(on, count, copy_part), bytes > 0 ? bytes / moved : 1};
}

Limit reading(double bytes, const Context& on) {
  const double moved = std::min(bytes, kLargestBytes);
  const int count = threads_for(moved, on);
  const auto words = std::max<std::int64_t>(static_cast<std::int64_t>(moved / 4), 1);
  using Words = std::vector<std::uint32_t>;
  const auto data = std::make_shared<Words>(static_cast<std::size_t>(words), 1u);
  const auto totals = std::make_shared<Words>(static_cast<std::size_t>(count));
  const auto read_part = [=](int member) {
    const auto range = cpu::part_of(words, count, member);
    (*totals)[static_cast<std::size_t>(member)] =
        total(data->data() + range.begin, static_cast<std::size_t>(range.end - range.begin));
  };
  return {on_threads(on, count, read_part), bytes > 0 ? bytes / moved : 1};
}

Limit multiply_adds(double flops, const Context& on) {
  const int count = cpu::thread_count(on);
  const auto data =
      std::make_shared<std::vector<float>>(static_cast<std::size_t>(count) * kLanes, 1.0f);
  const auto chain = [=](int member) { multiply_add(data->data() + member * kLanes, kRounds); };
  return {on_threads(on, count, chain), flops / (2.0 * kLanes * kRounds * count)};
}

Limit matrix_products(double flops, const Context& on, DType operands) {
  const int count = cpu::thread_count(on);
  const cpu::GemmRateKernels& kernels = cpu::gemm_rate_kernels(cpu::best_target());
  const bool pairs = operands == DType::kBFloat16 && kernels.pairs != nullptr;
  auto multiply = pairs ? kernels.pairs : kernels.singles;
  if (pairs && cpu::best_target() == cpu::Target::kAmx) multiply = kernels.amx;
  constexpr std::int64_t kLineFloats = 16;  // tiles are loaded twice as fast from whole lines
  const auto data = std::make_shared<std::vector<float>>(
      static_cast<std::size_t>(count) * cpu::kGemmRateFloats + kLineFloats, 0.5f);
  const auto part = [=](int member) {
    const auto skipped = reinterpret_cast<std::uintptr_t>(data->data()) / 4 % kLineFloats;
    float* first = data->data() + (kLineFloats - skipped) % kLineFloats;
    multiply(kProducts, first + member * cpu::kGemmRateFloats);
  };
  return {on_threads(on, count, part), flops / (cpu::kGemmRateFlops * kProducts * count)};
}

}  // namespace hyla::testing
