#include "testing/naive.h"

namespace hyla::testing {
namespace {

struct Naive {
  const NaiveOptions& options;
  void operator()(const gdn::DecodeParams& p) const { naive_decode(p, options); }
  void operator()(const gdn::MtpParams& p) const { naive_mtp(p, options); }
  void operator()(const gdn::PrefillParams& p) const { naive_prefill(p, options); }
  void operator()(const gdn::RecurrenceParams& p) const { naive_recurrence(p, options); }
  void operator()(const conv::PrefillParams& p) const { naive_conv_prefill(p, options); }
  void operator()(const conv::UpdateParams& p) const { naive_conv_update(p, options); }
  void operator()(const norm::GatedRmsParams& p) const { naive_gated_rms(p, options); }
  void operator()(const attention::RunParams& p) const { naive_attention(p, options); }
  void operator()(const attention::AppendParams& p) const { naive_append(p, options); }
  void operator()(const attention::MergeParams& p) const { naive_merge(p, options); }
};

}  // namespace

void run_naive(const Call& call, const NaiveOptions& options) {
  std::visit(Naive{options}, call.params);
}

}  // namespace hyla::testing
