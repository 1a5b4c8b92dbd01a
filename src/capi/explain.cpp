#include <hyla/backend.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "capi/fields.h"
#include "capi/params.h"
#include "capi/status.h"
#include "core/check.h"

namespace hyla::capi {
namespace {

template <class Struct>
std::vector<Candidate> explain_as(const void* given, const Context& context) {
  return explain(params(static_cast<const Struct*>(given)), context);
}

struct Row {
  std::string_view operation;
  std::vector<Candidate> (*explain)(const void*, const Context&);
};
constexpr Row kRows[] = {
    {"gdn.decode", explain_as<hyla_gdn_decode_params>},
    {"gdn.mtp", explain_as<hyla_gdn_mtp_params>},
    {"gdn.prefill", explain_as<hyla_gdn_prefill_params>},
    {"gdn.recurrence", explain_as<hyla_gdn_recurrence_params>},
    {"conv.prefill", explain_as<hyla_conv_prefill_params>},
    {"conv.update", explain_as<hyla_conv_update_params>},
    {"norm.gated_rms", explain_as<hyla_norm_gated_rms_params>},
    {"attention.run", explain_as<hyla_attention_run_params>},
    {"attention.append", explain_as<hyla_attention_append_params>},
    {"attention.merge", explain_as<hyla_attention_merge_params>},
};

const Row& find(const char* operation) {
  if (operation == nullptr) core::fail("operation", "a name", "a null pointer");
  std::string known;
  for (const Row& row : kRows) {
    if (row.operation == operation) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.operation);
  }
  core::fail("operation", "one of " + known, operation);
}

}  // namespace
}  // namespace hyla::capi

extern "C" {

hyla_status hyla_explain(const char* operation, const void* params, const hyla_context* context,
                         char* buffer, size_t capacity, size_t* needed) {
  return hyla::capi::guarded([&] {
    if (buffer == nullptr && capacity > 0) {
      hyla::core::fail("buffer", "memory of `capacity` bytes", "a null pointer");
    }
    std::string text;
    for (const hyla::Candidate& candidate :
         hyla::capi::find(operation).explain(params, hyla::capi::context(context))) {
      text +=
          candidate.implementation + ": " + (candidate.supported ? "ok" : candidate.reason) + "\n";
    }
    if (needed != nullptr) *needed = text.size() + 1;
    if (capacity == 0) return;
    const std::size_t length = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  });
}

}  // extern "C"
