// Which implementations there are, what each says about a call, and what this machine has.
#ifndef HYLA_BACKEND_H_
#define HYLA_BACKEND_H_

#include <hyla/attention.h>
#include <hyla/attention_merge.h>
#include <hyla/context.h>
#include <hyla/conv.h>
#include <hyla/error.h>
#include <hyla/gdn.h>
#include <hyla/norm.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hyla {

// "gdn.decode", "gdn.mtp", "gdn.prefill", "gdn.recurrence", "conv.prefill", "conv.update",
// "norm.gated_rms", "attention.run", "attention.append", "attention.merge".
HYLA_API std::vector<std::string> operations();

// Names of an operation's implementations, best first, on any device. Unknown operation:
// InvalidArgument.
HYLA_API std::vector<std::string> implementations(std::string_view operation);

// Every candidate, best first, with its verdict: the first supported one runs. Invalid arguments
// throw as the call would.
HYLA_API std::vector<Candidate> explain(const gdn::DecodeParams&, const Context& = {});
HYLA_API std::vector<Candidate> explain(const gdn::MtpParams&, const Context& = {});
HYLA_API std::vector<Candidate> explain(const gdn::PrefillParams&, const Context& = {});
HYLA_API std::vector<Candidate> explain(const gdn::RecurrenceParams&, const Context& = {});
HYLA_API std::vector<Candidate> explain(const conv::PrefillParams&, const Context& = {});
HYLA_API std::vector<Candidate> explain(const conv::UpdateParams&, const Context& = {});
HYLA_API std::vector<Candidate> explain(const norm::GatedRmsParams&, const Context& = {});
HYLA_API std::vector<Candidate> explain(const attention::RunParams&, const Context& = {});
HYLA_API std::vector<Candidate> explain(const attention::AppendParams&, const Context& = {});
HYLA_API std::vector<Candidate> explain(const attention::MergeParams&, const Context& = {});

struct DeviceInfo {
  Device device{};
  std::string name;
  int compute_capability = 0;  // 90 for Hopper; 0 for a CPU
  int multiprocessors = 0;     // CPU: hardware threads
  std::size_t memory_bytes = 0;
};

// The CPU, then the CUDA devices that this build can use. Never throws for a missing driver.
HYLA_API std::vector<DeviceInfo> devices();

HYLA_API const char* version();  // "0.1.0"
HYLA_API bool built_with_cuda();

// What the CPU implementations are made of.
struct CpuInfo {
  std::string target;   // best instruction set of ours that the machine has: "avx512_bf16"
  std::string vectors;  // "Highway 1.0.3", or the compiler's own
  std::string threads;  // "OpenMP", or none
};
HYLA_API CpuInfo cpu_info();

}  // namespace hyla

#endif  // HYLA_BACKEND_H_
