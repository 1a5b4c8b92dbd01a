// Host side of the prefill kernels, for the table. ..._us: what the cost model expects (plan.h).
#pragma once

#include <hyla/workspace.h>

#include <string_view>
#include <vector>

#include "ops/gdn_prefill/plan_features.h"
#include "problem/gdn_prefill.h"

namespace hyla::gdn {

const char* prefill_fused_refuses(const PrefillProblem& problem, const Context& context);
double prefill_fused_us(const PrefillProblem& problem, const Context& context);
void launch_prefill_fused(const PrefillProblem& problem, const Workspace&, const Context& context);

const char* prefill_split_refuses(const PrefillProblem& problem, const Context& context);
double prefill_split_us(const PrefillProblem& problem, const Context& context);
std::size_t prefill_split_bytes(const PrefillProblem& problem);
void launch_prefill_split(const PrefillProblem& problem, const Workspace&, const Context& context);

// In a form that the plan may not take for it. `rounds`: see handover.cuh, -1: chunks are not handed
// over one by one, nor are those of K above 128. Two parts have one block a CTA.
struct SplitForm {
  int parts = 1, blocks_a_cta = 1, rounds = -1;
};
void launch_prefill_split_as(const PrefillProblem& problem, const Workspace&, const Context&,
                             const SplitForm& form);

const char* prefill_segments_refuses(const PrefillProblem& problem, const Context& context);
double prefill_segments_us(const PrefillProblem& problem, const Context& context);
std::size_t prefill_segments_bytes(const PrefillProblem& problem);
void launch_prefill_segments(const PrefillProblem& problem, const Workspace&,
                             const Context& context);

const char* prefill_relay_refuses(const PrefillProblem& problem, const Context& context);
double prefill_relay_us(const PrefillProblem& problem, const Context& context);
std::size_t prefill_relay_bytes(const PrefillProblem& problem);
void launch_prefill_relay(const PrefillProblem& problem, const Workspace&, const Context& context);
// With so many parts of so many pieces: the plan takes several pieces only of sequences that are
// too long for a test. Heads of sequences times (parts - 1) times cuts: up to 288,
// and up to 384 of sequences of 8192 tokens and more.
void launch_prefill_relay_as(const PrefillProblem& problem, const Workspace&, const Context&,
                             int parts, int cuts);

const char* prefill_block_refuses(const PrefillProblem& problem, const Context& context);
double prefill_block_us(const PrefillProblem& problem, const Context& context);
void launch_prefill_block(const PrefillProblem& problem, const Workspace&, const Context& context);

const char* prefill_steps_refuses(const PrefillProblem& problem, const Context& context);
double prefill_steps_us(const PrefillProblem& problem, const Context& context);
void launch_prefill_steps(const PrefillProblem& problem, const Workspace&, const Context& context);

double prefill_vk_us(const PrefillProblem& problem, const Context& context);  // and of kv
const char* prefill_vk_refuses(const PrefillProblem& problem, const Context& context);
void launch_prefill_vk(const PrefillProblem& problem, const Workspace&, const Context& context);
const char* prefill_kv_refuses(const PrefillProblem& problem, const Context& context);
void launch_prefill_kv(const PrefillProblem& problem, const Workspace&, const Context& context);

// Every form of the plans that have several, chosen or not, and a call in one of them: for the sweep
// that judges the choice (`hyla bench --plans`).
struct PlanForm {
  const char* implementation;
  Walks walks;
  bool chosen;  // of its implementation
};
std::vector<PlanForm> prefill_forms(const PrefillProblem& problem, const Context& context);
void launch_prefill_form(const PrefillProblem& problem, const Workspace&, const Context&,
                         const PlanForm& form);

// What the cost model has of a plan in some form, to learn from (scripts/fit_plans.py). model_us 0:
// nothing, as the host does not know the lengths, or there is no such plan.
struct PlanLook {
  double model_us = 0;
  PlanFeatures features{};
};
PlanLook look_at_plan(const PrefillProblem& problem, const Context& context,
                      std::string_view implementation, const Walks& walks);

// Of all calls within bounds, whichever kernel they take.
std::size_t prefill_cuda_bytes(const PrefillBounds& bounds);

const char* prefill_tokens_refuses(const PrefillProblem& problem, const Context& context);
void launch_prefill_tokens(const PrefillProblem& problem, const Workspace&, const Context& context);

}  // namespace hyla::gdn
