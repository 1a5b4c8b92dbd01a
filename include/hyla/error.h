// Typed errors. Every message starts with the name of the argument it is about, then says what was
// expected and what came.
#ifndef HYLA_ERROR_H_
#define HYLA_ERROR_H_

#include <hyla/export.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace hyla {

// The values are part of the C ABI (`hyla_status`).
enum class ErrorCode : int {
  kOk = 0,
  kInvalidArgument = 1,
  kUnsupported = 2,
  kWorkspaceTooSmall = 3,
  kDeviceError = 4,
  kInternal = 5,
};

class HYLA_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// An argument breaks a rule of the operation. Nothing has been written.
class HYLA_API InvalidArgument : public Error {
 public:
  InvalidArgument(std::string argument, std::string expected, std::string got);
  const std::string& argument() const noexcept { return argument_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& got() const noexcept { return got_; }

 private:
  std::string argument_, expected_, got_;
};

// What one implementation says about one problem.
struct Candidate {
  std::string implementation;
  bool supported = false;
  std::string reason;  // why it refuses; empty when it takes the problem
  // What it expects to take, in microseconds, where several that take the problem are compared by a
  // cost model: the least comes first. 0: no model
  double expected_us = 0;
};

// The arguments are valid, but no implementation (or not the forced one) takes them.
class HYLA_API Unsupported : public Error {
 public:
  Unsupported(const std::string& operation, std::vector<Candidate> candidates);
  Unsupported(const std::string& argument, const std::string& reason);
  const std::vector<Candidate>& candidates() const noexcept { return candidates_; }

 private:
  std::vector<Candidate> candidates_;
};

class HYLA_API WorkspaceTooSmall : public Error {
 public:
  WorkspaceTooSmall(std::size_t required, std::size_t given);
  std::size_t required() const noexcept { return required_; }
  std::size_t given() const noexcept { return given_; }

 private:
  std::size_t required_, given_;
};

// The CUDA runtime refused something. Non-sticky errors have been cleared.
class HYLA_API DeviceError : public Error {
 public:
  DeviceError(const std::string& what, int cuda_code);
  int cuda_code() const noexcept { return cuda_code_; }

 private:
  int cuda_code_;
};

}  // namespace hyla

#endif  // HYLA_ERROR_H_
