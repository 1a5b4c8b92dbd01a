// The documented kernel `gated_delta_recurrence_fwd_gpu` launched from one's own CUDA code, and the
// library's tuned implementation of the same call beside it. Two sequences, of one and two tokens,
// over a pool of four slots; small enough to check in the head:
//
// both states say that key e0 means 4; a token lets that fade by half and moves it half of the way
// to its value 10, so 4 -> 2 -> 6 after one token and 6 -> 3 -> 6.5 after two. The query asks for
// e0, and the answer is scaled by 1/sqrt(8).
#include <hyla/recurrence_kernel.h>

#include <cmath>
#include <cstdio>
#include <vector>

using hyla::DType;

namespace {

constexpr int kKeyDim = 8, kValueDim = 8, kBlock = 64;
constexpr std::uint32_t kTokens = 3, kSequences = 2, kSlots = 4;
constexpr std::uint32_t kChannels = 2 * kKeyDim + kValueDim;  // one key head, one value head

template <class T>
T* to_device(const std::vector<T>& values) {
  T* memory = nullptr;
  cudaMalloc(&memory, values.size() * sizeof(T));
  cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return memory;
}

// One call after another on the same inputs, each with an output and a pool of its own.
struct Problem {
  float* qkv;
  float *decay, *beta;
  std::uint32_t *slots, *offsets;

  Problem() {
    std::vector<float> rows(kTokens * kChannels);
    for (std::uint32_t t = 0; t < kTokens; ++t) {
      rows[t * kChannels] = rows[t * kChannels + kKeyDim] = 1;  // q = k = e0
      for (int v = 0; v < kValueDim; ++v) rows[t * kChannels + 2 * kKeyDim + v] = 10;
    }
    qkv = to_device(rows);
    decay = to_device(std::vector<float>(kTokens, 0.5f));
    beta = to_device(std::vector<float>(kTokens, 0.5f));
    slots = to_device(std::vector<std::uint32_t>{3, 1});
    offsets = to_device(std::vector<std::uint32_t>{0, 1, 3});
  }

  // `call` receives the document's arguments.
  template <class Call>
  bool check(const char* name, Call&& call) const {
    std::vector<float> pool(kSlots * kKeyDim * kValueDim), out(kTokens * kValueDim);
    for (std::uint32_t slot : {1, 3}) {
      for (int v = 0; v < kValueDim; ++v) pool[slot * kKeyDim * kValueDim + v] = 4;
    }
    float *state = to_device(pool), *output = to_device(out);
    call(kSequences * kValueDim, kSequences, kTokens, 1, 1, kKeyDim, kValueDim, kChannels,
         hyla::gdn::TileTensor<DType::kFloat32, 2>{output, {kTokens, kValueDim}},
         hyla::gdn::TileTensor<DType::kFloat32, 4>{state, {kSlots, 1, kKeyDim, kValueDim}},
         hyla::gdn::TileTensor<DType::kUInt32, 1>{slots, {kSequences}},
         hyla::gdn::TileTensor<DType::kFloat32, 2>{qkv, {kTokens, kChannels}},
         hyla::gdn::TileTensor<DType::kFloat32, 2>{decay, {kTokens, 1}},
         hyla::gdn::TileTensor<DType::kFloat32, 2>{beta, {kTokens, 1}},
         hyla::gdn::TileTensor<DType::kUInt32, 1>{offsets, {kSequences + 1}}, kChannels, 1, 1, 1,
         kKeyDim * kValueDim, kKeyDim * kValueDim, kValueDim, 1, kValueDim, 1);
    cudaMemcpy(pool.data(), state, pool.size() * sizeof(float), cudaMemcpyDeviceToHost);
    cudaMemcpy(out.data(), output, out.size() * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(state), cudaFree(output);
    if (cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      std::printf("%s: %s\n", name, cudaGetErrorString(error));
      return false;
    }
    const float after_one = pool[3 * kKeyDim * kValueDim], after_two = pool[kKeyDim * kValueDim];
    const float answers[] = {out[0], out[kValueDim], out[2 * kValueDim]};
    std::printf("%s: states %g and %g, answers %g, %g, %g\n", name, after_one, after_two,
                answers[0], answers[1], answers[2]);
    // The norm of a unit vector is off by half of its eps of 1e-6.
    const auto near = [](float got, double want) { return std::fabs(got - want) < 3e-6 * want; };
    const double scale = 1 / std::sqrt(8.0);
    return near(after_one, 6) && near(after_two, 6.5) && near(answers[0], 6 * scale) &&
           near(answers[1], 6 * scale) && near(answers[2], 6.5 * scale);
  }
};

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no CUDA device here\n");
    return 0;
  }
  const Problem problem;
  const bool kernel = problem.check("the kernel", [](auto... arguments) {
    hyla::gdn::gated_delta_recurrence_fwd_gpu<DType::kFloat32, DType::kFloat32, kKeyDim, kValueDim,
                                              kBlock><<<1, kBlock>>>(arguments...);
  });
  hyla::Context context;
  context.device = hyla::Device::cuda(0);
  context.stream = hyla::Stream::cuda(nullptr);  // the default stream, asked for by name
  const bool library = problem.check("the library", [&](auto... arguments) {
    hyla::gdn::gated_delta_recurrence_fwd_gpu<DType::kFloat32, DType::kFloat32, kKeyDim, kValueDim,
                                              kBlock>(arguments..., context);
  });
  return kernel && library ? 0 : 1;
}
