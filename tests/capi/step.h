/* One decode step whose numbers can be checked in the head.
 *
 * K = V = 8, one head, alpha = 0.5, beta = 0.5, scale = 1. The state holds S[k=0, v] = 4 (v+1) and
 * S[k=1, v] = 8, zeros elsewhere; k = e0, q = 2 e0, v = (1, 2, .., 8).
 *
 *     S     = 0.5 S          S[0, v] = 2 (v+1), S[1, v] = 4
 *     delta = 0.5 (v+1 - 2 (v+1)) = -0.5 (v+1)
 *     S[0, v] = 1.5 (v+1)
 *     o     = 2 * 1.5 (v+1) = 3 (v+1)
 *
 * Every number is a small multiple of 1/2, so every implementation must give exactly these. */
#ifndef HYLA_TESTS_CAPI_STEP_H_
#define HYLA_TESTS_CAPI_STEP_H_

#include "check.h"

typedef struct {
  float q[8], k[8], v[8], out[8], state[64], alpha[1], beta[1];
  int64_t qkv_shape[3], state_shape[4], gate_shape[2];
  hyla_gdn_decode_params params;
} step;

/* Where S[k, v] lies in the state. */
static inline float* state_at(step* s, int k, int v, int kv_layout) {
  return &s->state[kv_layout ? k * 8 + v : v * 8 + k];
}

static inline void step_init(step* s, int kv_layout) {
  memset(s, 0, sizeof *s);
  s->k[0] = 1;
  s->q[0] = 2;
  s->alpha[0] = s->beta[0] = 0.5f;
  for (int v = 0; v < 8; ++v) {
    s->v[v] = (float)(v + 1);
    *state_at(s, 0, v, kv_layout) = 4 * (float)(v + 1);
    *state_at(s, 1, v, kv_layout) = 8;
    s->out[v] = -1;
  }
  const int64_t qkv_shape[3] = {1, 1, 8}, state_shape[4] = {1, 1, 8, 8}, gate_shape[2] = {1, 1};
  memcpy(s->qkv_shape, qkv_shape, sizeof qkv_shape);
  memcpy(s->state_shape, state_shape, sizeof state_shape);
  memcpy(s->gate_shape, gate_shape, sizeof gate_shape);
  s->params.struct_size = sizeof s->params;
  s->params.q = floats(s->q, 3, s->qkv_shape);
  s->params.k = floats(s->k, 3, s->qkv_shape);
  s->params.v = floats(s->v, 3, s->qkv_shape);
  s->params.out = floats(s->out, 3, s->qkv_shape);
  s->params.state = floats(s->state, 4, s->state_shape);
  s->params.gate.kind = HYLA_GATE_LINEAR;
  s->params.gate.value = floats(s->alpha, 2, s->gate_shape);
  s->params.beta.kind = HYLA_BETA_PROBABILITY;
  s->params.beta.value = floats(s->beta, 2, s->gate_shape);
  s->params.scale = 1;
  s->params.has_scale = 1;
}

/* The output is `factor` times 3 (v+1), and the state is as above. */
static inline int step_done(step* s, int kv_layout, float factor) {
  for (int v = 0; v < 8; ++v) {
    if (s->out[v] != factor * 3 * (float)(v + 1)) return 0;
    for (int k = 0; k < 8; ++k) {
      const float expected = k == 0 ? 1.5f * (float)(v + 1) : k == 1 ? 4.0f : 0.0f;
      if (*state_at(s, k, v, kv_layout) != expected) return 0;
    }
  }
  return 1;
}

#endif
