#include "gpu/documented_recurrence.h"

#include <hyla/recurrence_kernel.h>

namespace hyla::testing {
namespace {

template <DType dtype, int rank>
gdn::TileTensor<dtype, rank> tile(const TensorView& view) {
  gdn::TileTensor<dtype, rank> tensor;
  tensor.data = static_cast<typename gdn::TileTensor<dtype, rank>::Element*>(view.data);
  for (int d = 0; d < rank; ++d) tensor.shape[d] = view.shape[d];
  return tensor;
}

std::uint32_t stride(const TensorView& view, int d) {
  return static_cast<std::uint32_t>(view.strides[d]);
}

template <DType work, DType state, int KD, int VD, int Block>
bool launch(const gdn::RecurrenceParams& p, cudaStream_t stream) {
  if (p.qkv.dtype != work || p.state.dtype != state || p.key_dim != KD || p.value_dim != VD) {
    return false;
  }
  const std::int64_t batch = p.read_slots.shape[0];
  const std::int64_t key_dim = p.key_heads * KD, value_dim = p.value_heads * VD;
  const std::int64_t threads = batch * value_dim;
  const TensorView &gate = p.gate.value, &beta = p.beta.value;
  gdn::gated_delta_recurrence_fwd_gpu<work, state, KD, VD, Block>
      <<<static_cast<unsigned>((threads + Block - 1) / Block), Block, 0, stream>>>(
          threads, batch, p.qkv.shape[0], p.value_heads, p.key_heads, key_dim, value_dim,
          2 * key_dim + value_dim, tile<work, 2>(p.out), tile<state, 4>(p.state),
          tile<DType::kUInt32, 1>(p.read_slots), tile<work, 2>(p.qkv), tile<work, 2>(gate),
          tile<work, 2>(beta), tile<DType::kUInt32, 1>(p.cu_seqlens), stride(p.qkv, 0),
          stride(p.qkv, 1), stride(gate, 0), stride(gate, 1), stride(p.state, 0),
          stride(p.state, 1), stride(p.state, 2), stride(p.state, 3), stride(p.out, 0),
          stride(p.out, 1));
  return cudaGetLastError() == cudaSuccess;
}

}  // namespace

bool launch_documented_recurrence(const gdn::RecurrenceParams& p, void* handle) {
  const auto stream = static_cast<cudaStream_t>(handle);
  return launch<DType::kBFloat16, DType::kFloat32, 128, 128, 128>(p, stream) ||
         launch<DType::kFloat32, DType::kFloat32, 16, 24, 32>(p, stream) ||
         launch<DType::kFloat16, DType::kBFloat16, 64, 64, 96>(p, stream) ||
         launch<DType::kFloat32, DType::kFloat16, 32, 128, 64>(p, stream);
}

}  // namespace hyla::testing
