// What this machine can do at best: the yardsticks of the benchmarks.
#pragma once

#include <hyla/context.h>

#include <functional>

namespace hyla::testing {

// Work to be timed beside a call; its time, `scale` times, is the limit.
struct Limit {
  std::function<void()> run;
  double scale = 1;
};

// Reads `bytes`/2 bytes and writes them back in place, on the threads of a context.
Limit streaming(double bytes, const Context& on);

// Copies `bytes`/2 bytes to another place, on the threads of a context.
Limit copying(double bytes, const Context& on);

// Reads `bytes` bytes, in order, on the threads of a context.
Limit reading(double bytes, const Context& on);

// `flops` by float32 multiply-adds, each of which is two, on the threads of a context.
Limit multiply_adds(double flops, const Context& on);

// The same by matrix products out of a near cache, of bfloat16 pairs where `operands` is bfloat16
// and the CPU multiplies them.
Limit matrix_products(double flops, const Context& on, DType operands);

}  // namespace hyla::testing
