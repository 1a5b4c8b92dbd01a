// The little of the CUDA runtime that checks and benchmarks need. Without CUDA every function
// throws Unsupported.
#pragma once

#include <hyla/stream.h>
#include <hyla/tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace hyla::testing::cuda {

// What a measurement walks through before it comes back to the same bytes: several times any L2.
inline constexpr std::size_t kColdBytes = std::size_t{512} << 20;

void* allocate(std::size_t bytes);
void release(void* memory);
struct Release {
  void operator()(void* memory) const { release(memory); }
};
using Memory = std::unique_ptr<void, Release>;  // of allocate()
// From now on what is released waits for the next that asks for as much. Checks allocate the same
// small tensors again and again, and where processes share a device every call of the driver waits
// for the others. Not with HYLA_EXACT_MEMORY in the environment: memory checkers see no farther
// than the driver's own blocks.
void reuse_memory();
void upload(void* to, const void* from, std::size_t bytes);
void download(void* to, const void* from, std::size_t bytes);
void fill(void* memory, int byte, std::size_t bytes);
// `n` random numbers of a normal distribution, drawn on the device; float32, bfloat16 or float16.
void fill_normal(void* memory, DType dtype, std::size_t n, double mean, double deviation,
                 std::uint64_t seed);
// Words that are not alike: constant data can run faster than real data.
void fill_words(void* memory, std::size_t bytes);
// Many at once, in the order of stream(). The host's memory may change as soon as they return.
struct Upload {
  void* to;
  std::span<const std::byte> from;
};
struct Download {
  std::span<std::byte> to;
  const void* from;
};
void upload_all(std::span<const Upload> copies);
void download_all(std::span<const Download> copies);
void fill_async(void* memory, int byte, std::size_t bytes);
void copy_async(void* to, const void* from, std::size_t bytes);  // on the device
Stream stream();                                                 // one for all calls of the process
void synchronize();
std::size_t free_bytes();

// What `enqueue` launches, as a graph that runs on whatever the memory holds when it is replayed.
class Captured {
 public:
  explicit Captured(const std::function<void()>& enqueue);
  ~Captured();
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void replay() const;
  double replay_us() const;  // waits for it

 private:
  void* executable_ = nullptr;
};

// Launches a kernel that does nothing.
void launch_nothing();

// Captures what `enqueue` launches as a graph, replays it for at least `seconds` and gives the
// median time of a replay.
double graph_us(const std::function<void()>& enqueue, double seconds);

// Time to read `bytes`/2 bytes and write them back in place, from memory and not from the cache.
double streaming_us(double bytes, double seconds);

// Time to read `bytes` bytes from memory and not from the cache.
double reading_us(double bytes, double seconds);

// Heads of a step of decode: each updates its state in place.
struct ChainShape {
  int heads = 0, heads_a_key = 1;  // of all rows; how many share q and k
  int state_bytes = 0;             // of a head, a multiple of 4 KiB
};

// Time of the shortest kernel that waits for what decode waits for: the state, q, k, v and the
// gates, none of them in the cache, then a sum over a warp, then the state's way back. Without
// math.
double chain_us(const ChainShape& shape, double seconds);

// Rows of several tokens: each head of a row updates its state in place once.
inline constexpr int kMostMovedTokens = 8;
struct TokensShape {
  int rows = 0, tokens = 0, heads = 0, heads_a_key = 1;
  int state_bytes = 0;  // of a head, a multiple of 16 KiB
};

// Time of the fastest of some kernels that read what gdn.mtp reads, q, k, v and gates of all tokens
// and the state, and write the state and the outputs, without math. 128 elements of 16 bits a
// token and head.
double moving_tokens_us(const TokensShape& shape, double seconds);

// A cache whose pages lie anywhere.
struct PagesShape {
  std::int64_t rows = 0, keys = 0, page = 0;  // keys of a row, of a page
  std::int64_t heads = 0, row_bytes = 0;      // of a key and head
};

// Time to read all keys and values once, page by page, by the faster of two kernels: copies to
// shared memory in equal shares, plain loads by many small CTAs. 0: not for this shape.
double pages_us(const PagesShape& shape, double seconds);

// Operations a second of the matrix units on random bfloat16 numbers.
double matrix_flops(double seconds);

// Time to read `bytes` / (1 + copies) bytes and write them to as many other places as there are
// copies.
double spreading_us(double bytes, int copies, double seconds);

}  // namespace hyla::testing::cuda
