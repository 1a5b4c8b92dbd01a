// What this machine can do at best, measured: the yardstick of the benchmarks.
#pragma once

#include <hyla/tensor.h>

#include <functional>
#include <vector>

namespace hyla::testing {

struct Timing {
  double median_us = 0, min_us = 0;
  int runs = 0;
};

// Runs it once to warm up, then for at least `seconds` and at least three times.
Timing time_runs(const std::function<void()>& body, double seconds);

// Time to read `bytes`/2 bytes and write them back in place, on `threads` threads (0: all).
double streaming_us(double bytes, int threads, double seconds);

// Time to copy `bytes`/2 bytes to another place, on `threads` threads (0: all).
double copying_us(double bytes, int threads, double seconds);

// Time to read `bytes` bytes, in order, on `threads` threads (0: all).
double reading_us(double bytes, int threads, double seconds);

// float32 multiply-adds a second on `threads` threads (0: all), times two. Measured once for each
// number of threads.
double peak_flops(int threads);

// The same for matrix products out of a near cache, of bfloat16 pairs where `operands` is bfloat16
// and the CPU multiplies them.
double gemm_flops(int threads, DType operands);

}  // namespace hyla::testing
