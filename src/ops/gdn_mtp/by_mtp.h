// A row of the table of decode, MTP or recurrence whose kernel takes MTP problems.
#pragma once

#include <type_traits>

#include "core/table.h"
#include "problem/gdn_mtp.h"

namespace hyla::gdn {

template <class P>
decltype(auto) to_mtp(const P& problem) {
  if constexpr (std::is_same_v<P, MtpProblem>) {
    return (problem);
  } else {
    return as_mtp(problem);
  }
}

template <class P, const char* (*Refuses)(const MtpProblem&, const Context&),
          void (*Launch)(const MtpProblem&, const Context&)>
constexpr core::Implementation<P> by_mtp(const char* name) {
  return {name, Device::Kind::kCuda,
          [](const P& p, const Context& context) { return Refuses(to_mtp(p), context); }, nullptr,
          [](const P& p, const Workspace&, const Context& context) { Launch(to_mtp(p), context); }};
}

}  // namespace hyla::gdn
