// What the fast attention kernels ask of a call over operands of the user's, before their own
// plans.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <hyla/attention_queries.h>
#include <hyla/kv_operand.h>
#include <hyla/workspace.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "device/launch.h"

namespace hyla::attention {

template <class Operand>
using DeviceElement =
    std::conditional_t<std::is_same_v<typename Operand::dtype, bfloat16>, __nv_bfloat16, __half>;

template <int HeadDim, class Operand>
void check_operand_queries(const Queries& queries) {
  constexpr DType kStored = dtype_of<typename Operand::dtype>;
  if (size_of(kStored) == 1 ? size_of(queries.q.dtype) != 2 : queries.q.dtype != kStored) {
    throw InvalidArgument(
        "q",
        std::string("dtype ") + (size_of(kStored) == 1 ? "bfloat16 or float16" : name_of(kStored)),
        name_of(queries.q.dtype));
  }
  const std::int64_t dim = std::max(queries.head_dim, queries.value_dim);
  if (dim > HeadDim || (HeadDim > 64 && dim <= HeadDim / 2)) {
    throw InvalidArgument("q", "a head dim that pads to " + std::to_string(HeadDim),
                          describe(queries.q));
  }
}

// Has a token one scale for all `dim` values of a head?
template <class Operand>
bool one_scale(std::int64_t dim) {
  return quantization_enabled<Operand>() && Operand::quantization_granularity >= dim;
}

inline void check_room(const Workspace& workspace, std::size_t needed) {
  if (workspace.data == nullptr || workspace.bytes < needed) {
    throw WorkspaceTooSmall(needed, workspace.bytes);
  }
}

// device::multiprocessors is inside the library; this runs in the user's program.
inline int processors_of(const Context& context) {
  int processors = 0;
  if (cudaError_t e =
          cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, context.device.index);
      e != cudaSuccess) {
    device::fail("context.device", e);
  }
  return processors;
}

}  // namespace hyla::attention
