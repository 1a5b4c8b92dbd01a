// A KV cache that hyla knows nothing about, in hyla's prefill and decode kernels on a GPU: the last
// kCapacity tokens of each sequence in a ring buffer, in bfloat16 or in float8_e4m3 with a scale
// for each token and head. The same operand type, on the host, gives the reference. Compiled by
// nvcc and linked with hyla::hyla and hyla::kernels.
#include <cuda_runtime.h>
#include <hyla/attention_decode.h>
#include <hyla/attention_prefill.h>
#include <hyla/attention_reference.h>
#include <hyla/kv_operand_base.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace {

using hyla::bfloat16;
using hyla::TensorView;

constexpr std::int64_t kRows = 2, kCapacity = 160, kHeads = 2, kGroup = 4, kDim = 64;
constexpr std::int64_t kQueries = 96, kLongest = 400;

}  // namespace

// values [kRows, kCapacity, kHeads, kDim]: token t of row b lies in place t % kCapacity.
template <class Element>
struct RingOperand : hyla::attention::KvOperandBase<RingOperand<Element>, Element> {
  const Element* values = nullptr;
  const float* scales = nullptr;          // [kRows, kCapacity, kHeads] where they are enabled
  const std::int64_t* lengths = nullptr;  // [kRows] tokens seen so far, those of this step included

  static constexpr bool cache_length_is_full = true;
  static constexpr bool quantization_enabled = sizeof(Element) == 1;
  static constexpr int quantization_granularity = quantization_enabled ? kDim : 0;
  static std::string get_type_name() {
    return quantization_enabled ? "RingOperand with scales" : "RingOperand";
  }

  template <int tile_size>
  HYLA_HOST_DEVICE const Element* block_paged_ptr(std::uint32_t batch, std::uint32_t token,
                                                  std::uint32_t head,
                                                  std::uint32_t head_dim = 0) const {
    return values + (std::int64_t{row_idx(batch, token)} * kHeads + head) * kDim + head_dim;
  }
  HYLA_HOST_DEVICE std::uint32_t row_idx(std::uint32_t batch, std::uint32_t token) const {
    return static_cast<std::uint32_t>(batch * kCapacity + token % kCapacity);
  }
  HYLA_HOST_DEVICE std::int64_t cache_length(std::int64_t batch) const { return lengths[batch]; }
  HYLA_HOST_DEVICE std::uint32_t max_context_length() const {
    return static_cast<std::uint32_t>(kLongest);
  }
  HYLA_HOST_DEVICE const float* scales_block_paged_ptr(std::int64_t batch, std::int64_t token,
                                                       std::int64_t head,
                                                       std::int64_t /*head_dim*/ = 0) const {
    if constexpr (!quantization_enabled) return nullptr;
    return scales + (batch * kCapacity + token % kCapacity) * kHeads + head;
  }
  // What the reference and the kernel that takes everything ask for.
  template <int width>
  HYLA_HOST_DEVICE hyla::attention::ShortVector<float, width> load_scale(
      std::int64_t batch, std::int64_t token, std::int64_t head, std::int64_t /*head_dim*/) const {
    hyla::attention::ShortVector<float, width> result;
    for (int i = 0; i < width; ++i) {
      result.values[i] = quantization_enabled ? *scales_block_paged_ptr(batch, token, head) : 1.0f;
    }
    return result;
  }
  // Nobody here loads scales by the copy engine.
  template <int BMN>
  hyla::attention::TmaTensorTile<float, hyla::attention::TileShape<1, BMN>,
                                 hyla::attention::TileShape<1, BMN>>
  create_scale_tma_tile(const hyla::Context&) const {
    return {};
  }
};

