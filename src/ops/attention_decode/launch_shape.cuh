// Launches the kernels of one shape: the one that streams, and the one that adds up its pieces.
#pragma once

#include "device/launch.h"
#include "ops/attention_decode/kernel_combine.cuh"
#include "ops/attention_decode/kernel_decode.cuh"
#include "ops/attention_decode/kernel_wide.cuh"
#include "ops/attention_decode/plan_queries.h"

namespace hyla::attention::decode {

// Only shapes that own plans have.
template <class Shape>
auto own_combine() -> void (*)(Arguments) {
  if constexpr (Shape::kRows == kWarpRows) {
    return attention_combine_own<Shape>;
  } else {
    return nullptr;
  }
}

template <class Shape>
void launch_combine(const Arguments& arguments, const Plan& plan, const Context& context) {
  constexpr int kRowsAtOnce = kCombineThreads / (Shape::D / 4);
  constexpr int kTimes = (Shape::kRows + kRowsAtOnce - 1) / kRowsAtOnce;
  device::LaunchShape shape;
  shape.block = dim3(kCombineThreads);
  shape.programmatic = !plan.own_bits;
  if (plan.entries <= kFewItems && !plan.own_bits) {
    shape.grid = dim3(static_cast<unsigned>(plan.entries), Shape::kRows, Shape::D / kPieceColumns);
    device::launch(attention_combine_pieces<Shape>, shape, arguments, context);
  } else if constexpr (Shape::kRows > 2 * kWarpRows && Shape::kHeads == 1) {
    shape.grid = dim3(static_cast<unsigned>(plan.entries + 1) / 2, kManyTimes);
    device::launch(attention_combine_many<Shape>, shape, arguments, context);
  } else {
    shape.grid = dim3(static_cast<unsigned>(plan.entries), kTimes);
    device::launch(plan.own_bits ? own_combine<Shape>() : attention_combine_rows<Shape>, shape,
                   arguments, context);
  }
}

template <class Shape, class Given>
void launch_shape(void (*kernel)(Given), const Given& arguments, const Plan& plan,
                  const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(plan.ctas));
  shape.block = dim3(Shape::kThreads);
  shape.shared_bytes = Shape::kSharedBytes;
  device::launch(kernel, shape, arguments, context);
  launch_combine<Shape>(arguments, plan, context);
}

}  // namespace hyla::attention::decode
