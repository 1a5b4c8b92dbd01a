// Chooses the instance of a plan.
#pragma once

#include "device/launch.h"
#include "ops/attention_decode/kernel_combine.cuh"
#include "ops/attention_decode/kernel_decode.cuh"
#include "ops/attention_decode/launch_decode.h"

namespace hyla::attention::decode {

template <class Shape>
void launch_shape(const Arguments& arguments, const Plan& plan, const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(plan.ctas));
  shape.block = dim3(Shape::kThreads);
  shape.shared_bytes = Shape::kSharedBytes;
  device::launch(attention_decode<Shape>, shape, arguments, context);
  shape.grid.y = kCombineRows;
  shape.block = dim3(kCombineThreads);
  shape.shared_bytes = 0;
  shape.programmatic = true;
  device::launch(attention_combine<Shape>, shape, arguments, context);
}

template <class Stored, int D>
void launch_dim(const Arguments& arguments, const Plan& plan, const Context& context) {
  if (plan.sharing == 4) return launch_shape<Shape<Stored, D, 4, 1>>(arguments, plan, context);
  if constexpr (D == 128) {
    if (plan.heads == 4) return launch_shape<Shape<Stored, D, 1, 4>>(arguments, plan, context);
  }
  launch_shape<Shape<Stored, D, 1, 1>>(arguments, plan, context);
}

template <class Stored>
void launch_stored(const Arguments& arguments, const Plan& plan, const Context& context) {
  if (plan.dim == 64) return launch_dim<Stored, 64>(arguments, plan, context);
  if (plan.dim == 128) return launch_dim<Stored, 128>(arguments, plan, context);
  launch_dim<Stored, 256>(arguments, plan, context);
}

}  // namespace hyla::attention::decode
