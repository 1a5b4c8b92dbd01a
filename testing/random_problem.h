// From a problem string to a call with random, poisoned and strided tensors.
#pragma once

#include <cstdint>

#include "testing/call.h"
#include "testing/problem_string.h"

namespace hyla::testing {

// How unfriendly the tensors are. The numbers of a problem do not depend on it.
struct CaseOptions {
  bool packed = false;      // q, k, v are slices of one projection, gate and beta of another
  bool gaps = false;        // rows and slots with unused elements between, unaligned first elements
  bool shuffled = false;    // slots in random order, a pool with more slots than rows
  bool padding = false;     // rows with a null read slot; what nobody may read is NaN
  bool elsewhere = false;   // some rows write to a slot that they did not read, or to none
  bool read_table = false;  // read_slots [B, S] with read_columns
  bool starts = false;      // sequences by starts and lengths, with unused tokens between
  bool fresh_rows = false;  // prefill: some rows start from zero, whatever the pool holds
  bool extras = false;      // optional arguments: bias, sinks, LSE, fused norm, window offsets
  bool wide_indices = false;  // int64 instead of int32
  // Not 0: which of the rarer arguments the call has is drawn from it, the dtypes, numbers and
  // kinds of caches that an engine seldom uses. Not from the problem's seed: calls of one problem
  // and one set of options differ in nothing but what their tensors hold.
  std::uint64_t variety = 0;

  static CaseOptions plain() { return {}; }
  static CaseOptions hostile();
  // Slots and pages in any order, rows without any, and rows that write elsewhere.
  static CaseOptions scattered();
  // Each option on or off, by the seed.
  static CaseOptions drawn(std::uint64_t seed);
};

// Bytes that the tensors of a problem take. Throws InvalidArgument where they exceed what this
// machine has, before anything is allocated.
std::int64_t check_memory(const ProblemSpec& spec);

// Gates are those of a trained model: ln(alpha) about -0.05 a token, 0 for a quarter of the heads.
// Memory that must not be read (unused slots, padding rows, gaps, outputs) holds poison.
Call random_call(const ProblemSpec& spec, const CaseOptions& options = CaseOptions::plain());

}  // namespace hyla::testing
