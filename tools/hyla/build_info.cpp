#include "build_info.h"

#include "hyla_commit.h"  // generated

namespace hyla::tool {

std::string build_commit() { return HYLA_BUILD_COMMIT; }

std::string sources_digest() { return HYLA_BUILD_SOURCES_DIGEST; }

std::string build_compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string build_type() {
#ifdef NDEBUG
  return "optimised";
#else
  return "not optimised";
#endif
}

}  // namespace hyla::tool
