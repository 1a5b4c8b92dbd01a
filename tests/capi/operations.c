/* One small call of every other operation, with numbers that can be checked in the head. */
#include <math.h>
#include <stdlib.h>

#include "step.h"

/* Two tokens like the one of step.h, one after the other:
 *
 *     S[0, v]: 4 -> 2 -> 1.5 | 0.75, delta = 0.5 (1 - 0.75) = 0.125 -> 0.875, each times v+1
 *     S[1, v]: 8 -> 4        | 2
 *     o = 2 S[0, v]: 3 (v+1), then 1.75 (v+1) */
typedef struct {
  float q[16], k[16], v[16], out[16], qkv[48], state[64], alpha[2], beta[2];
  int32_t offsets[2];
  int64_t token_shape[3], row_shape[4], state_shape[4], gate_shape[2], row_gate_shape[3];
  int64_t offsets_shape[1], qkv_shape[2], out_shape[2];
} two_tokens;

static void two_tokens_init(two_tokens* t, int kv_layout) {
  step s;
  step_init(&s, kv_layout);
  memset(t, 0, sizeof *t);
  memcpy(t->state, s.state, sizeof t->state);
  for (int i = 0; i < 2; ++i) {
    memcpy(t->q + 8 * i, s.q, sizeof s.q);
    memcpy(t->k + 8 * i, s.k, sizeof s.k);
    memcpy(t->v + 8 * i, s.v, sizeof s.v);
    memcpy(t->qkv + 24 * i, s.q, sizeof s.q);
    memcpy(t->qkv + 24 * i + 8, s.k, sizeof s.k);
    memcpy(t->qkv + 24 * i + 16, s.v, sizeof s.v);
    t->alpha[i] = t->beta[i] = 0.5f;
  }
  t->offsets[1] = 2;
  const two_tokens shapes = {.token_shape = {2, 1, 8},
                             .row_shape = {1, 2, 1, 8},
                             .state_shape = {1, 1, 8, 8},
                             .gate_shape = {2, 1},
                             .row_gate_shape = {1, 2, 1},
                             .offsets_shape = {2},
                             .qkv_shape = {2, 24},
                             .out_shape = {2, 8}};
  memcpy(t->token_shape, shapes.token_shape, sizeof *t - offsetof(two_tokens, token_shape));
}

static int near(float got, double expected, double tolerance) {
  return fabs((double)got - expected) <= tolerance * fabs(expected);
}

static int two_tokens_done(const two_tokens* t, int kv_layout, double tolerance) {
  for (int v = 0; v < 8; ++v) {
    if (!near(t->out[v], 3 * (v + 1), tolerance)) return 0;
    if (!near(t->out[8 + v], 1.75 * (v + 1), tolerance)) return 0;
    if (!near(t->state[kv_layout ? v : 8 * v], 0.875 * (v + 1), tolerance)) return 0;
    if (!near(t->state[kv_layout ? 8 + v : 8 * v + 1], 2, tolerance)) return 0;
  }
  return 1;
}

static void mtp(void) {
  two_tokens t;
  two_tokens_init(&t, 0);
  hyla_gdn_mtp_params p = {.struct_size = sizeof p, .scale = 1, .has_scale = 1};
  p.q = floats(t.q, 4, t.row_shape);
  p.k = floats(t.k, 4, t.row_shape);
  p.v = floats(t.v, 4, t.row_shape);
  p.out = floats(t.out, 4, t.row_shape);
  p.state = floats(t.state, 4, t.state_shape);
  p.gate.kind = HYLA_GATE_LINEAR;
  p.gate.value = floats(t.alpha, 3, t.row_gate_shape);
  p.beta.kind = HYLA_BETA_PROBABILITY;
  p.beta.value = floats(t.beta, 3, t.row_gate_shape);
  CHECK_REFUSED(hyla_gdn_mtp(&p, NULL), HYLA_INVALID_ARGUMENT, "update_state");
  float states[128];
  int64_t states_shape[5] = {1, 2, 1, 8, 8};
  p.states_out = floats(states, 5, states_shape);
  p.update_state = HYLA_OFF;
  CHECK(hyla_gdn_mtp(&p, NULL) == HYLA_OK);
  CHECK(t.state[0] == 4 && t.state[1] == 8);
  CHECK(states[8] == 3 && states[64 + 8] == 1.75f); /* S[0, 1] after each token */
  p.update_state = HYLA_ON;
  CHECK(hyla_gdn_mtp(&p, NULL) == HYLA_OK);
  CHECK(two_tokens_done(&t, 0, 0));
}

