// The C structs turned into the C++ ones. A null pointer or a wrong struct_size throws
// InvalidArgument about "params" (or "bounds").
#pragma once

#include <hyla/attention.h>
#include <hyla/attention_merge.h>
#include <hyla/c_api.h>
#include <hyla/conv.h>
#include <hyla/gdn.h>
#include <hyla/norm.h>

namespace hyla::capi {

gdn::DecodeParams params(const hyla_gdn_decode_params* given);
gdn::MtpParams params(const hyla_gdn_mtp_params* given);
gdn::PrefillParams params(const hyla_gdn_prefill_params* given);
gdn::RecurrenceParams params(const hyla_gdn_recurrence_params* given);
conv::PrefillParams params(const hyla_conv_prefill_params* given);
conv::UpdateParams params(const hyla_conv_update_params* given);
norm::GatedRmsParams params(const hyla_norm_gated_rms_params* given);
attention::RunParams params(const hyla_attention_run_params* given);
attention::AppendParams params(const hyla_attention_append_params* given);
attention::MergeParams params(const hyla_attention_merge_params* given);

gdn::PrefillBounds bounds(const hyla_gdn_prefill_bounds* given);
attention::RunBounds bounds(const hyla_attention_run_bounds* given);

Workspace workspace(const hyla_gdn_prefill_params* given, const Context& context);
Workspace workspace(const hyla_attention_run_params* given, const Context& context);

}  // namespace hyla::capi
