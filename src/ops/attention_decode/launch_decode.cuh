// Chooses the instance of a plan.
#pragma once

#include "ops/attention_decode/launch_decode.h"
#include "ops/attention_decode/launch_shape.cuh"

namespace hyla::attention::decode {

template <class Stored, int D, int Sharing, int Heads>
void launch_stream(const Arguments& arguments, const Plan& plan, const Context& context) {
  using Chosen = Shape<Stored, D, Sharing, Heads>;
  constexpr bool kAlone = D == 256 && Heads == 1, kTogether = sizeof(Stored) == 2 && Heads == 4;
  if constexpr (Sharing == 1 && (kAlone || kTogether)) {
    if (plan.ahead) {
      return launch_shape<Chosen>(attention_decode<Ahead<Chosen>>, arguments, plan, context);
    }
  }
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
  if constexpr (D == 256 && sizeof(Stored) == 1) {
    if (plan.heads == 2) return launch_stream<Stored, D, 1, 2>(arguments, plan, context);
  }
  if constexpr (D == 128 || (D == 64 && sizeof(Stored) == 2)) {
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
