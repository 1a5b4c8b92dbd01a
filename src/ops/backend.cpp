#include <hyla/backend.h>

#include <functional>

#include "core/check.h"
#include "cpu/target.h"
#include "ops/tables.h"

namespace hyla {
namespace {

struct Operation {
  const char* name;
  std::vector<std::string> (*implementations)();
};

constexpr Operation kOperations[] = {
    {"gdn.decode", ops::gdn_decode_implementations},
    {"gdn.mtp", ops::gdn_mtp_implementations},
    {"gdn.prefill", ops::gdn_prefill_implementations},
    {"gdn.recurrence", ops::gdn_recurrence_implementations},
    {"conv.prefill", ops::conv_prefill_implementations},
    {"conv.update", ops::conv_update_implementations},
    {"norm.gated_rms", ops::norm_gated_rms_implementations},
    {"attention.run", ops::attention_run_implementations},
    {"attention.append", ops::attention_append_implementations},
    {"attention.merge", ops::attention_merge_implementations},
};

}  // namespace

std::vector<std::string> operations() {
  std::vector<std::string> names;
  for (const Operation& operation : kOperations) names.emplace_back(operation.name);
  return names;
}

std::vector<std::string> implementations(std::string_view operation) {
  std::string known;
  for (const Operation& candidate : kOperations) {
    if (operation == candidate.name) return candidate.implementations();
    known += (known.empty() ? "" : ", ") + std::string(candidate.name);
  }
  core::fail("operation", "one of " + known, operation);
}

CpuInfo cpu_info() {
  return {cpu::name_of(cpu::best_target()), cpu::vector_library(), cpu::threading_library()};
}

}  // namespace hyla
