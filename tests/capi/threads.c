/* The last error belongs to the thread; calls in different threads do not disturb each other. */
#include <threads.h>

#include "step.h"

enum { kThreads = 4, kRounds = 200 };

static int worker(void* argument) {
  const int number = *(const int*)argument;
  int bad = hyla_last_error()[0] != '\0'; /* a new thread starts without one */
  for (int round = 0; round < kRounds; ++round) {
    step s;
    step_init(&s, 0);
    bad += hyla_gdn_decode(&s.params, NULL) != HYLA_OK || !step_done(&s, 0, 1);
    bad += hyla_last_error()[0] != '\0';
    s.params.layout = 100 + number;
    bad += hyla_gdn_decode(&s.params, NULL) != HYLA_INVALID_ARGUMENT;
    thrd_yield();
    char expected[32];
    snprintf(expected, sizeof expected, "got %d", 100 + number);
    bad += strstr(hyla_last_error(), expected) == NULL;
  }
  return bad;
}

int main(void) {
  thrd_t threads[kThreads];
  int numbers[kThreads];
  CHECK(hyla_gdn_decode(NULL, NULL) == HYLA_INVALID_ARGUMENT);
  char mine[256];
  snprintf(mine, sizeof mine, "%s", hyla_last_error());
  for (int i = 0; i < kThreads; ++i) {
    numbers[i] = i;
    CHECK(thrd_create(&threads[i], worker, &numbers[i]) == thrd_success);
  }
  for (int i = 0; i < kThreads; ++i) {
    int bad = -1;
    CHECK(thrd_join(threads[i], &bad) == thrd_success);
    CHECK(bad == 0);
  }
  CHECK(strcmp(hyla_last_error(), mine) == 0);
  return failures != 0;
}
