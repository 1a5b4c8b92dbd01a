// Implementation tables: an ordered list per operation. The first row that takes a problem runs it;
// rows with a cost model come in the order of what they expect to take.
#pragma once

#include <hyla/context.h>
#include <hyla/error.h>
#include <hyla/workspace.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hyla::core {

template <class Problem>
struct Implementation {
  const char* name;
  Device::Kind device;
  // Null when it takes the problem, otherwise the reason why not, as static text. Null pointer:
  // takes every problem.
  const char* (*refuses)(const Problem&, const Context&);
  // Scratch memory it needs for this problem. Null pointer: none.
  std::size_t (*workspace_bytes)(const Problem&);
  void (*run)(const Problem&, const Workspace&, const Context&);
  // What it expects to take for a problem that it takes, in microseconds. Null pointer: no model.
  double (*expected_us)(const Problem&, const Context&) = nullptr;
};

template <class Problem>
const char* refusal(const Implementation<Problem>& row, const Problem& problem,
                    const Context& context) {
  if (row.device != context.device.kind) {
    return row.device == Device::Kind::kCpu ? "runs on the CPU only" : "runs on a CUDA device only";
  }
  return row.refuses == nullptr ? nullptr : row.refuses(problem, context);
}

template <class Problem>
std::vector<Candidate> explain(std::span<const Implementation<Problem>> table,
                               const Problem& problem, const Context& context) {
  std::vector<Candidate> candidates;
  for (const auto& row : table) {
    const char* reason = refusal(row, problem, context);
    candidates.push_back({row.name, reason == nullptr, reason == nullptr ? "" : reason});
    if (reason == nullptr && row.expected_us != nullptr) {
      candidates.back().expected_us = row.expected_us(problem, context);
    }
  }
  // Those with a model change places among themselves.
  for (auto a = candidates.begin(); a != candidates.end(); ++a) {
    for (auto b = a + 1; a->expected_us > 0 && b != candidates.end(); ++b) {
      if (b->expected_us > 0 && b->expected_us < a->expected_us) std::swap(*a, *b);
    }
  }
  return candidates;
}

void check_workspace(std::size_t required, const Workspace& workspace, const Context& context);
[[noreturn]] void fail_unknown_implementation(const char* forced, std::string_view known);

// The row that runs the problem: the first that takes it, or the one that expects to be fastest of
// those before any without a model. Null: none takes it.
template <class Problem>
const Implementation<Problem>* choose(std::span<const Implementation<Problem>> table,
                                      const Problem& problem, const Context& context) {
  const Implementation<Problem>* best = nullptr;
  double best_us = 0;
  for (const auto& row : table) {
    if (best != nullptr && row.expected_us == nullptr) break;
    if (refusal(row, problem, context) != nullptr) continue;
    if (row.expected_us == nullptr) return &row;
    const double us = row.expected_us(problem, context);
    if (best == nullptr || us < best_us) best = &row, best_us = us;
  }
  return best;
}

// Runs the row that is chosen, or the one named `forced`.
template <class Problem>
void dispatch(const char* operation, std::span<const Implementation<Problem>> table,
              const Problem& problem, const char* forced, const Workspace& workspace,
              const Context& context) {
  bool known = forced == nullptr;
  const Implementation<Problem>* chosen = known ? choose(table, problem, context) : nullptr;
  if (forced != nullptr) {
    for (const auto& row : table) {
      if (std::strcmp(forced, row.name) != 0) continue;
      known = true;
      if (refusal(row, problem, context) == nullptr) chosen = &row;
      break;
    }
  }
  if (chosen != nullptr) {
    check_workspace(chosen->workspace_bytes == nullptr ? 0 : chosen->workspace_bytes(problem),
                    workspace, context);
    chosen->run(problem, workspace, context);
    return;
  }
  if (!known) {
    std::string names;
    for (const auto& row : table) names += (names.empty() ? "" : ", ") + std::string(row.name);
    fail_unknown_implementation(forced, names);
  }
  std::vector<Candidate> candidates = explain(table, problem, context);
  if (forced != nullptr) {
    std::erase_if(candidates, [&](const Candidate& c) { return c.implementation != forced; });
  }
  throw Unsupported(operation, std::move(candidates));
}

template <class Problem>
std::vector<std::string> names(std::span<const Implementation<Problem>> table) {
  std::vector<std::string> result;
  for (const auto& row : table) result.emplace_back(row.name);
  return result;
}

}  // namespace hyla::core
