#include "testing/naive.h"

namespace hyla::testing {
namespace {

struct Naive {
  const NaiveOptions& options;
  void operator()(const gdn::DecodeParams& p) const { naive_decode(p, options); }
  void operator()(const gdn::MtpParams& p) const { naive_mtp(p, options); }
  void operator()(const gdn::PrefillParams& p) const { naive_prefill(p, options); }
  void operator()(const gdn::RecurrenceParams& p) const { naive_recurrence(p, options); }
};

}  // namespace

void run_naive(const Call& call, const NaiveOptions& options) {
  std::visit(Naive{options}, call.params);
}

}  // namespace hyla::testing
