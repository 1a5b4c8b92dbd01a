#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "testing/device_check.h"
#include "testing/device_memory.h"

namespace hyla::testing::cuda {
namespace {

constexpr int kMostTokens = kMostMovedTokens;
constexpr int kKeyPieces = 16;   // of 16 bytes: 128 elements of 16 bits
constexpr int kValueWords = 64;  // the same in words
constexpr int kGates = 4;        // words of a token and head

// What the rows' tokens are besides the states.
struct Tokens {
  const uint4 *q, *k;         // [rows, tokens, key heads, kKeyPieces]
  const unsigned *v, *gates;  // [rows, tokens, heads, kValueWords], [rows, tokens, kGates, heads]
  unsigned* out;              // as v
};

// state [rows, heads, chunks] of 16 bytes; grid (chunks / (Threads * Loads), heads, rows). The
// tokens are asked for before the state, as the library does: behind it they come later.
template <int Threads, int Loads>
__global__ void __launch_bounds__(Threads)
    move_tokens(uint4* state, unsigned chunks, unsigned heads_a_key, unsigned tokens, Tokens x) {
  __shared__ unsigned sums[Threads / 32];
  const unsigned thread = threadIdx.x, head = blockIdx.y, heads = gridDim.y;
  const std::size_t row = blockIdx.z;
  const auto key_place = [&](unsigned token) {
    return ((row * tokens + token) * (heads / heads_a_key) + head / heads_a_key) * kKeyPieces;
  };
  constexpr int kOwnPieces = 2 * kKeyPieces * kMostTokens / Threads;
  uint4 keys[kOwnPieces];
#pragma unroll
  for (int i = 0; i < kOwnPieces; ++i) {
    const unsigned piece = thread + i * Threads, token = piece / (2 * kKeyPieces);
    const uint4* from = piece % (2 * kKeyPieces) < kKeyPieces ? x.q : x.k;
    keys[i] = make_uint4(0, 0, 0, 0);
    if (token < tokens) keys[i] = from[key_place(token) + piece % kKeyPieces];
  }
  // A CTA's part of each token's values.
  const unsigned words = kValueWords / gridDim.x;
  const auto value_place = [&](unsigned i) {
    return ((row * tokens + i / words) * heads + head) * kValueWords + blockIdx.x * words +
           i % words;
  };
  constexpr int kOwnValues = kValueWords * kMostTokens / Threads;
  unsigned values[kOwnValues];
#pragma unroll
  for (int i = 0; i < kOwnValues; ++i) {
    const unsigned word = thread + i * Threads;
    values[i] = word < tokens * words ? x.v[value_place(word)] : 0;
  }
  unsigned bits = 0;
  if (thread < kGates * tokens) bits = x.gates[(row * kGates * tokens + thread) * heads + head];
  __syncwarp();  // ptxas moves no load across
  uint4* own = state + (row * heads + head) * chunks + blockIdx.x * Threads * Loads + thread;
  uint4 pieces[Loads];
#pragma unroll
  for (int i = 0; i < Loads; ++i) pieces[i] = own[i * Threads];
  const auto add = [&](const uint4& y) { bits ^= y.x ^ y.y ^ y.z ^ y.w; };
#pragma unroll
  for (const uint4& y : keys) add(y);
#pragma unroll
  for (const uint4& y : pieces) add(y);
  const unsigned sum = __reduce_xor_sync(0xffffffffu, bits);
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  unsigned flip = 0;
#pragma unroll
  for (const unsigned y : sums) flip ^= y;
  flip &= 7;
#pragma unroll
  for (int i = 0; i < Loads; ++i) {
    const uint4& y = pieces[i];
    own[i * Threads] = make_uint4(y.x ^ flip, y.y ^ flip, y.z ^ flip, y.w ^ flip);
  }
#pragma unroll
  for (int i = 0; i < kOwnValues; ++i) {
    const unsigned word = thread + i * Threads;
    if (word < tokens * words) x.out[value_place(word)] = values[i] ^ flip;
  }
}

struct Shape {
  void (*kernel)(uint4*, unsigned, unsigned, unsigned, Tokens);
  unsigned threads, loads;
};
template <int Threads, int Loads>
constexpr Shape kShape{move_tokens<Threads, Loads>, Threads, Loads};
// The fastest somewhere of thirteen on an H200.
const Shape kShapes[] = {kShape<256, 4>, kShape<256, 2>, kShape<128, 4>, kShape<128, 8>};

constexpr std::size_t kAlignment = 256;

std::size_t padded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

double moving_tokens_us(const TokensShape& shape, double seconds) {
  const auto rows = static_cast<std::size_t>(shape.rows);
  const auto tokens = static_cast<std::size_t>(shape.tokens);
  const auto heads = static_cast<std::size_t>(shape.heads);
  const std::size_t key_heads = heads / static_cast<std::size_t>(shape.heads_a_key);
  const std::size_t state_bytes = rows * heads * static_cast<std::size_t>(shape.state_bytes);
  const std::size_t key_bytes = padded(rows * tokens * key_heads * kKeyPieces * sizeof(uint4));
  const std::size_t value_bytes = padded(rows * tokens * heads * kValueWords * sizeof(unsigned));
  const std::size_t gate_bytes = padded(rows * tokens * heads * kGates * sizeof(unsigned));
  const std::size_t bytes = state_bytes + 2 * key_bytes + 2 * value_bytes + gate_bytes;
  const std::size_t copies = std::min<std::size_t>(kColdBytes / bytes + 1, 64);
  const Memory memory(allocate(copies * bytes));
  const auto on = static_cast<cudaStream_t>(stream().handle());
  fill_words(memory.get(), copies * bytes);
  const auto chunks = static_cast<unsigned>(shape.state_bytes) / 16;
  double best = 0;
  for (const Shape& s : kShapes) {
    const dim3 grid(chunks / (s.threads * s.loads), static_cast<unsigned>(shape.heads),
                    static_cast<unsigned>(shape.rows));
    const double us = graph_us(
        [&] {
          for (std::size_t i = 0; i < copies; ++i) {
            std::byte* next = static_cast<std::byte*>(memory.get()) + i * bytes;
            const auto take = [&](std::size_t size) {
              std::byte* const here = next;
              next += size;
              return here;
            };
            auto* const state = reinterpret_cast<uint4*>(take(state_bytes));
            Tokens x;
            x.q = reinterpret_cast<const uint4*>(take(key_bytes));
            x.k = reinterpret_cast<const uint4*>(take(key_bytes));
            x.v = reinterpret_cast<const unsigned*>(take(value_bytes));
            x.out = reinterpret_cast<unsigned*>(take(value_bytes));
            x.gates = reinterpret_cast<const unsigned*>(take(gate_bytes));
            s.kernel<<<grid, s.threads, 0, on>>>(state, chunks,
                                                 static_cast<unsigned>(shape.heads_a_key),
                                                 static_cast<unsigned>(shape.tokens), x);
          }
          check(cudaGetLastError(), "the moved tokens");
        },
        seconds);
    if (best == 0 || us < best) best = us;
  }
  return best / static_cast<double>(copies);
}

}  // namespace hyla::testing::cuda
