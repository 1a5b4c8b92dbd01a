#include <hyla/version.h>

#include <cstdio>

int main() {
  std::printf("hyla %d.%d.%d\n", HYLA_VERSION_MAJOR, HYLA_VERSION_MINOR, HYLA_VERSION_PATCH);
  return 0;
}
