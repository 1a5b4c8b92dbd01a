/* A program that brings its own, old DLPack under another path: included first, it is the one that
 * counts, and hyla takes its tensors. */
#define DLPACK_DLPACK_H_
#include <stdint.h>

typedef enum { kDLCPU = 1, kDLGPU = 2 } DLDeviceType;
typedef struct {
  DLDeviceType device_type;
  int device_id;
} DLContext;
typedef DLContext DLDevice;
typedef enum { kDLInt = 0U, kDLUInt = 1U, kDLFloat = 2U } DLDataTypeCode;
typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;

#include "step.h"

int main(void) {
  step s;
  step_init(&s, 0);
  CHECK(hyla_gdn_decode(&s.params, NULL) == HYLA_OK);
  CHECK(step_done(&s, 0, 1));
  return failures != 0;
}
