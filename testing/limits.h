// What this machine can do at best: the yardsticks of the benchmarks.
#pragma once

#include <hyla/tensor.h>

#include <functional>

namespace hyla::testing {

// Work to be timed beside a call; its time, `scale` times, is the limit.
struct Limit {
  std::function<void()> run;
  double scale = 1;
};

// Reads `bytes`/2 bytes and writes them back in place, on `threads` threads (0: all).
Limit streaming(double bytes, int threads);

// Copies `bytes`/2 bytes to another place, on `threads` threads (0: all).
Limit copying(double bytes, int threads);

// Reads `bytes` bytes, in order, on `threads` threads (0: all).
Limit reading(double bytes, int threads);

// `flops` by float32 multiply-adds, each of which is two, on `threads` threads (0: all).
Limit multiply_adds(double flops, int threads);

// The same by matrix products out of a near cache, of bfloat16 pairs where `operands` is bfloat16
// and the CPU multiplies them.
Limit matrix_products(double flops, int threads, DType operands);

}  // namespace hyla::testing
