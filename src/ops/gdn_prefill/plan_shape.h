// What the cost model looks at of a problem.
#pragma once

#include "device/launch.h"
#include "ops/gdn_prefill/plan.h"
#include "ops/gdn_prefill/record.cuh"

namespace hyla::gdn {

inline int value_blocks(const PrefillProblem& p) { return static_cast<int>((p.V + 63) / 64); }

inline PlanShape plan_shape(const PrefillProblem& p, const Context& context) {
  PlanShape s{p.sequences.rows, p.heads, p.sequences.tokens, device::multiprocessors(context),
              value_blocks(p)};
  const double keys = static_cast<double>(p.q_heads + p.k_heads) / static_cast<double>(p.heads);
  constexpr double kColumn = 2.0 * kChunk;
  s.key_bytes = kColumn * keys * static_cast<double>(p.K) + static_cast<double>(kRecordBytes);
  const double values = 1.0 + static_cast<double>(p.v_heads) / static_cast<double>(p.heads);
  s.value_bytes = kColumn * values * static_cast<double>(p.V);
  s.longest = p.max_length;
  s.key_dim = p.K;
  s.norm = p.l2norm;
  s.narrow_states = p.initial.present() ? size_of(p.initial.dtype) < 4
                                        : p.final.present() && size_of(p.final.dtype) < 4;
  s.reads_states = p.initial.present();
  s.pairs = !context.batch_invariant;
  return s;
}

}  // namespace hyla::gdn
