// A merge of two attentions after its arguments are checked.
#pragma once

#include <hyla/attention_merge.h>

#include "core/views.h"

namespace hyla::attention {

struct MergeProblem {
  std::int64_t tokens = 0, heads = 0, dim = 0;
  core::TokenView a, b, out;     // [tokens, heads, dim]
  core::TokenView a_lse, b_lse;  // [tokens, heads]
  core::TokenView lse;           // [tokens, heads] or absent
};

MergeProblem validate(const MergeParams& params, const Context& context);

}  // namespace hyla::attention
