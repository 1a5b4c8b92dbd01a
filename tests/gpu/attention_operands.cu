// Operands in the prefill kernel through the public header: one with tensor maps, loaded by the
// copy engine, and one that only has addresses.
#include <gtest/gtest.h>
#include <hyla/attention_prefill.h>
#include <hyla/attention_reference.h>
#include <hyla/kv_operand_base.h>
#include <hyla/kv_operands.h>

#include <cmath>
#include <random>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {

using namespace hyla::attention;

constexpr std::int64_t kHeads = 2, kGroup = 3, kDim = 64, kPages = 24;

// Tokens from the last to the first, one row of memory each.
struct BackwardOperand : KvOperandBase<BackwardOperand, bfloat16> {
  const bfloat16* values = nullptr;  // [rows, kHeads, kDim]
  std::int64_t rows = 0, keys = 0;

  static constexpr bool cache_length_is_full = true;
  static std::string get_type_name() { return "BackwardOperand"; }
  template <int tile_size>
  HYLA_HOST_DEVICE const bfloat16* block_paged_ptr(std::uint32_t batch, std::uint32_t token,
                                                   std::uint32_t head,
                                                   std::uint32_t head_dim = 0) const {
    return values + (std::int64_t{row_idx(batch, token)} * kHeads + head) * kDim + head_dim;
  }
  HYLA_HOST_DEVICE std::uint32_t row_idx(std::uint32_t batch, std::uint32_t token) const {
    return static_cast<std::uint32_t>(rows - 1 - batch * keys - token);
  }
  HYLA_HOST_DEVICE std::int64_t cache_length(std::int64_t) const { return keys; }
  HYLA_HOST_DEVICE std::uint32_t max_context_length() const {
    return static_cast<std::uint32_t>(keys);
  }
};

namespace {

class GpuOperands : public Gpu {
 protected:
  void TearDown() override {
    for (void* memory : owned_) cuda::release(memory);
  }

  template <class T>
  T* copy(const std::vector<T>& values) {
    void* memory = cuda::allocate(values.size() * sizeof(T));
    owned_.push_back(memory);
    cuda::upload(memory, values.data(), values.size() * sizeof(T));
    return static_cast<T*>(memory);
  }

  static std::vector<bfloat16> normal(std::size_t count, unsigned seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> draw;
    std::vector<bfloat16> values(count);
    for (bfloat16& x : values) x = bfloat16(draw(rng));
    return values;
  }

  // The same operands on the host and on the device.
  template <class K>
  void compare(const std::vector<std::int32_t>& offsets, const K& host_k, const K& host_v,
               const K& k, const K& v, std::int64_t window) {
    const auto rows = static_cast<std::int64_t>(offsets.size()) - 1;
    const std::int64_t total = offsets.back();
    const auto count = static_cast<std::size_t>(total * kHeads * kGroup * kDim);
    const std::vector<bfloat16> q = normal(count, 1);
    std::vector<float> wide(q.begin(), q.end()), exact(count);
    std::vector<bfloat16> got(count, bfloat16(NAN));
    RunParams p;
    p.q = TensorView(wide.data(), {total, kHeads * kGroup, kDim});
    p.out = TensorView(exact.data(), {total, kHeads * kGroup, kDim});
    p.cu_seqlens = TensorView(offsets.data(), {rows + 1});
    p.window = window;
    reference::run(p, host_k, host_v, kHeads);

    Context context;
    context.device = Device::cuda(0);
    context.stream = cuda::stream();
    bfloat16* out = copy(got);
    p.q = TensorView(copy(q), {total, kHeads * kGroup, kDim}, context.device);
    p.out = TensorView(out, {total, kHeads * kGroup, kDim}, context.device);
    p.cu_seqlens = TensorView(copy(offsets), {rows + 1}, context.device);
    const std::size_t bytes = prefill_workspace_bytes(rows);
    const Workspace workspace{copy(std::vector<char>(bytes, 0x55)), bytes, context.device};
    prefill<kDim>(p, k, v, kHeads, workspace, context);
    cuda::synchronize();
    cuda::download(got.data(), out, count * sizeof(bfloat16));
    // Probabilities and outputs are rounded to bfloat16: the error model of compare.h with one
    // roundoff of the operands as its naive error.
    for (std::size_t i = 0; i < count; i += kDim) {
      double largest = 0;
      for (std::size_t d = 0; d < kDim; ++d) {
        largest = std::fmax(largest, std::fabs(static_cast<double>(exact[i + d])));
      }
      for (std::size_t d = 0; d < kDim; ++d) {
        const double bound = kFactor * std::ldexp(largest, -8) +
                             half_ulp(DType::kBFloat16, static_cast<double>(exact[i + d]));
        ASSERT_NEAR(static_cast<float>(got[i + d]), exact[i + d], bound) << "value " << i + d;
      }
    }
  }

  std::vector<void*> owned_;
};

TEST_F(GpuOperands, WithTensorMaps) {
  using Operand = PagedOperand<bfloat16, 16>;
  const std::size_t count = kPages * 16 * kHeads * kDim;
  const std::vector<bfloat16> k = normal(count, 2), v = normal(count, 3);
  const std::vector<std::int32_t> offsets = {0, 100, 100, 130}, cached = {61, 9, 0};
  std::vector<std::int32_t> table(3 * 11, 1 << 30);
  for (int c = 0; c < 11; ++c) table[static_cast<std::size_t>(c)] = 23 - 2 * c;
  table[11] = 0;
  table[22] = 2;
  table[23] = 4;
  const auto make = [&](const bfloat16* values, const std::int32_t* pages,
                        const std::int32_t* lengths) {
    return Operand::from(TensorView(values, {kPages, 16, kHeads, kDim}), TensorView(pages, {3, 11}),
                         TensorView(lengths, {3}));
  };
  const auto* pages = copy(table);
  const auto* lengths = copy(cached);
  compare(offsets, make(k.data(), table.data(), cached.data()),
          make(v.data(), table.data(), cached.data()), make(copy(k), pages, lengths),
          make(copy(v), pages, lengths), 0);
}

TEST_F(GpuOperands, WithAddressesOnly) {
  const std::int64_t rows = 420, keys = 210;
  const auto count = static_cast<std::size_t>(rows * kHeads * kDim);
  const std::vector<bfloat16> k = normal(count, 4), v = normal(count, 5);
  const auto make = [&](const bfloat16* values) {
    BackwardOperand operand;
    operand.values = values;
    operand.rows = rows;
    operand.keys = keys;
    return operand;
  };
  for (std::int64_t window : {0, 70}) {
    compare({0, 90, 210}, make(k.data()), make(v.data()), make(copy(k)), make(copy(v)), window);
  }
}

}  // namespace
}  // namespace hyla::testing
