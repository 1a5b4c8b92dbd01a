// One call of an operation together with the memory its tensors live in.
#pragma once

#include <hyla/backend.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "testing/buffer.h"
#include "testing/fields.h"

namespace hyla::testing {

using Params =
    std::variant<gdn::DecodeParams, gdn::MtpParams, gdn::PrefillParams, gdn::RecurrenceParams,
                 conv::PrefillParams, conv::UpdateParams, norm::GatedRmsParams,
                 attention::RunParams, attention::AppendParams, attention::MergeParams>;

// Every tensor of `params` is a view into one of `buffers`.
struct Call {
  Params params;
  std::vector<Buffer> buffers;
  Context context;

  Call() = default;
  Call(const Call& other);  // its own memory, its views moved there
  Call& operator=(const Call&) = delete;
  Call(Call&&) noexcept = default;
  Call& operator=(Call&&) noexcept = default;

  const char* operation() const;  // "gdn.decode"
  const Buffer& buffer_of(const TensorView& view) const;
};

// The same call with every 16-bit tensor as float32. The values are the same; results are rounded
// to float32 only, which makes the float64 reference's own result visible.
Call widened(const Call& call);

// Runs it; an empty `impl` leaves the choice to the library. Throws what the operation throws.
void run(const Call& call, const std::string& impl = {});

std::vector<Candidate> explain(const Call& call);

// The parts of run(), for calls whose memory lives elsewhere.
std::size_t workspace_bytes(const Params& params, const Context& context);
void run(const Params& params, const Workspace& workspace, const Context& context,
         const std::string& impl);
// With the implementation that the parameters name themselves, and without a copy of them.
void run(const Params& params, const Workspace& workspace, const Context& context);

// Runs one call again and again, with nothing but the call itself in each. Copies share their
// workspace.
class Repeat {
 public:
  Repeat(const Call& call, std::string impl);
  void operator()() const { run(call_.params, workspace_, call_.context, impl_); }

 private:
  const Call& call_;
  std::string impl_;
  std::shared_ptr<std::vector<std::byte>> memory_;
  Workspace workspace_;
};

struct NamedTensor {
  std::string name;
  TensorView view;
  Access access;
};
std::vector<NamedTensor> tensors(const Call& call);  // those that are present

// The first slot that is not null; 0 for operations without slots.
std::int64_t first_slot(const Call& call);

}  // namespace hyla::testing
