// A prefill call on the device that is launched in a form which the plan would not take for it.
#pragma once

#include "gpu/check.h"
#include "ops/gdn_prefill/launch_prefill.h"

namespace hyla::testing {

// The workspace is its own, of kBytes(problem), and begins as NaN, with every bit set.
template <class Form, auto kBytes, auto kLaunch>
class PrefillForm {
 public:
  explicit PrefillForm(const Call& call) : gpu_(call) {
    const auto& params = std::get<gdn::PrefillParams>(gpu_.params());
    problem_ = gdn::validate(params, gpu_.context());
    workspace_.bytes = kBytes(problem_);
    memory_.reset(cuda::allocate(workspace_.bytes));
    workspace_.data = memory_.get();
    workspace_.device = gpu_.context().device;
    cuda::fill(workspace_.data, 0xff, workspace_.bytes);
  }

  void launch(const Form& form) const { launch(form, gpu_.context().stream); }
  void launch(const Form& form, const Stream& stream) const {
    Context context = gpu_.context();
    context.stream = stream;
    kLaunch(problem_, workspace_, context, form);
  }
  Call run(const Call& call, const Form& form) const {
    gpu_.upload(call);
    launch(form);
    return gpu_.result();
  }
  const DeviceCall& gpu() const { return gpu_; }
  const Workspace& workspace() const { return workspace_; }
  const gdn::PrefillProblem& problem() const { return problem_; }

 private:
  DeviceCall gpu_;
  gdn::PrefillProblem problem_;
  cuda::Memory memory_;
  Workspace workspace_;
};

}  // namespace hyla::testing
