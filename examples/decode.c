/* The decode step of decode.cpp through the C interface: 4 decays to 2 and moves half of the way to
 * 10. */
#include <hyla/c_api.h>
#include <stdio.h>

static DLTensor floats(float* data, int32_t ndim, int64_t* shape) {
  DLTensor tensor = {.data = data, .ndim = ndim, .shape = shape};
  tensor.device.device_type = kDLCPU;
  tensor.dtype = (DLDataType){.code = kDLFloat, .bits = 32, .lanes = 1};
  return tensor;
}

int main(void) {
  float q[8] = {1}, k[8] = {1}, v[8], state[8][8] = {{0}}, out[8], alpha = 0.5f, beta = 0.5f;
  int64_t tokens[] = {1, 1, 8}, pool[] = {1, 1, 8, 8}, gates[] = {1, 1};
  for (int i = 0; i < 8; ++i) {
    v[i] = 10;
    state[i][0] = 4;
  }
  hyla_gdn_decode_params params = {.struct_size = sizeof params, .scale = 1, .has_scale = 1};
  params.q = floats(q, 3, tokens);
  params.k = floats(k, 3, tokens);
  params.v = floats(v, 3, tokens);
  params.state = floats(&state[0][0], 4, pool);
  params.out = floats(out, 3, tokens);
  params.gate = (hyla_gate){.kind = HYLA_GATE_LINEAR, .value = floats(&alpha, 2, gates)};
  params.beta = (hyla_beta){.kind = HYLA_BETA_PROBABILITY, .value = floats(&beta, 2, gates)};
  if (hyla_gdn_decode(&params, NULL) != HYLA_OK) {
    fprintf(stderr, "%s\n", hyla_last_error());
    return 1;
  }
  printf("out = %g, state = %g\n", out[0], state[0][0]);
  return out[0] == 6 && out[7] == 6 && state[0][0] == 6 ? 0 : 1;
}
