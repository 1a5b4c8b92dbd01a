// Implementation tables: an ordered list per operation. The first row that takes a problem runs it.
#pragma once

#include <hyla/context.h>
#include <hyla/error.h>
#include <hyla/workspace.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
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
  }
  return candidates;
}

void check_workspace(std::size_t required, const Workspace& workspace, const Context& context);
[[noreturn]] void fail_unknown_implementation(const char* forced, std::string_view known);

// Runs the first row that takes the problem, or the one named `forced`.
template <class Problem>
void dispatch(const char* operation, std::span<const Implementation<Problem>> table,
              const Problem& problem, const char* forced, const Workspace& workspace,
              const Context& context) {
  bool known = forced == nullptr;
  for (const auto& row : table) {
    if (forced != nullptr && std::strcmp(forced, row.name) != 0) continue;
    known = true;
    if (refusal(row, problem, context) != nullptr) continue;
    check_workspace(row.workspace_bytes == nullptr ? 0 : row.workspace_bytes(problem), workspace,
                    context);
    row.run(problem, workspace, context);
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
