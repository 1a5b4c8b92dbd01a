#include <cuda_runtime.h>

#include <algorithm>
#include <memory>

#include "testing/device_check.h"
#include "testing/device_memory.h"

namespace hyla::testing::cuda {
namespace {

// What a head's token is besides the state, in words: 128 elements of 16 bits each, four gates.
constexpr unsigned kVectorWords = 64;
struct Side {
  const unsigned *q, *k, *v;  // [heads or key heads, kVectorWords]
  const unsigned* gates;      // [4, heads]
  unsigned* out;              // [heads, kVectorWords]
};

// state [heads, chunks] of 16 bytes; grid (chunks / (blockDim * Loads), heads)
template <int Loads>
__global__ void update_behind_a_chain(uint4* state, unsigned chunks, unsigned heads_a_key,
                                      Side side) {
  const unsigned head = blockIdx.y, key = head / heads_a_key, lane = threadIdx.x % 32;
  const unsigned first = blockIdx.x * blockDim.x * Loads + threadIdx.x;
  uint4* own = state + static_cast<std::size_t>(head) * chunks + first;
  uint4 x[Loads];
#pragma unroll
  for (int i = 0; i < Loads; ++i) x[i] = own[i * blockDim.x];
  unsigned bits = 0;
#pragma unroll
  for (unsigned i = 0; i < kVectorWords; i += 32) {
    bits ^= side.k[key * kVectorWords + i + lane] ^ side.q[key * kVectorWords + i + lane];
  }
  bits ^= side.v[head * kVectorWords + lane];
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) bits ^= side.gates[i * gridDim.y + head];
#pragma unroll
  for (int i = 0; i < Loads; ++i) bits ^= x[i].x ^ x[i].y ^ x[i].z ^ x[i].w;
  float sum = static_cast<float>(bits >> 20);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  const unsigned flip = static_cast<unsigned>(sum) & 7;
#pragma unroll
  for (int i = 0; i < Loads; ++i) {
    own[i * blockDim.x] = make_uint4(x[i].x ^ flip, x[i].y ^ flip, x[i].z ^ flip, x[i].w ^ flip);
  }
  if (lane == 0) side.out[head * kVectorWords + first / 32 % kVectorWords] = flip;
}

struct Shape {
  void (*kernel)(uint4*, unsigned, unsigned, Side);
  unsigned threads, loads;
};
const Shape kShapes[] = {{update_behind_a_chain<8>, 32, 8},
                         {update_behind_a_chain<2>, 128, 2},
                         {update_behind_a_chain<1>, 256, 1},
                         {update_behind_a_chain<4>, 64, 4}};

constexpr std::size_t kAlignment = 256;

std::size_t padded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

double chain_us(const ChainShape& shape, double seconds) {
  const auto heads = static_cast<std::size_t>(shape.heads);
  const std::size_t state_bytes = heads * static_cast<std::size_t>(shape.state_bytes);
  const std::size_t vector_bytes = padded(heads * kVectorWords * sizeof(unsigned));
  const std::size_t gate_bytes = padded(4 * heads * sizeof(unsigned));
  const std::size_t bytes = state_bytes + 4 * vector_bytes + gate_bytes;
  const std::size_t copies = std::min<std::size_t>(kColdBytes / bytes + 1, 64);
  const std::unique_ptr<void, decltype(&release)> memory(allocate(copies * bytes), release);
  const auto on = static_cast<cudaStream_t>(stream().handle());
  fill_words(memory.get(), copies * bytes);
  const auto chunks = static_cast<unsigned>(shape.state_bytes) / 16;
  double best = 0;
  for (const Shape& s : kShapes) {
    const double us = graph_us(
        [&] {
          for (std::size_t i = 0; i < copies; ++i) {
            std::byte* base = static_cast<std::byte*>(memory.get()) + i * bytes;
            const auto words = [&](std::size_t offset) {
              return reinterpret_cast<unsigned*>(base + state_bytes + offset);
            };
            const Side side{words(0), words(vector_bytes), words(2 * vector_bytes),
                            words(4 * vector_bytes), words(3 * vector_bytes)};
            s.kernel<<<dim3(chunks / (s.threads * s.loads), static_cast<unsigned>(shape.heads)),
                       s.threads, 0, on>>>(reinterpret_cast<uint4*>(base), chunks,
                                           static_cast<unsigned>(shape.heads_a_key), side);
          }
          check(cudaGetLastError(), "the chain");
        },
        seconds);
    if (best == 0 || us < best) best = us;
  }
  return best / static_cast<double>(copies);
}

}  // namespace hyla::testing::cuda
