#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "testing/device_check.h"
#include "testing/device_memory.h"

namespace hyla::testing::cuda {
namespace {

constexpr int kKeys = 16, kRowBytes = 512, kTileBytes = kKeys * kRowBytes;
constexpr int kWarps = 4, kSlots = 6;
constexpr int kSharedBytes = kWarps * kSlots * kTileBytes;

struct Pages {
  const char* pools[2];       // keys and values, [pages, tokens, widths, kRowBytes]
  const int* table;           // [rows * keys / tokens]
  int tokens, widths, units;  // of a page; of a token; of 16 keys and a width, of all rows
  int units_a_width, pages_a_row;
};

__device__ int row_of_unit(const Pages& a, int unit) {
  const int item = unit / a.units_a_width, key = unit % a.units_a_width * kKeys;
  const int page = a.table[item / a.widths * a.pages_a_row + key / a.tokens];
  return (page * a.tokens + key % a.tokens) * a.widths + item % a.widths;
}

// A warp has every fourth unit of its CTA's share: 16 rows of keys, then 16 of values, by
// asynchronous copies, of which it waits for the oldest.
__global__ void __launch_bounds__(kWarps * 32) copy_pages(Pages a, unsigned* sink) {
  extern __shared__ __align__(16) char memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto share = [&](unsigned cta) {
    return static_cast<int>(static_cast<long long>(a.units) * cta / gridDim.x);
  };
  const int end = share(blockIdx.x + 1);
  int unit = share(blockIdx.x) + warp, slot = 0, tile = 0, running = 0;
  int next = unit < end ? row_of_unit(a, unit) : 0, row = 0;
  char* ring = memory + warp * kSlots * kTileBytes;
  unsigned bits = 0;
  while (true) {
    if (unit >= end && tile == 0) {
      if (running == 0) break;
    } else {
      if (tile == 0) {
        row = next;
        if (unit + kWarps < end) next = row_of_unit(a, unit + kWarps);
      }
      const char* from = a.pools[tile] + static_cast<std::size_t>(row) * kRowBytes + lane * 16;
      const auto to =
          static_cast<unsigned>(__cvta_generic_to_shared(ring + slot * kTileBytes + lane * 16));
#pragma unroll
      for (int i = 0; i < kKeys; ++i) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * kRowBytes),
                     "l"(from + static_cast<std::size_t>(i) * a.widths * kRowBytes)
                     : "memory");
      }
      tile ^= 1;
      if (tile == 0) unit += kWarps;
      ++running;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    slot = slot + 1 == kSlots ? 0 : slot + 1;
    if (running < kSlots && unit < end) continue;
    asm volatile("cp.async.wait_group %0;" ::"n"(kSlots - 1) : "memory");
    bits ^= *reinterpret_cast<volatile unsigned*>(ring + slot * kTileBytes + lane * 16);
    --running;
  }
  if (bits == 0x12345677u) *sink = bits;
}

// A CTA has a piece of a page: of its keys, then of its values, all widths side by side.
constexpr int kReaders = 256, kLoads = 8, kPieceBytes = 16384;
__global__ void __launch_bounds__(kReaders)
    read_pages(Pages a, int page_bytes, int piece_bytes, unsigned* sink) {
  const int pieces = page_bytes / piece_bytes, index = static_cast<int>(blockIdx.x);
  const std::size_t at = static_cast<std::size_t>(a.table[index / pieces]) * page_bytes +
                         static_cast<std::size_t>(index % pieces) * piece_bytes;
  unsigned bits = 0;
#pragma unroll 1
  for (int pool = 0; pool < 2; ++pool) {
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) * 16; first < piece_bytes;
         first += kLoads * kReaders * 16) {
      uint4 x[kLoads] = {};
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int offset = first + i * kReaders * 16;
        if (offset >= piece_bytes) continue;
        x[i] = __ldcs(reinterpret_cast<const uint4*>(a.pools[pool] + at + offset));
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) bits ^= x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
    }
  }
  if (bits == 0x12345677u) *sink = bits;
}

}  // namespace

double pages_us(const PagesShape& shape, double seconds) {
  const std::int64_t row_bytes = shape.heads * shape.row_bytes;
  if (shape.page <= 0 || shape.page % kKeys != 0 || row_bytes % kRowBytes != 0 ||
      shape.keys % shape.page != 0) {
    return 0;
  }
  const std::int64_t pages = shape.rows * (shape.keys / shape.page);
  const std::int64_t pool_bytes = pages * shape.page * row_bytes;
  if (pages * shape.page * (row_bytes / kRowBytes) > INT32_MAX) return 0;
  const auto cold_bytes = static_cast<std::int64_t>(kColdBytes);
  const std::int64_t copies = std::max<std::int64_t>(cold_bytes / (2 * pool_bytes), 1);
  const std::unique_ptr<void, decltype(&release)> memory(
      allocate(static_cast<std::size_t>(copies * 2 * pool_bytes)), release);
  const std::unique_ptr<void, decltype(&release)> table(
      allocate(static_cast<std::size_t>(pages) * sizeof(int) + 16), release);
  std::vector<int> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  const auto on = static_cast<cudaStream_t>(stream().handle());
  fill_words(memory.get(), static_cast<std::size_t>(copies * 2 * pool_bytes));
  check(cudaMemcpyAsync(table.get(), order.data(), order.size() * sizeof(int),
                        cudaMemcpyHostToDevice, on),
        "a table of pages");
  check(cudaStreamSynchronize(on), "a table of pages");
  Pages a{};
  a.table = static_cast<const int*>(table.get());
  a.tokens = static_cast<int>(shape.page);
  a.widths = static_cast<int>(row_bytes / kRowBytes);
  a.units_a_width = static_cast<int>(shape.keys / kKeys);
  a.pages_a_row = static_cast<int>(shape.keys / shape.page);
  a.units = static_cast<int>(shape.rows) * a.widths * a.units_a_width;
  int processors = 0;
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "its processors");
  check(cudaFuncSetAttribute(copy_pages, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
        "shared memory");
  auto* sink =
      reinterpret_cast<unsigned*>(static_cast<char*>(table.get()) + order.size() * sizeof(int));
  const auto timed = [&](const auto& launch) {
    return graph_us(
        [&] {
          for (std::int64_t i = 0; i < copies; ++i) {
            a.pools[0] = static_cast<const char*>(memory.get()) + i * 2 * pool_bytes;
            a.pools[1] = a.pools[0] + pool_bytes;
            launch();
          }
          check(cudaGetLastError(), "reading pages");
        },
        seconds / 2);
  };
  const std::int64_t page_bytes = shape.page * row_bytes;
  const std::int64_t piece_bytes = page_bytes % kPieceBytes == 0 ? kPieceBytes : page_bytes;
  const double copied = timed([&] {
    copy_pages<<<static_cast<unsigned>(processors), kWarps * 32, kSharedBytes, on>>>(a, sink);
  });
  const double read = timed([&] {
    read_pages<<<static_cast<unsigned>(pages * (page_bytes / piece_bytes)), kReaders, 0, on>>>(
        a, static_cast<int>(page_bytes), static_cast<int>(piece_bytes), sink);
  });
  const double us = std::min(copied, read);
  return us / static_cast<double>(copies);
}

}  // namespace hyla::testing::cuda