namespace {

void check(cudaError_t e) {
  if (e == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(e));
  std::exit(1);
}

// Memory that both sides see; an example can afford it.
template <class T>
T* managed(std::size_t count) {
  void* memory = nullptr;
  check(cudaMallocManaged(&memory, count * sizeof(T)));
  return static_cast<T*>(memory);
}

template <class Element>
RingOperand<Element> random_ring(const std::int64_t* lengths, unsigned seed) {
  constexpr std::size_t kTokens = kRows * kCapacity * kHeads;
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> factor(0.5f, 1.5f);
  auto* values = managed<Element>(kTokens * kDim);
  auto* scales = managed<float>(kTokens);
  for (std::size_t i = 0; i < kTokens * kDim; ++i) values[i] = Element(normal(rng));
  for (std::size_t i = 0; i < kTokens; ++i) scales[i] = factor(rng);
  RingOperand<Element> ring;
  ring.values = values;
  ring.scales = scales;
  ring.lengths = lengths;
  return ring;
}

template <class Element>
bool show(const hyla::Context& context, cudaStream_t stream) {
  const std::size_t query_count = kRows * kQueries * kHeads * kGroup * kDim;
  auto* q = managed<bfloat16>(query_count);
  auto* out = managed<bfloat16>(query_count);
  auto* lengths = managed<std::int64_t>(kRows);
  auto* offsets = managed<std::int32_t>(kRows + 1);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < query_count; ++i) q[i] = bfloat16(normal(rng));
  lengths[0] = 130;       // the ring is not full yet
  lengths[1] = kLongest;  // it has gone round twice
  const RingOperand<Element> keys = random_ring<Element>(lengths, 2);
  const RingOperand<Element> values = random_ring<Element>(lengths, 3);

  // Compares a kernel for `queries` queries a row with the reference.
  const auto compare = [&](const char* name, std::int64_t queries, const auto& kernel) {
    for (std::int32_t i = 0; i <= kRows; ++i) offsets[i] = i * static_cast<std::int32_t>(queries);
    const auto params = [&](bfloat16* to, hyla::Device where) {
      hyla::attention::RunParams p;
      p.q = TensorView(q, {kRows * queries, kHeads * kGroup, kDim}, where);
      p.out = TensorView(to, {kRows * queries, kHeads * kGroup, kDim}, where);
      p.cu_seqlens = TensorView(offsets, {kRows + 1}, where);
      p.window = kCapacity - queries + 1;  // every query still finds its keys in the ring
      return p;
    };
    std::vector<bfloat16> expected(query_count);
    hyla::attention::reference::run(params(expected.data(), hyla::Device::cpu()), keys, values,
                                    kHeads);
    kernel(params(out, context.device));
    check(cudaStreamSynchronize(stream));
    double worst = 0;
    const auto count = static_cast<std::size_t>(kRows * queries * kHeads * kGroup * kDim);
    for (std::size_t i = 0; i < count; ++i) {
      worst = std::fmax(worst, std::fabs(static_cast<double>(static_cast<float>(out[i])) -
                                         static_cast<double>(static_cast<float>(expected[i]))));
    }
    std::printf("%s, %s: largest difference to the reference %g\n",
                RingOperand<Element>::get_type_name().c_str(), name, worst);
    // Probabilities and outputs are rounded to 8 bits, outputs of this size lie below 2.
    return worst <= 3.0 / 256;
  };
  const auto workspace = [&](std::size_t bytes) {
    return hyla::Workspace{managed<std::byte>(bytes), bytes, context.device};
  };

  const bool prefill = compare("prefill", kQueries, [&](const hyla::attention::RunParams& p) {
    hyla::attention::prefill<kDim>(p, keys, values, kHeads,
                                   workspace(hyla::attention::prefill_workspace_bytes(kRows)),
                                   context);
  });
  const bool decode = compare("decode", 1, [&](const hyla::attention::RunParams& p) {
    using hyla::attention::cuda::decode_workspace_bytes;
    hyla::attention::cuda::decode<kDim>(p, keys, values, kHeads,
                                        workspace(decode_workspace_bytes<kDim>(p, kHeads, context)),
                                        context);
  });
  return prefill && decode;
}

}  // namespace

int main() {
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
    std::printf("no Hopper GPU here: nothing to show\n");
    return 0;
  }
  hyla::Context context;
  context.device = hyla::Device::cuda(0);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  context.stream = hyla::Stream::cuda(stream);
  const bool plain = show<bfloat16>(context, stream);
  const bool scaled = show<hyla::float8_e4m3>(context, stream);
  return plain && scaled ? 0 : 1;
}
