// What the kernels for a call with prompts are expected to take, as far as the host knows its rows.
#pragma once

#include <hyla/context.h>

#include "problem/attention.h"

namespace hyla::attention {

// A call whose rows are all full, in numbers. Times in microseconds, fitted to those of an H200
// (README.md says how well).
struct ExpectedMixture {
  double keys = 0;  // that a query may see
  double rows = 0, heads = 0, group = 0, tokens = 0;
  int dim = 0;         // padded
  bool bytes = false;  // keys and values of one byte
  bool whole = false;  // no window, no chunks: items may be cut along the keys
  double processors = 0;

  double by_tiles() const;    // the prefill kernel, all rows
  double by_widened() const;  // the same, keys and values of long rows widened before
  double by_chunks() const;   // the decode kernel, all rows, 64 packed queries at a time
  double by_both() const;     // each its own rows
  bool both_widen() const;    // is by_both with long rows widened before
};

ExpectedMixture expected_mixture(const RunProblem& problem, const Context& context);

}  // namespace hyla::attention
