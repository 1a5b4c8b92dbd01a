/* What the C tests share: an assertion that says where, and tensors over plain arrays. */
#ifndef HYLA_TESTS_CAPI_CHECK_H_
#define HYLA_TESTS_CAPI_CHECK_H_

#include <hyla/c_api.h>
#include <stdio.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      ++failures;                                                                      \
      fprintf(stderr, "%s:%d: %s; last error: '%s'\n", __FILE__, __LINE__, #condition, \
              hyla_last_error());                                                      \
    }                                                                                  \
  } while (0)

/* The call is refused with this status, and the message begins with this argument. */
#define CHECK_REFUSED(call, status, argument)                                                     \
  do {                                                                                            \
    const hyla_status got = (call);                                                               \
    if (got != (status) || strncmp(hyla_last_error(), argument ":", strlen(argument) + 1) != 0) { \
      ++failures;                                                                                 \
      fprintf(stderr, "%s:%d: %s gave %s '%s'\n", __FILE__, __LINE__, #call,                      \
              hyla_status_name(got), hyla_last_error());                                          \
    }                                                                                             \
  } while (0)

/* A dense tensor on the CPU; the shape must stay alive. */
static inline DLTensor tensor(void* data, int code, int bits, int32_t ndim, int64_t* shape) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = (uint8_t)code;
  t.dtype.bits = (uint8_t)bits;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

static inline DLTensor floats(float* data, int32_t ndim, int64_t* shape) {
  return tensor(data, kDLFloat, 32, ndim, shape);
}

static inline DLTensor ints(int32_t* data, int32_t ndim, int64_t* shape) {
  return tensor(data, kDLInt, 32, ndim, shape);
}

#endif
