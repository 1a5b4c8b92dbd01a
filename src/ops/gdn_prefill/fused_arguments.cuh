// What the kernels over tiles receive.
#pragma once

#include <cuda.h>

#include "problem/gdn_prefill.h"

namespace hyla::gdn {

// Tiles of 64 tokens by 64 columns of one head.
struct FusedMaps {
  CUtensorMap q, k, v, out;
};

struct FusedArguments {
  FusedMaps maps;
  PrefillProblem p;
  int tasks = 0;  // sequences times heads
  // Not for the fused kernel.
  void* records = nullptr;  // [chunk slots, heads] Record
  float* states = nullptr;  // see segments.cuh
  int parts = 1;
  bool transfers = false;
};

}  // namespace hyla::gdn
