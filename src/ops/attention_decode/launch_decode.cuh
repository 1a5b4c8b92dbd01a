// Chooses the instance of a plan.
#pragma once

#include "device/launch.h"
#include "ops/attention_decode/kernel_combine.cuh"
#include "ops/attention_decode/kernel_decode.cuh"
#include "ops/attention_decode/kernel_wide.cuh"
#include "ops/attention_decode/launch_decode.h"

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
  constexpr int kColumns = 64;
  constexpr int kRowsAtOnce = kCombineThreads / (Shape::D / 4);
  constexpr int kTimes = (Shape::kRows + kRowsAtOnce - 1) / kRowsAtOnce;
  device::LaunchShape shape;
  shape.block = dim3(kCombineThreads);
  shape.programmatic = !plan.own_bits;
  if (plan.entries <= kFewItems && !plan.own_bits) {
    shape.grid = dim3(static_cast<unsigned>(plan.entries), Shape::kRows, Shape::D / kColumns);
    device::launch(attention_combine_pieces<Shape, kColumns>, shape, arguments, context);
  } else {
    shape.grid = dim3(static_cast<unsigned>(plan.entries), kTimes);
    device::launch(plan.own_bits ? own_combine<Shape>() : attention_combine_rows<Shape>, shape,
                   arguments, context);
  }
}

template <class Shape>
void launch_shape(void (*kernel)(Arguments), const Arguments& arguments, const Plan& plan,
                  const Context& context) {
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(plan.ctas));
  shape.block = dim3(Shape::kThreads);
  shape.shared_bytes = Shape::kSharedBytes;
  device::launch(kernel, shape, arguments, context);
  launch_combine<Shape>(arguments, plan, context);
}

template <class Stored, int D, int Sharing, int Heads>
void launch_stream(const Arguments& arguments, const Plan& plan, const Context& context) {
  using Chosen = Shape<Stored, D, Sharing, Heads>;
  launch_shape<Chosen>(attention_decode<Chosen>, arguments, plan, context);
}

template <class Stored, int D>
void launch_dim(const Arguments& arguments, const Plan& plan, const Context& context) {
  if constexpr (sizeof(Stored) == 2) {
    if (plan.wide) {
      using Chosen = WideShape<Stored, D>;
      return launch_shape<Chosen>(attention_wide<Chosen>, arguments, plan, context);
    }
  } else {
    if (plan.sharing == 4) return launch_stream<Stored, D, 4, 1>(arguments, plan, context);
  }
  if constexpr (D == 256) {
    if (plan.heads == 2) return launch_stream<Stored, D, 1, 2>(arguments, plan, context);
  }
  if constexpr (D == 128) {
    if (plan.heads == 4) return launch_stream<Stored, D, 1, 4>(arguments, plan, context);
  }
  launch_stream<Stored, D, 1, 1>(arguments, plan, context);
}

template <class Stored>
void launch_stored(const Arguments& arguments, const Plan& plan, const Context& context) {
  if (plan.dim == 64) return launch_dim<Stored, 64>(arguments, plan, context);
  if (plan.dim == 128) return launch_dim<Stored, 128>(arguments, plan, context);
  launch_dim<Stored, 256>(arguments, plan, context);
}

}  // namespace hyla::attention::decode
