// What leaves a C function when something is thrown inside it.
#include "capi/status.h"

#include <hyla/error.h>

#include <new>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace {

using namespace hyla;

template <class Exception>
hyla_status status_of(const Exception& exception) {
  return capi::guarded([&] { throw exception; });
}

TEST(CapiStatus, EveryErrorHasItsCode) {
  EXPECT_EQ(status_of(InvalidArgument("q", "a tensor", "none")), HYLA_INVALID_ARGUMENT);
  EXPECT_STREQ(hyla_last_error(), "q: expected a tensor, got none");
  EXPECT_EQ(status_of(Unsupported("impl", "not here")), HYLA_UNSUPPORTED);
  EXPECT_STREQ(hyla_last_error(), "impl: not here");
  EXPECT_EQ(status_of(WorkspaceTooSmall(512, 100)), HYLA_WORKSPACE_TOO_SMALL);
  EXPECT_STREQ(hyla_last_error(), "workspace: expected at least 512 bytes, got 100");
  EXPECT_EQ(status_of(DeviceError("launch: no such device", 100)), HYLA_DEVICE_ERROR);
  EXPECT_STREQ(hyla_last_error(), "launch: no such device");
  EXPECT_EQ(status_of(Error(ErrorCode::kInternal, "inside")), HYLA_INTERNAL);
  EXPECT_EQ(status_of(Error(ErrorCode::kOk, "an error is never ok")), HYLA_INTERNAL);
}

TEST(CapiStatus, ForeignExceptionsAreInternal) {
  EXPECT_EQ(status_of(std::bad_alloc()), HYLA_INTERNAL);
  EXPECT_STREQ(hyla_last_error(), "out of memory");
  EXPECT_EQ(status_of(std::logic_error("a letter without a size")), HYLA_INTERNAL);
  EXPECT_STREQ(hyla_last_error(), "a letter without a size");
  EXPECT_EQ(status_of(42), HYLA_INTERNAL);
  EXPECT_NE(std::string(hyla_last_error()), "");
}

TEST(CapiStatus, SuccessClearsTheMessage) {
  status_of(42);
  EXPECT_EQ(capi::guarded([] {}), HYLA_OK);
  EXPECT_STREQ(hyla_last_error(), "");
}

TEST(CapiStatus, LongMessagesAreCut) {
  const std::string text(100000, 'x');
  EXPECT_EQ(status_of(std::runtime_error(text)), HYLA_INTERNAL);
  const std::string kept = hyla_last_error();
  EXPECT_GT(kept.size(), 1000u);
  EXPECT_LT(kept.size(), text.size());
  EXPECT_EQ(text.compare(0, kept.size(), kept), 0);
}

}  // namespace
