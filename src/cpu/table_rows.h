// The rows that every implementation table has for the CPU: one for each target, best first.
#pragma once

#include <array>
#include <type_traits>

#include "core/table.h"
#include "cpu/target.h"

namespace hyla::cpu {

template <class Problem, auto kRun, auto kRefuses, Target kTarget>
constexpr core::Implementation<Problem> table_row(const char* name) {
  return {name, Device::Kind::kCpu,
          [](const Problem& p, const Context&) -> const char* {
            const char* reason = refuses(kTarget);
            if constexpr (!std::is_null_pointer_v<decltype(kRefuses)>) {
              if (reason == nullptr) reason = kRefuses(p);
            }
            static_cast<void>(p);
            return reason;
          },
          nullptr,
          [](const Problem& p, const Workspace&, const Context& context) {
            kRun(kTarget, p, context);
          }};
}

// `rows` with those of the targets before the last, which is the reference. kRefuses: why no target
// takes a problem; without it they take all. kAmxRefuses: why AMX does not, of an operation that
// has a kernel for it.
template <class Problem, void (*kRun)(Target, const Problem&, const Context&),
          auto kRefuses = nullptr, auto kAmxRefuses = nullptr, std::size_t kRows>
constexpr auto with_cpu_rows(const core::Implementation<Problem> (&rows)[kRows]) {
  constexpr bool kAmx = !std::is_null_pointer_v<decltype(kAmxRefuses)>;
  std::array<core::Implementation<Problem>, kRows + (kAmx ? 5 : 4)> table{};
  for (std::size_t i = 0; i + 1 < kRows; ++i) table[i] = rows[i];
  auto* at = &table[kRows - 1];
  if constexpr (kAmx) *at++ = table_row<Problem, kRun, kAmxRefuses, Target::kAmx>("cpu_amx");
  *at++ = table_row<Problem, kRun, kRefuses, Target::kAvx512Bf16>("cpu_avx512_bf16");
  *at++ = table_row<Problem, kRun, kRefuses, Target::kAvx512>("cpu_avx512");
  *at++ = table_row<Problem, kRun, kRefuses, Target::kAvx2>("cpu_avx2");
  *at++ = table_row<Problem, kRun, kRefuses, Target::kBaseline>("cpu_baseline");
  *at = rows[kRows - 1];
  return table;
}

}  // namespace hyla::cpu
