// The names of every operation's implementations, for listings.
#pragma once

#include <string>
#include <vector>

namespace hyla::ops {

std::vector<std::string> gdn_decode_implementations();
std::vector<std::string> gdn_mtp_implementations();
std::vector<std::string> gdn_prefill_implementations();
std::vector<std::string> gdn_recurrence_implementations();
std::vector<std::string> conv_prefill_implementations();
std::vector<std::string> conv_update_implementations();
std::vector<std::string> norm_gated_rms_implementations();
std::vector<std::string> attention_run_implementations();
std::vector<std::string> attention_append_implementations();
std::vector<std::string> attention_merge_implementations();

}  // namespace hyla::ops
