/* The first program of a C user: say the version, run one decode step. */
#include <hyla/c_api.h>
#include <stdio.h>

static DLTensor tensor(float* data, int64_t* shape, int32_t ndim) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

int main(void) {
  printf("hyla %s, ABI %u\n", hyla_version(), (unsigned)hyla_abi_version());

  /* B = 1, H = HV = 1, K = V = 8. From an empty state, o = scale * (q . k) * v. */
  float q[8], k[8], v[8], out[8] = {0}, state[64] = {0};
  int64_t row[3] = {1, 1, 8}, pool[4] = {1, 1, 8, 8};
  for (int i = 0; i < 8; ++i) q[i] = 1, k[i] = 0.5f, v[i] = 3;

  hyla_gdn_decode_params params = {.struct_size = sizeof params};
  params.q = tensor(q, row, 3);
  params.k = tensor(k, row, 3);
  params.v = tensor(v, row, 3);
  params.out = tensor(out, row, 3);
  params.state = tensor(state, pool, 4);
  params.scale = 1;
  params.has_scale = 1;
  if (hyla_gdn_decode(&params, NULL) != HYLA_OK) {
    printf("decode failed: %s\n", hyla_last_error());
    return 1;
  }
  printf("decode: %g, expected 12\n", (double)out[0]);
  return out[0] == 12 && out[7] == 12 ? 0 : 1;
}