static void prefill(void) {
  two_tokens t;
  two_tokens_init(&t, 0);
  hyla_gdn_prefill_params p = {.struct_size = sizeof p, .scale = 1, .has_scale = 1};
  p.q = floats(t.q, 3, t.token_shape);
  p.k = floats(t.k, 3, t.token_shape);
  p.v = floats(t.v, 3, t.token_shape);
  p.out = floats(t.out, 3, t.token_shape);
  p.cu_seqlens = ints(t.offsets, 1, t.offsets_shape);
  p.state = floats(t.state, 4, t.state_shape);
  p.gate.kind = HYLA_GATE_LINEAR;
  p.gate.value = floats(t.alpha, 2, t.gate_shape);
  p.beta.kind = HYLA_BETA_PROBABILITY;
  p.beta.value = floats(t.beta, 2, t.gate_shape);
  hyla_gdn_prefill_bounds bounds = {.struct_size = sizeof bounds,
                                    .max_sequences = 1,
                                    .max_tokens = 2,
                                    .query_heads = 1,
                                    .key_heads = 1,
                                    .value_heads = 1,
                                    .key_dim = 8,
                                    .value_dim = 8};
  bounds.io = p.q.dtype;
  size_t bytes = SIZE_MAX;
  CHECK(hyla_gdn_prefill_workspace_bytes(&bounds, &bytes) == HYLA_OK);
  CHECK(bytes < 1u << 20);
  p.workspace_bytes = (bytes + 255) / 256 * 256 + 256;
  p.workspace = aligned_alloc(256, p.workspace_bytes);
  p.update_state = HYLA_OFF;
  CHECK(hyla_gdn_prefill(&p, NULL) == HYLA_OK);
  CHECK(t.state[0] == 4 && t.state[1] == 8);
  p.update_state = HYLA_DEFAULT;
  int32_t told[1] = {-1};
  int64_t told_shape[1] = {1};
  p.host_lengths = ints(told, 1, told_shape);
  CHECK_REFUSED(hyla_gdn_prefill(&p, NULL), HYLA_INVALID_ARGUMENT, "host_lengths");
  told[0] = 1000; /* wrong, and no result depends on it */
  CHECK(hyla_gdn_prefill(&p, NULL) == HYLA_OK);
  /* A chunked algorithm adds logs and multiplies in another order: some float32 roundings. */
  CHECK(two_tokens_done(&t, 0, 16 * ldexp(1, -24)));
  free(p.workspace);
}

static void recurrence(void) {
  two_tokens t;
  two_tokens_init(&t, 1);
  hyla_gdn_recurrence_params p = {.struct_size = sizeof p,
                                  .key_heads = 1,
                                  .value_heads = 1,
                                  .key_dim = 8,
                                  .value_dim = 8,
                                  .scale = 1,
                                  .has_scale = 1,
                                  .l2norm = HYLA_OFF};
  p.qkv = floats(t.qkv, 2, t.qkv_shape);
  p.out = floats(t.out, 2, t.out_shape);
  p.state = floats(t.state, 4, t.state_shape);
  p.cu_seqlens = ints(t.offsets, 1, t.offsets_shape);
  p.gate.kind = HYLA_GATE_LINEAR;
  p.gate.value = floats(t.alpha, 2, t.gate_shape);
  p.beta.kind = HYLA_BETA_PROBABILITY;
  p.beta.value = floats(t.beta, 2, t.gate_shape);
  CHECK(hyla_gdn_recurrence(&p, NULL) == HYLA_OK);
  CHECK(two_tokens_done(&t, 1, 0));
  two_tokens_init(&t, 1);
  p.l2norm = HYLA_DEFAULT; /* on: q = 2 e0 counts as e0, up to eps */
  CHECK(hyla_gdn_recurrence(&p, NULL) == HYLA_OK);
  for (int v = 0; v < 8; ++v) CHECK(near(t.out[v], 1.5 * (v + 1), 1e-5));
}

