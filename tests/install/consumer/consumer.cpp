// What a user's first program does: say the version, run one decode step.
#include <hyla/backend.h>
#include <hyla/gdn.h>
#include <hyla/version.h>

#include <cstdio>
#include <string>
#include <vector>

int main() {
  const std::string headers = std::to_string(HYLA_VERSION_MAJOR) + "." +
                              std::to_string(HYLA_VERSION_MINOR) + "." +
                              std::to_string(HYLA_VERSION_PATCH);
  std::printf("hyla %s\n", hyla::version());
  if (headers != hyla::version()) {
    std::printf("the headers are of version %s\n", headers.c_str());
    return 1;
  }

  // B = 1, H = HV = 1, K = V = 8. From an empty state, o = scale * (q . k) * v.
  std::vector<float> q(8, 1), k(8, 0.5), v(8, 3), state(64, 0), out(8, 0);
  hyla::gdn::decode({.q = {q.data(), {1, 1, 8}},
                     .k = {k.data(), {1, 1, 8}},
                     .v = {v.data(), {1, 1, 8}},
                     .state = {state.data(), {1, 1, 8, 8}},
                     .out = {out.data(), {1, 1, 8}},
                     .scale = 1.0});
  std::printf("decode: %g, expected 12\n", static_cast<double>(out[0]));
  return out[0] == 12.0f && out[7] == 12.0f ? 0 : 1;
}
