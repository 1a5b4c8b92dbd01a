/* hyla's own threads: made, put into a context, used by a call, and taken back. */
#include "step.h"

static void count_call(void* task, int i) { ++((int*)task)[i]; }

int main(void) {
  hyla_thread_pool* pool = NULL;
  CHECK(hyla_thread_pool_create(-1, &pool) == HYLA_INVALID_ARGUMENT);
  CHECK(strstr(hyla_last_error(), "threads") != NULL);
  CHECK(pool == NULL);
  CHECK(hyla_thread_pool_create(2, NULL) == HYLA_INVALID_ARGUMENT);
  CHECK(hyla_thread_pool_create(3, &pool) == HYLA_OK);
  CHECK(pool != NULL);

  hyla_context context = {.struct_size = sizeof context, .batch_invariant = 1};
  CHECK(hyla_thread_pool_use(NULL, &context) == HYLA_INVALID_ARGUMENT);
  CHECK(hyla_thread_pool_use(pool, NULL) == HYLA_INVALID_ARGUMENT);
  hyla_context small = {.struct_size = offsetof(hyla_context, parallel_for)};
  CHECK(hyla_thread_pool_use(pool, &small) == HYLA_INVALID_ARGUMENT);
  CHECK(small.parallel_pool == NULL);
  CHECK(hyla_thread_pool_use(pool, &context) == HYLA_OK);
  CHECK(context.threads >= 1 && context.threads <= 3);
  CHECK(context.batch_invariant == 1);

  int calls[100] = {0};
  context.parallel_for(context.parallel_pool, 100, count_call, calls);
  for (int i = 0; i < 100; ++i) CHECK(calls[i] == 1);

  step s;
  step_init(&s, 0);
  CHECK(hyla_gdn_decode(&s.params, &context) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
  hyla_thread_pool_destroy(pool);
  hyla_thread_pool_destroy(NULL);
  return failures != 0;
}
