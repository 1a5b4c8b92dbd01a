#include "testing/memory_pages.h"

#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

namespace hyla::testing {

std::int64_t page_bytes() { return sysconf(_SC_PAGESIZE); }

double huge_page_share() {
  std::ifstream smaps("/proc/self/smaps_rollup");
  double all = 0, huge = 0;
  for (std::string name; smaps >> name;) {
    double kilobytes = 0;
    if (name == "Anonymous:" && smaps >> kilobytes) all += kilobytes;
    if (name == "AnonHugePages:" && smaps >> kilobytes) huge += kilobytes;
    // hugetlbfs, which the anonymous ones do not count
    if (name == "Private_Hugetlb:" && smaps >> kilobytes) all += kilobytes, huge += kilobytes;
    smaps.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return all > 0 ? huge / all : 0;
}

}  // namespace hyla::testing
