#include <math.h>

#include "step.h"

static void layouts(void) {
  step s;
  step_init(&s, 0);
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
  step_init(&s, 0);
  s.params.layout = HYLA_STATE_VK;
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
  step_init(&s, 1);
  s.params.layout = HYLA_STATE_KV;
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(step_done(&s, 1, 1));
}

static void scales(void) {
  step s;
  step_init(&s, 0);
  s.params.scale = 0.25;
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(step_done(&s, 0, 0.25f));
  step_init(&s, 0);
  s.params.scale = 0; /* zero is zero when it was asked for */
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(step_done(&s, 0, 0));
  step_init(&s, 0);
  s.params.has_scale = 0; /* and 1/sqrt(K) when it was not */
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  for (int v = 0; v < 8; ++v) {
    const double expected = 3 * (v + 1) / sqrt(8.0);
    /* The scale and the product, each rounded to float32 once. */
    CHECK(fabs((double)s.out[v] - expected) <= expected * 2 * ldexp(1, -24));
  }
}

/* ln(0.5) and logit 0 are alpha = 0.5 and beta = 0.5. */
static void other_kinds(void) {
  step s;
  step_init(&s, 0);
  s.params.gate.kind = HYLA_GATE_NONE;
  memset(&s.params.gate.value, 0, sizeof(DLTensor));
  s.params.beta.kind = HYLA_BETA_LOGIT;
  s.beta[0] = 0;
  /* alpha = 1: S[0] = 4 (v+1), delta = 0.5 (v+1 - 4 (v+1)) = -1.5 (v+1), o = 2 * 2.5 (v+1) */
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  for (int v = 0; v < 8; ++v) CHECK(s.out[v] == 5 * (float)(v + 1));
  step_init(&s, 0);
  s.params.gate.kind = HYLA_GATE_LOG;
  s.alpha[0] = -INFINITY; /* wipes the state: delta = 0.5 (v+1), o = 2 * 0.5 (v+1) */
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  for (int v = 0; v < 8; ++v) CHECK(s.out[v] == (float)(v + 1));
  step_init(&s, 0);
  s.params.beta.kind = HYLA_BETA_NONE;
  memset(&s.params.beta.value, 0, sizeof(DLTensor));
  /* beta = 1: delta = v+1 - 2 (v+1), S[0] = v+1, o = 2 (v+1) */
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  for (int v = 0; v < 8; ++v) CHECK(s.out[v] == 2 * (float)(v + 1));
}

/* With the norm, q = 2 e0 becomes e0 (up to eps = 1e-6 under the root, which moves it by 1e-6). */
static void l2norm(void) {
  step s;
  step_init(&s, 0);
  s.params.l2norm = HYLA_ON;
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  for (int v = 0; v < 8; ++v) CHECK(fabs(s.out[v] - 1.5 * (v + 1)) < 1e-5 * (v + 1));
  step_init(&s, 0);
  s.params.l2norm = HYLA_ON;
  s.params.l2norm_eps = 12; /* q: 2 / sqrt(4 + 12) = 1/2; k: 1 / sqrt(13) */
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  for (int v = 0; v < 8; ++v) {
    const double k = 1 / sqrt(13.0), decayed = 2 * (v + 1);
    const double expected = 0.5 * (decayed + k * 0.5 * (v + 1 - k * decayed));
    CHECK(fabs(s.out[v] - expected) < 1e-6 * (v + 1));
  }
}

static void slots(void) {
  step s;
  int32_t read[1] = {-1}, write[1] = {0};
  int64_t shape[1] = {1};
  step_init(&s, 0);
  s.params.read_slots = ints(read, 1, shape);
  s.params.write_slots = ints(write, 1, shape);
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK); /* padding: nothing happens */
  CHECK(s.out[0] == -1 && *state_at(&s, 1, 0, 0) == 8);
  read[0] = 0;
  s.params.first_slot = 1; /* slot 0 is null now */
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(s.out[0] == -1 && *state_at(&s, 1, 0, 0) == 8);
  s.params.first_slot = 0;
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
  read[0] = 1;
  CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "read_slots");
}

static void strides_and_offset(void) {
  step s;
  float packed[24];
  int64_t strides[3] = {24, 24, 1};
  step_init(&s, 0);
  memcpy(packed, s.q, sizeof s.q);
  memcpy(packed + 8, s.k, sizeof s.k);
  memcpy(packed + 16, s.v, sizeof s.v);
  s.params.q.data = s.params.k.data = s.params.v.data = packed;
  s.params.k.byte_offset = 8 * sizeof(float);
  s.params.v.byte_offset = 16 * sizeof(float);
  s.params.q.strides = s.params.k.strides = s.params.v.strides = strides;
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
}

static void contexts(void) {
  step s;
  hyla_context context = {.struct_size = sizeof context};
  step_init(&s, 0);
  CHECK(hyla_gdn_decode(&s.params, &context) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
  context.device.device_type = kDLCPU;
  context.threads = 1;
  context.batch_invariant = 1;
  step_init(&s, 0);
  CHECK(hyla_gdn_decode(&s.params, &context) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
}

int main(void) {
  layouts();
  scales();
  other_kinds();
  l2norm();
  slots();
  strides_and_offset();
  contexts();
  return failures != 0;
}
