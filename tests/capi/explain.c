#include "step.h"

static void decode(void) {
  step s;
  char text[1024];
  size_t needed = 0;
  step_init(&s, 0);
  memset(text, 'x', sizeof text);
  CHECK(hyla_explain("gdn.decode", &s.params, NULL, text, sizeof text, &needed) == HYLA_OK);
  CHECK(needed == strlen(text) + 1);
  CHECK(strstr(text, "reference: ok\n") != NULL);
  CHECK(text[needed - 2] == '\n');
  CHECK(s.out[0] == -1); /* explaining runs nothing */

  char cut[4] = "???";
  size_t again = 0;
  CHECK(hyla_explain("gdn.decode", &s.params, NULL, cut, sizeof cut, &again) == HYLA_OK);
  CHECK(again == needed);
  CHECK(memcmp(cut, text, 3) == 0 && cut[3] == '\0');
  again = 0;
  CHECK(hyla_explain("gdn.decode", &s.params, NULL, NULL, 0, &again) == HYLA_OK);
  CHECK(again == needed);
  CHECK(hyla_explain("gdn.decode", &s.params, NULL, text, sizeof text, NULL) == HYLA_OK);
}

static void refusals(void) {
  step s;
  char text[64];
  size_t needed = 7;
  step_init(&s, 0);
  CHECK_REFUSED(hyla_explain(NULL, &s.params, NULL, text, sizeof text, &needed),
                HYLA_INVALID_ARGUMENT, "operation");
  CHECK_REFUSED(hyla_explain("gdn", &s.params, NULL, text, sizeof text, &needed),
                HYLA_INVALID_ARGUMENT, "operation");
  CHECK_REFUSED(hyla_explain("gdn.decode", NULL, NULL, text, sizeof text, &needed),
                HYLA_INVALID_ARGUMENT, "params");
  CHECK_REFUSED(hyla_explain("gdn.decode", &s.params, NULL, NULL, 1, &needed),
                HYLA_INVALID_ARGUMENT, "buffer");
  memset(&s.params.v, 0, sizeof s.params.v);
  CHECK_REFUSED(hyla_explain("gdn.decode", &s.params, NULL, text, sizeof text, &needed),
                HYLA_INVALID_ARGUMENT, "v"); /* as the call itself would */
  CHECK(needed == 7);
}

/* Each operation takes its own struct: zeros of it are refused for a tensor, not for a size. */
static void every_operation(void) {
#define EXPLAIN(name, type)                                                                \
  do {                                                                                     \
    type params = {.struct_size = sizeof params};                                          \
    CHECK(hyla_explain(name, &params, NULL, NULL, 0, NULL) == HYLA_INVALID_ARGUMENT);      \
    CHECK(strncmp(hyla_last_error(), "operation:", 10) != 0);                              \
    CHECK(strstr(hyla_last_error(), "struct_size") == NULL);                               \
    params.struct_size = 4;                                                                \
    CHECK_REFUSED(hyla_explain(name, &params, NULL, NULL, 0, NULL), HYLA_INVALID_ARGUMENT, \
                  "params.struct_size");                                                   \
  } while (0)
  EXPLAIN("gdn.decode", hyla_gdn_decode_params);
  EXPLAIN("gdn.mtp", hyla_gdn_mtp_params);
  EXPLAIN("gdn.prefill", hyla_gdn_prefill_params);
  EXPLAIN("gdn.recurrence", hyla_gdn_recurrence_params);
  EXPLAIN("conv.prefill", hyla_conv_prefill_params);
  EXPLAIN("conv.update", hyla_conv_update_params);
  EXPLAIN("norm.gated_rms", hyla_norm_gated_rms_params);
  EXPLAIN("attention.run", hyla_attention_run_params);
  EXPLAIN("attention.append", hyla_attention_append_params);
  EXPLAIN("attention.merge", hyla_attention_merge_params);
#undef EXPLAIN
}

int main(void) {
  decode();
  refusals();
  every_operation();
  return failures != 0;
}
