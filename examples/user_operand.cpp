// A KV cache that hyla knows nothing about, in hyla's attention: the last kCapacity tokens of each
// sequence in a ring buffer. The operand is a small struct; KvOperandBase fills in what such a
// simple cache does not care about.
#include <hyla/attention_reference.h>
#include <hyla/kv_operand_base.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kCapacity = 8, kHeads = 2, kDim = 16;

// values [N, kCapacity, kHeads, kDim]: token t of sequence b lies in place t % kCapacity.
struct RingOperand : hyla::attention::KvOperandBase<RingOperand, float> {
  const float* values = nullptr;
  const std::int64_t* lengths = nullptr;  // [N] tokens seen so far, those of this step included
  std::int64_t longest = 0;

  static constexpr bool cache_length_is_full = true;
  static std::string get_type_name() { return "RingOperand"; }

  template <int tile_size>
  HYLA_HOST_DEVICE const float* block_paged_ptr(std::uint32_t batch, std::uint32_t token,
                                                std::uint32_t head,
                                                std::uint32_t head_dim = 0) const {
    return values + (std::int64_t{row_idx(batch, token)} * kHeads + head) * kDim + head_dim;
  }
  HYLA_HOST_DEVICE std::uint32_t row_idx(std::uint32_t batch, std::uint32_t token) const {
    return static_cast<std::uint32_t>(batch * kCapacity + token % kCapacity);
  }
  HYLA_HOST_DEVICE std::int64_t cache_length(std::int64_t batch) const { return lengths[batch]; }
  HYLA_HOST_DEVICE std::uint32_t max_context_length() const {
    return static_cast<std::uint32_t>(longest);
  }
};
static_assert(hyla::attention::AddressableOperand<RingOperand>);

}  // namespace

int main() {
  const std::vector<std::int64_t> lengths = {5, 21};  // the second sequence has gone round twice
  const std::vector<std::int32_t> offsets = {0, 1, 2};
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> q(2 * 2 * kHeads * kDim), k_ring(2 * kCapacity * kHeads * kDim),
      v_ring(k_ring);
  // The whole history, as a dense cache would keep it.
  std::vector<float> k_all(2 * 21 * kHeads * kDim), v_all(k_all);
  for (float& x : q) x = normal(rng);
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(b)]; ++t) {
      for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
        const auto all = static_cast<std::size_t>((b * 21 + t) * kHeads * kDim + i);
        const auto ring =
            static_cast<std::size_t>((b * kCapacity + t % kCapacity) * kHeads * kDim + i);
        k_ring[ring] = k_all[all] = normal(rng);
        v_ring[ring] = v_all[all] = normal(rng);
      }
    }
  }

  using hyla::TensorView;
  std::vector<float> from_ring(q.size()), from_dense(q.size());
  hyla::attention::RunParams params;
  params.q = TensorView(q.data(), {2, 2 * kHeads, kDim});
  params.out = TensorView(from_ring.data(), {2, 2 * kHeads, kDim});
  params.cu_seqlens = TensorView(offsets.data(), {3});
  params.window = kCapacity;  // older tokens are gone

  RingOperand keys, values;
  keys.values = k_ring.data();
  values.values = v_ring.data();
  keys.lengths = values.lengths = lengths.data();
  keys.longest = values.longest = 21;
  hyla::attention::reference::run(params, keys, values, kHeads);

  params.out = TensorView(from_dense.data(), {2, 2 * kHeads, kDim});
  params.cache = hyla::attention::KvCache::dense(TensorView(k_all.data(), {2, 21, kHeads, kDim}),
                                                 TensorView(v_all.data(), {2, 21, kHeads, kDim}));
  params.kv_lengths = TensorView(lengths.data(), {2});
  hyla::attention::run(params);

  // The ring went through float64, the dense cache through whatever is fastest here: float32 sums
  // over at most 21 values of size 1.
  for (std::size_t i = 0; i < from_ring.size(); ++i) {
    if (!(std::abs(from_ring[i] - from_dense[i]) < 1e-5f)) {
      std::printf("value %zu: %g from the ring, %g from the dense cache\n", i,
                  static_cast<double>(from_ring[i]), static_cast<double>(from_dense[i]));
      return 1;
    }
  }
  std::printf("%s: %zu values agree with those of a dense cache\n",
              RingOperand::get_type_name().c_str(), from_ring.size());
  return 0;
}