static void conv(void) {
  float x[3] = {1, 2, 3}, out[3], weight[2] = {1, 2}, state[1] = {10}, bias[1] = {-4};
  int32_t offsets[2] = {0, 3};
  int64_t x_shape[2] = {3, 1}, one_token[2] = {1, 1}, weight_shape[2] = {1, 2};
  int64_t state_shape[3] = {1, 1, 1}, offsets_shape[1] = {2}, bias_shape[1] = {1};
  hyla_conv_prefill_params prefill = {.struct_size = sizeof prefill,
                                      .activation = HYLA_ACTIVATION_NONE};
  prefill.x = floats(x, 2, x_shape);
  prefill.out = floats(out, 2, x_shape);
  prefill.weight = floats(weight, 2, weight_shape);
  prefill.state = floats(state, 3, state_shape);
  prefill.cu_seqlens = ints(offsets, 1, offsets_shape);
  CHECK(hyla_conv_prefill(&prefill, NULL) == HYLA_OK);
  /* out[t] = x[t-1] + 2 x[t], with 10 before the first */
  CHECK(out[0] == 12 && out[1] == 5 && out[2] == 8 && state[0] == 3);
  hyla_conv_update_params update = {.struct_size = sizeof update,
                                    .activation = HYLA_ACTIVATION_NONE};
  update.x = floats(x, 2, one_token);
  update.out = floats(out, 2, one_token);
  update.weight = prefill.weight;
  update.state = prefill.state;
  update.bias = floats(bias, 1, bias_shape);
  CHECK(hyla_conv_update(&update, NULL) == HYLA_OK);
  CHECK(out[0] == 1 && state[0] == 1); /* 3 + 2 * 1 - 4 */
  update.activation = HYLA_ACTIVATION_DEFAULT;
  CHECK(hyla_conv_update(&update, NULL) == HYLA_OK);
  CHECK(near(out[0], -1 / (1 + exp(1.0)), 4 * ldexp(1, -24))); /* silu(1 + 2 * 1 - 4) */
  /* Over x itself, and not over a part of it. */
  state[0] = 10;
  prefill.out = prefill.x;
  CHECK(hyla_conv_prefill(&prefill, NULL) == HYLA_OK);
  CHECK(x[0] == 12 && x[1] == 5 && x[2] == 8 && state[0] == 3);
  offsets[1] = 2;
  x_shape[0] = 2;
  prefill.out = floats(x + 1, 2, x_shape);
  CHECK_REFUSED(hyla_conv_prefill(&prefill, NULL), HYLA_INVALID_ARGUMENT, "out");
}

static void norm(void) {
  float x[2] = {1, -1}, z[2] = {0, 0}, weight[2] = {2, 4}, out[2];
  int64_t shape[2] = {1, 2}, weight_shape[1] = {2};
  hyla_norm_gated_rms_params p = {.struct_size = sizeof p, .gate = HYLA_ACTIVATION_SIGMOID};
  p.x = floats(x, 2, shape);
  p.z = floats(z, 2, shape);
  p.out = floats(out, 2, shape);
  p.weight = floats(weight, 1, weight_shape);
  p.eps = 3; /* mean 1: rsqrt(4) = 1/2, and sigmoid(0) = 1/2 */
  CHECK(hyla_norm_gated_rms(&p, NULL) == HYLA_OK);
  CHECK(out[0] == 0.5f && out[1] == -1);
  p.eps = 0; /* 1e-6 */
  CHECK(hyla_norm_gated_rms(&p, NULL) == HYLA_OK);
  CHECK(near(out[0], 1 / sqrt(1 + 1e-6), 4 * ldexp(1, -24)));
  p.gate = HYLA_ACTIVATION_DEFAULT; /* silu(0) = 0 */
  CHECK(hyla_norm_gated_rms(&p, NULL) == HYLA_OK);
  CHECK(out[0] == 0 && out[1] == 0);
}

int main(void) {
  mtp();
  prefill();
  recurrence();
  conv();
  norm();
  return failures != 0;
}
