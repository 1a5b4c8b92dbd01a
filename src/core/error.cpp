#include <hyla/error.h>

namespace hyla {
namespace {

std::string join(const std::string& operation, const std::vector<Candidate>& candidates) {
  std::string text = operation + ": no implementation takes this call";
  for (const Candidate& c : candidates) text += "; " + c.implementation + ": " + c.reason;
  return text;
}

}  // namespace

InvalidArgument::InvalidArgument(std::string argument, std::string expected, std::string got)
    : Error(ErrorCode::kInvalidArgument, argument + ": expected " + expected + ", got " + got),
      argument_(std::move(argument)),
      expected_(std::move(expected)),
      got_(std::move(got)) {}

Unsupported::Unsupported(const std::string& operation, std::vector<Candidate> candidates)
    : Error(ErrorCode::kUnsupported, join(operation, candidates)),
      candidates_(std::move(candidates)) {}

Unsupported::Unsupported(const std::string& argument, const std::string& reason)
    : Error(ErrorCode::kUnsupported, argument + ": " + reason) {}

WorkspaceTooSmall::WorkspaceTooSmall(std::size_t required, std::size_t given)
    : Error(ErrorCode::kWorkspaceTooSmall, "workspace: expected at least " +
                                               std::to_string(required) + " bytes, got " +
                                               std::to_string(given)),
      required_(required),
      given_(given) {}

DeviceError::DeviceError(const std::string& what, int cuda_code)
    : Error(ErrorCode::kDeviceError, what), cuda_code_(cuda_code) {}

}  // namespace hyla
