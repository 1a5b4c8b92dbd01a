// Host side of kernel_mtp_vk.cuh and kernel_mtp_kv.cuh, for the tables of MTP and recurrence.
#pragma once

#include <hyla/workspace.h>

#include "problem/gdn_mtp.h"
#include "problem/gdn_recurrence.h"

namespace hyla::gdn {

const char* mtp_vk_refuses(const MtpProblem& problem, const Context& context);
void launch_mtp_vk(const MtpProblem& problem, const Workspace&, const Context& context);

const char* mtp_kv_refuses(const MtpProblem& problem, const Context& context);
void launch_mtp_kv(const MtpProblem& problem, const Workspace&, const Context& context);

inline const char* mtp_vk_refuses(const RecurrenceProblem& problem, const Context& context) {
  return mtp_vk_refuses(as_mtp(problem), context);
}
inline void launch_mtp_vk(const RecurrenceProblem& problem, const Workspace& workspace,
                          const Context& context) {
  launch_mtp_vk(as_mtp(problem), workspace, context);
}
inline const char* mtp_kv_refuses(const RecurrenceProblem& problem, const Context& context) {
  return mtp_kv_refuses(as_mtp(problem), context);
}
inline void launch_mtp_kv(const RecurrenceProblem& problem, const Workspace& workspace,
                          const Context& context) {
  launch_mtp_kv(as_mtp(problem), workspace, context);
}

}  // namespace hyla::gdn
