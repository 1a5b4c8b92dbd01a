// One decode step of a Gated DeltaNet layer, small enough to check in the head: the state says that
// key e0 means 4; it decays by half, to 2, and the new value 10 moves it half of the way, to 6.
#include <hyla/gdn.h>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> q(8), k(8), v(8, 10.0f), state(8 * 8), out(8);
  q[0] = k[0] = 1.0f;
  for (std::size_t i = 0; i < 8; ++i) state[i * 8] = 4.0f;
  const float alpha = 0.5f, beta = 0.5f;

  hyla::gdn::decode({.q = {q.data(), {1, 1, 8}},             // [B, H, K]
                     .k = {k.data(), {1, 1, 8}},             // [B, H, K]
                     .v = {v.data(), {1, 1, 8}},             // [B, HV, V]
                     .state = {state.data(), {1, 1, 8, 8}},  // [slots, HV, V, K], updated in place
                     .out = {out.data(), {1, 1, 8}},         // [B, HV, V]
                     .gate = hyla::gdn::Gate::linear({&alpha, {1, 1}}),
                     .beta = hyla::gdn::Beta::probability({&beta, {1, 1}}),
                     .scale = 1.0});

  std::printf("out = %g, state = %g\n", out[0], state[0]);
  return out[0] == 6.0f && out[7] == 6.0f && state[0] == 6.0f ? 0 : 1;
}
