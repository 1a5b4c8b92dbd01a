// What this build is made of.
#pragma once

#include <string>

namespace hyla::tool {

std::string build_commit();  // of the sources, "-modified" behind it where they were; or "unknown"
std::string sources_digest();  // of the CUDA kernels' sources; empty where it could not be made
std::string build_compiler();  // "g++ 12.2.0"
std::string build_type();      // "optimised", "not optimised"

}  // namespace hyla::tool
