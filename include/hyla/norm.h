// Gated RMSNorm: the step between a GDN layer's recurrence and its output projection.
#ifndef HYLA_NORM_H_
#define HYLA_NORM_H_

#include <hyla/context.h>
#include <hyla/tensor.h>

namespace hyla::norm {

enum class Activation { kSilu, kSigmoid };

// out = x * rsqrt(mean(x^2) + eps) * weight * activation(z), the mean over the last dimension,
// rounded once at the end. x, z and out may be strided with a contiguous last dimension, each in
// its own way, and each has its own dtype. out may be x itself: the same memory, dtype and strides.
struct GatedRmsParams {
  TensorView x;       // [rows, D] or [tokens, heads, D]; float32, bfloat16, float16
  TensorView z;       // shape of x; float32, bfloat16, float16
  TensorView weight;  // [D]; float32, bfloat16, float16
  TensorView out;     // shape of x; float32, bfloat16, float16
  double eps = 1e-6;
  Activation gate = Activation::kSilu;
  const char* impl = nullptr;  // force an implementation by name
};

HYLA_API void gated_rms(const GatedRmsParams& params, const Context& context = {});

// The same as a fused epilogue of gdn::decode and gdn::mtp: present when `z` is.
struct GatedNorm {
  TensorView z;       // shape of the operation's out
  TensorView weight;  // [V]
  double eps = 1e-6;
  Activation gate = Activation::kSilu;
};

}  // namespace hyla::norm

#endif  // HYLA_NORM_H_
