// The pieces that check groups of arguments of the GDN operations. Results are written in place
// (tokens.h); they are absent before.
#pragma once

#include "core/check.h"
#include "problem/gdn.h"
#include "problem/tokens.h"

namespace hyla::gdn {

using core::set_tokens;
void check_gate(GateView& result, const Gate& gate, const core::Pattern& pattern,
                core::Shapes& shapes, bool ragged, const Context& context);
void check_beta(BetaView& result, const Beta& beta, const core::Pattern& pattern,
                core::Shapes& shapes, bool ragged, const Context& context);
void check_norm(NormView& result, const norm::GatedNorm& norm, const core::Pattern& pattern,
                core::Shapes& shapes, bool ragged, const Context& context);
void check_pool(PoolView& result, std::string_view argument, const TensorView& view,
                const core::Pattern& pattern, StateLayout layout, core::Inner inner,
                core::Access access, core::Shapes& shapes, const Context& context);
void check_options(Problem& problem, StateLayout layout, const std::optional<double>& scale,
                   bool l2norm, double l2norm_eps);
void check_value_heads(std::int64_t H, std::int64_t HV);  // HV a multiple of H

}  // namespace hyla::gdn
