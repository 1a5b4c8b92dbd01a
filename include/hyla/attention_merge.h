// Merging two attentions of the same queries over different keys, as over a shared prefix and over
// what follows it, by the logarithms of their denominators.
#ifndef HYLA_ATTENTION_MERGE_H_
#define HYLA_ATTENTION_MERGE_H_

#include <hyla/context.h>
#include <hyla/tensor.h>

namespace hyla::attention {

// lse = ln(exp(a_lse) + exp(b_lse)), out = exp(a_lse - lse) a + exp(b_lse - lse) b, in float32
// (float64 in the reference), rounded once. A side whose LSE is infinite, of either sign, saw no
// key: the other one is the result, whatever the side holds; without keys on both sides out is zero
// and lse -inf. Sinks belong to one of the sides. out may be a or b, and lse a_lse or b_lse: the
// same memory, dtype and strides.
struct MergeParams {
  TensorView a;      // [total, Hq, DV]; float32, bfloat16, float16
  TensorView a_lse;  // [total, Hq] float32: natural logarithms, as run writes them; any strides
  TensorView b;      // shape and dtype of a
  TensorView b_lse;  // [total, Hq] float32
  TensorView out;    // shape of a; float32, bfloat16, float16
  TensorView lse{};  // [total, Hq] float32, written
  const char* impl = nullptr;
};

HYLA_API void merge(const MergeParams& params, const Context& context = {});

}  // namespace hyla::attention

#endif  // HYLA_ATTENTION_MERGE_H_
