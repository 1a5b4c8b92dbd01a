// A checked call of attention.run, and what the implementations find out about it: each thing once,
// when somebody asks for it. The host's time for a call is as long as many of its kernels.
#pragma once

#include <optional>

#include "problem/attention.h"
#ifdef HYLA_HAS_CUDA
#include "ops/attention/expected.h"
#include "ops/attention_decode/launch_decode.h"
#include "ops/attention_prefill/launch_prefill.h"
#endif

namespace hyla::attention {

struct RunCall {
  RunProblem problem;

  RunCall(const RunParams& params, const Context& context) : problem(validate(params, context)) {}

#ifdef HYLA_HAS_CUDA
  // With the context of the call.
  const char* decode_refuses(const Context& context) const {
    return once(decode_reason_, [&] { return decode::refuses(problem, context); });
  }
  const char* prefill_refuses(const Context& context) const {
    return once(prefill_reason_, [&] { return attention_prefill_refuses(problem, context); });
  }
  const ExpectedMixture& expected(const Context& context) const {
    return once(expected_, [&] { return expected_mixture(problem, context); });
  }
  const decode::Plan& plan(std::int64_t most_packed) const {
    if (most_packed != planned_for_) plan_.reset();
    planned_for_ = most_packed;
    return once(plan_, [&] { return decode_plan(problem, most_packed); });
  }
  const decode::Plan& own_plan() const {
    return once(own_plan_, [&] { return decode_own_plan(problem); });
  }

 private:
  template <class Value, class Find>
  static const Value& once(std::optional<Value>& known, const Find& find) {
    if (!known) known.emplace(find());
    return *known;
  }

  mutable std::optional<const char*> decode_reason_, prefill_reason_;
  mutable std::optional<ExpectedMixture> expected_;
  mutable std::optional<decode::Plan> plan_, own_plan_;
  mutable std::int64_t planned_for_ = 0;
#endif
};

}  // namespace hyla::attention
