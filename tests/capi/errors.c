/* Null pointers, numbers that are no enumerator, and what the messages say. */
#include "step.h"

static void null_pointers(void) {
  size_t bytes = 0;
  CHECK_REFUSED(hyla_gdn_decode(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_gdn_mtp(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_gdn_prefill(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_gdn_recurrence(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_conv_prefill(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_conv_update(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_norm_gated_rms(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_attention_run(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_attention_append(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_attention_merge(NULL, NULL), HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_gdn_prefill_workspace_bytes(NULL, &bytes), HYLA_INVALID_ARGUMENT, "bounds");
  CHECK_REFUSED(hyla_attention_run_workspace_bytes(NULL, &bytes), HYLA_INVALID_ARGUMENT, "bounds");
  hyla_gdn_prefill_bounds bounds = {.struct_size = sizeof bounds};
  CHECK_REFUSED(hyla_gdn_prefill_workspace_bytes(&bounds, NULL), HYLA_INVALID_ARGUMENT, "bytes");
}

static void no_enumerators(void) {
  step s;
  const int32_t bad[] = {-1, 4, 1000000};
  for (int i = 0; i < 3; ++i) {
    step_init(&s, 0);
    s.params.layout = bad[i];
    CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "layout");
    step_init(&s, 0);
    s.params.gate.kind = bad[i];
    CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "gate.kind");
    step_init(&s, 0);
    s.params.beta.kind = bad[i];
    CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "beta.kind");
    step_init(&s, 0);
    s.params.l2norm = bad[i];
    CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "l2norm");
    step_init(&s, 0);
    s.params.norm.gate = bad[i];
    CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "norm.gate");
    hyla_conv_update_params conv = {.struct_size = sizeof conv, .activation = bad[i]};
    CHECK_REFUSED(hyla_conv_update(&conv, NULL), HYLA_INVALID_ARGUMENT, "activation");
    hyla_attention_run_params run = {.struct_size = sizeof run, .causal = bad[i]};
    CHECK_REFUSED(hyla_attention_run(&run, NULL), HYLA_INVALID_ARGUMENT, "causal");
    run.causal = HYLA_DEFAULT;
    run.cache.layout = bad[i];
    CHECK_REFUSED(hyla_attention_run(&run, NULL), HYLA_INVALID_ARGUMENT, "cache.layout");
    run.cache.layout = HYLA_KV_NHD;
    run.cache.kind = bad[i] == 4 ? 6 : bad[i];
    CHECK_REFUSED(hyla_attention_run(&run, NULL), HYLA_INVALID_ARGUMENT, "cache.kind");
  }
  /* Activations that exist, but not there. */
  hyla_conv_update_params conv = {.struct_size = sizeof conv,
                                  .activation = HYLA_ACTIVATION_SIGMOID};
  CHECK_REFUSED(hyla_conv_update(&conv, NULL), HYLA_INVALID_ARGUMENT, "activation");
  hyla_norm_gated_rms_params norm = {.struct_size = sizeof norm, .gate = HYLA_ACTIVATION_NONE};
  CHECK_REFUSED(hyla_norm_gated_rms(&norm, NULL), HYLA_INVALID_ARGUMENT, "gate");
}

static void tensors(void) {
  step s;
  step_init(&s, 0);
  s.params.v.dtype.lanes = 2;
  CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "v");
  step_init(&s, 0);
  s.params.norm.z.ndim = 7;
  CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "norm.z");
  step_init(&s, 0);
  memset(&s.params.k, 0, sizeof s.params.k);
  CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "k");
  step_init(&s, 0);
  s.params.out = s.params.v;
  CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "out");
  step_init(&s, 0);
  s.params.state.device.device_type = kDLCUDA;
  CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "state");
  hyla_gdn_mtp_params mtp = {.struct_size = sizeof mtp};
  mtp.q = mtp.k = mtp.v = mtp.out = floats(s.q, 3, s.qkv_shape);
  mtp.update_state = 3;
  CHECK_REFUSED(hyla_gdn_mtp(&mtp, NULL), HYLA_INVALID_ARGUMENT, "update_state");
}

static void contexts(void) {
  step s;
  hyla_context context = {.struct_size = sizeof context};
  step_init(&s, 0);
  context.threads = -1;
  CHECK_REFUSED(hyla_gdn_decode(&s.params, &context), HYLA_INVALID_ARGUMENT, "context.threads");
  context.threads = 0;
  context.stream = &context;
  CHECK_REFUSED(hyla_gdn_decode(&s.params, &context), HYLA_INVALID_ARGUMENT, "context.has_stream");
  context.has_stream = 1; /* on a CPU */
  CHECK_REFUSED(hyla_gdn_decode(&s.params, &context), HYLA_INVALID_ARGUMENT, "context.stream");
  context.device.device_type = (DLDeviceType)9;
  CHECK_REFUSED(hyla_gdn_decode(&s.params, &context), HYLA_INVALID_ARGUMENT, "context.device");
}

static void forced_implementations(void) {
  step s;
  step_init(&s, 0);
  s.params.impl = "reference";
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
  s.params.impl = "no such thing";
  CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "impl");
  /* A valid call that the reference, which runs on the CPU, cannot take: all tensors on a GPU. */
  hyla_context context = {.struct_size = sizeof context, .has_stream = 1};
  context.device.device_type = kDLCUDA;
  DLTensor* all[] = {&s.params.q,   &s.params.k,          &s.params.v,         &s.params.state,
                     &s.params.out, &s.params.gate.value, &s.params.beta.value};
  for (int i = 0; i < 7; ++i) all[i]->device.device_type = kDLCUDA;
  s.params.impl = "reference";
  CHECK_REFUSED(hyla_gdn_decode(&s.params, &context), HYLA_UNSUPPORTED, "gdn.decode");
  CHECK(strstr(hyla_last_error(), "reference: runs on the CPU only") != NULL);
}

static void messages(void) {
  step s;
  step_init(&s, 0);
  CHECK(hyla_gdn_decode(NULL, NULL) != HYLA_OK);
  CHECK(hyla_last_error()[0] != '\0');
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(hyla_last_error()[0] == '\0'); /* of the latest call, which succeeded */
  CHECK(strcmp(hyla_status_name(HYLA_OK), "ok") == 0);
  CHECK(strcmp(hyla_status_name(HYLA_INTERNAL), "internal") == 0);
  for (int i = 0; i <= HYLA_INTERNAL; ++i) {
    for (int j = i + 1; j <= HYLA_INTERNAL + 1; ++j) {
      CHECK(strcmp(hyla_status_name(i), hyla_status_name(j)) != 0);
    }
  }
  CHECK(strcmp(hyla_status_name(-1), "unknown") == 0);
  CHECK(hyla_abi_version() == HYLA_ABI_VERSION);
  CHECK(strchr(hyla_version(), '.') != NULL);
}

int main(void) {
  null_pointers();
  no_enumerators();
  tensors();
  contexts();
  forced_implementations();
  messages();
  return failures != 0;
}
