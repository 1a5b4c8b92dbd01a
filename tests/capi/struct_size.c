/* Programs built with an older or a newer header than the library's. */
#include <stddef.h>
#include <stdlib.h>

#include "step.h"

/* A struct of a future version: ours, then fields that this library does not know. */
typedef struct {
  hyla_gdn_decode_params known;
  int64_t option;
  double number;
} future_params;

static void newer(void) {
  step s;
  future_params future;
  step_init(&s, 0);
  memset(&future, 0, sizeof future);
  future.known = s.params;
  future.known.struct_size = sizeof future;
  CHECK(hyla_gdn_decode(&future.known, NULL) == HYLA_OK); /* the new fields are left at default */
  CHECK(step_done(&s, 0, 1));
  future.option = 1;
  CHECK_REFUSED(hyla_gdn_decode(&future.known, NULL), HYLA_INVALID_ARGUMENT, "params");
  future.option = 0;
  future.number = -1;
  CHECK_REFUSED(hyla_gdn_decode(&future.known, NULL), HYLA_INVALID_ARGUMENT, "params");
}

/* Memory of exactly `size` bytes: a byte read beyond it is a fault under the sanitizers. */
static hyla_status decode_cut(const step* s, size_t size) {
  hyla_gdn_decode_params* cut = malloc(size);
  memcpy(cut, &s->params, size);
  const uint32_t struct_size = (uint32_t)size;
  memcpy(cut, &struct_size, sizeof struct_size);
  const hyla_status status = hyla_gdn_decode(cut, NULL);
  free(cut);
  return status;
}

static void older(void) {
  step s;
  /* Gate and beta known, the rest not: the scale is the default one. */
  step_init(&s, 0);
  CHECK(decode_cut(&s, offsetof(hyla_gdn_decode_params, read_slots)) == HYLA_OK);
  CHECK(s.out[0] > 1.06f && s.out[0] < 1.061f); /* 3 / sqrt(8) = 1.06066 */
  /* Only what is required: alpha = beta = 1, so o = 2 (v+1) / sqrt(8). */
  step_init(&s, 0);
  CHECK(decode_cut(&s, offsetof(hyla_gdn_decode_params, gate)) == HYLA_OK);
  CHECK(s.out[0] > 0.707f && s.out[0] < 0.7072f);
  step_init(&s, 0);
  CHECK(decode_cut(&s, sizeof s.params) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
}

static void wrong(void) {
  step s;
  for (size_t size = 4; size < sizeof s.params; ++size) {
    step_init(&s, 0);
    const hyla_status status = decode_cut(&s, size);
    if (size < offsetof(hyla_gdn_decode_params, gate) || size % 8 != 0) {
      CHECK(status == HYLA_INVALID_ARGUMENT);
      CHECK(strstr(hyla_last_error(), "params.struct_size: expected") == hyla_last_error());
      CHECK(s.out[0] == -1);
    } else {
      /* A cut inside a field is nobody's header, but it ends in a status, never in a crash. */
      CHECK(status == HYLA_OK || status == HYLA_INVALID_ARGUMENT);
    }
  }
  const uint32_t sizes[] = {0, 1, sizeof s.params + 1, 1u << 20, UINT32_MAX, 0xcdcdcdcdu};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    step_init(&s, 0);
    s.params.struct_size = sizes[i];
    CHECK_REFUSED(hyla_gdn_decode(&s.params, NULL), HYLA_INVALID_ARGUMENT, "params.struct_size");
  }
}

static void contexts(void) {
  step s;
  hyla_context context = {.struct_size = 8};
  step_init(&s, 0);
  CHECK(hyla_gdn_decode(&s.params, &context) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
  const uint32_t sizes[] = {0, 4, 9, 1u << 30};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    context.struct_size = sizes[i];
    CHECK_REFUSED(hyla_gdn_decode(&s.params, &context), HYLA_INVALID_ARGUMENT,
                  "context.struct_size");
  }
  context.struct_size = sizeof context;
  context.reserved = 1;
  CHECK_REFUSED(hyla_gdn_decode(&s.params, &context), HYLA_INVALID_ARGUMENT, "context.reserved");
}

/* Each struct begins with its size and refuses zeros. */
static void every_function(void) {
  size_t bytes = 0;
#define ZEROS(type, call)                                                                  \
  do {                                                                                     \
    type zeros;                                                                            \
    memset(&zeros, 0, sizeof zeros);                                                       \
    CHECK_REFUSED(call, HYLA_INVALID_ARGUMENT, "params.struct_size");                      \
    zeros.struct_size = sizeof zeros; /* all tensors are absent: the first one is named */ \
    CHECK((call) == HYLA_INVALID_ARGUMENT);                                                \
    CHECK(strstr(hyla_last_error(), "struct_size") == NULL);                               \
  } while (0)
  ZEROS(hyla_gdn_decode_params, hyla_gdn_decode(&zeros, NULL));
  ZEROS(hyla_gdn_mtp_params, hyla_gdn_mtp(&zeros, NULL));
  ZEROS(hyla_gdn_prefill_params, hyla_gdn_prefill(&zeros, NULL));
  ZEROS(hyla_gdn_recurrence_params, hyla_gdn_recurrence(&zeros, NULL));
  ZEROS(hyla_conv_prefill_params, hyla_conv_prefill(&zeros, NULL));
  ZEROS(hyla_conv_update_params, hyla_conv_update(&zeros, NULL));
  ZEROS(hyla_norm_gated_rms_params, hyla_norm_gated_rms(&zeros, NULL));
  ZEROS(hyla_attention_run_params, hyla_attention_run(&zeros, NULL));
  ZEROS(hyla_attention_append_params, hyla_attention_append(&zeros, NULL));
  ZEROS(hyla_attention_merge_params, hyla_attention_merge(&zeros, NULL));
#undef ZEROS
  hyla_gdn_prefill_bounds prefill = {.struct_size = 8};
  CHECK_REFUSED(hyla_gdn_prefill_workspace_bytes(&prefill, &bytes), HYLA_INVALID_ARGUMENT,
                "bounds.struct_size");
  hyla_attention_run_bounds attention = {.struct_size = 8};
  CHECK_REFUSED(hyla_attention_run_workspace_bytes(&attention, &bytes), HYLA_INVALID_ARGUMENT,
                "bounds.struct_size");
}

int main(void) {
  newer();
  older();
  wrong();
  contexts();
  every_function();
  return failures != 0;
}
