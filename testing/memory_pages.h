// The pages of memory that a process has: larger ones make everything that is read once faster.
#pragma once

#include <cstdint>

namespace hyla::testing {

// Bytes of an ordinary page.
std::int64_t page_bytes();

// The part of this process's memory, of its own data, that lies in huge pages: 0 to 1. 0 where the
// system does not tell.
double huge_page_share();

}  // namespace hyla::testing
