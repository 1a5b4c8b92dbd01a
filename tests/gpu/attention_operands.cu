// Operands in the kernels through the public headers: one with tensor maps, loaded by the copy
// engine, one that only has addresses, one with scales, and lists of keys.
#include <gtest/gtest.h>
#include <hyla/attention_cuda.h>
#include <hyla/attention_decode.h>
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
    for (void* memory : owned_) testing::cuda::release(memory);
  }

  template <class T>
  T* copy(const std::vector<T>& values) {
    void* memory = testing::cuda::allocate(values.size() * sizeof(T));
    owned_.push_back(memory);
    testing::cuda::upload(memory, values.data(), values.size() * sizeof(T));
    return static_cast<T*>(memory);
  }

  static std::vector<bfloat16> normal(std::size_t count, unsigned seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> draw;
    std::vector<bfloat16> values(count);
    for (bfloat16& x : values) x = bfloat16(draw(rng));
    return values;
  }

  // The same operands on the host and on the device. reference, call: by params, operands, number
  // of heads.
  template <class K, class Reference, class Call>
  void compare(const std::vector<std::int32_t>& offsets, const K& host_k, const K& host_v,
               const K& k, const K& v, std::int64_t window, const Reference& reference,
               const Call& call) {
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
    reference(p, host_k, host_v);

    Context context;
    context.device = Device::cuda(0);
    context.stream = testing::cuda::stream();
    bfloat16* out = copy(got);
    p.q = TensorView(copy(q), {total, kHeads * kGroup, kDim}, context.device);
    p.out = TensorView(out, {total, kHeads * kGroup, kDim}, context.device);
    p.cu_seqlens = TensorView(copy(offsets), {rows + 1}, context.device);
    call(p, k, v, context);
    testing::cuda::synchronize();
    testing::cuda::download(got.data(), out, count * sizeof(bfloat16));
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

  // In every kernel.
  template <class K>
  void compare(const std::vector<std::int32_t>& offsets, const K& host_k, const K& host_v,
               const K& k, const K& v, std::int64_t window) {
    const auto reference = [](const RunParams& p, const K& keys, const K& values) {
      attention::reference::run(p, keys, values, kHeads);
    };
    compare(offsets, host_k, host_v, k, v, window, reference,
            [&](const RunParams& p, const K& keys, const K& values, const Context& context) {
              attention::cuda::run(p, keys, values, kHeads, context);
            });
    if constexpr (!quantization_enabled<K>()) {
      compare(
          offsets, host_k, host_v, k, v, window, reference,
          [&](const RunParams& p, const K& keys, const K& values, const Context& context) {
            const auto rows = static_cast<std::int64_t>(offsets.size()) - 1;
            const std::size_t bytes = prefill_workspace_bytes(rows);
            const Workspace workspace{copy(std::vector<char>(bytes, 0x55)), bytes, context.device};
            prefill<kDim>(p, keys, values, kHeads, workspace, context);
          });
      compare(
          offsets, host_k, host_v, k, v, window, reference,
          [&](const RunParams& p, const K& keys, const K& values, const Context& context) {
            const std::size_t bytes =
                attention::cuda::decode_workspace_bytes<kDim>(p, kHeads, context);
            const Workspace workspace{copy(std::vector<char>(bytes, 0x55)), bytes, context.device};
            attention::cuda::decode<kDim>(p, keys, values, kHeads, workspace, context);
          });
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

constexpr std::int64_t kBackwardRows = 420, kBackwardKeys = 210;
constexpr auto kBackwardCount = static_cast<std::size_t>(kBackwardRows * kHeads * kDim);

BackwardOperand backward(const bfloat16* values) {
  BackwardOperand operand;
  operand.values = values;
  operand.rows = kBackwardRows;
  operand.keys = kBackwardKeys;
  return operand;
}

TEST_F(GpuOperands, WithAddressesOnly) {
  const std::vector<bfloat16> k = normal(kBackwardCount, 4), v = normal(kBackwardCount, 5);
  for (std::int64_t window : {0, 70}) {
    compare({0, 90, 210}, backward(k.data()), backward(v.data()), backward(copy(k)),
            backward(copy(v)), window);
  }
}

// A token a row is decode.
TEST_F(GpuOperands, Decode) {
  const std::vector<bfloat16> k = normal(kBackwardCount, 6), v = normal(kBackwardCount, 7);
  compare({0, 1, 2}, backward(k.data()), backward(v.data()), backward(copy(k)), backward(copy(v)),
          0);
}

TEST_F(GpuOperands, WithScales) {
  using Operand = PagedOperand<float8_e4m3, 16, float, 32>;
  const std::size_t count = kPages * 16 * kHeads * kDim;
  const auto stored = [&](unsigned seed) {
    std::vector<float8_e4m3> values(count);
    const std::vector<bfloat16> from = normal(count, seed);
    for (std::size_t i = 0; i < count; ++i) values[i] = float8_e4m3(static_cast<float>(from[i]));
    return values;
  };
  const auto scales = [&](unsigned seed) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> draw(0.25f, 1.5f);
    std::vector<float> values(count / 32);
    for (float& x : values) x = draw(rng);
    return values;
  };
  const std::vector<float8_e4m3> k = stored(8), v = stored(9);
  const std::vector<float> k_scales = scales(10), v_scales = scales(11);
  const std::vector<std::int32_t> table = {3, 5, 7, 9, 11, 0, 2, 1 << 30, 1 << 30, 1 << 30};
  const std::vector<std::int32_t> cached = {40, 3};
  const auto make = [&](const float8_e4m3* values, const float* factors, const std::int32_t* pages,
                        const std::int32_t* lengths) {
    return Operand::from(TensorView(values, {kPages, 16, kHeads, kDim}), TensorView(pages, {2, 5}),
                         TensorView(lengths, {2}),
                         TensorView(factors, {kPages, 16, kHeads, kDim / 32}));
  };
  const auto* pages = copy(table);
  const auto* lengths = copy(cached);
  compare({0, 30, 50}, make(k.data(), k_scales.data(), table.data(), cached.data()),
          make(v.data(), v_scales.data(), table.data(), cached.data()),
          make(copy(k), copy(k_scales), pages, lengths),
          make(copy(v), copy(v_scales), pages, lengths), 0);
}

TEST_F(GpuOperands, ListsOfKeys) {
  using Operand = PagedOperand<bfloat16, 16>;
  const std::size_t count = kPages * 16 * kHeads * kDim;
  const std::vector<bfloat16> k = normal(count, 12), v = normal(count, 13);
  const std::vector<std::int32_t> table = {0, 1}, cached = {0, 0}, offsets = {0, 3, 5};
  constexpr std::int64_t kList = 70;
  std::vector<std::int32_t> lists(5 * kList);
  std::mt19937 rng(14);
  for (std::int32_t& x : lists) {
    x = rng() % 4 == 0 ? -1 : static_cast<std::int32_t>(rng() % (kPages * 16));
  }
  for (std::size_t i = 2 * kList; i < 3 * kList; ++i) lists[i] = -1;  // sees nothing
  const auto make = [&](const bfloat16* values, const std::int32_t* pages,
                        const std::int32_t* lengths) {
    return Operand::from(TensorView(values, {kPages, 16, kHeads, kDim}), TensorView(pages, {2, 1}),
                         TensorView(lengths, {2}));
  };
  const auto* pages = copy(table);
  const auto* lengths = copy(cached);
  compare(
      offsets, make(k.data(), table.data(), cached.data()),
      make(v.data(), table.data(), cached.data()), make(copy(k), pages, lengths),
      make(copy(v), pages, lengths), 0,
      [&](const RunParams& p, const Operand& keys, const Operand& values) {
        attention::reference::run_sparse(p, keys, values, kHeads,
                                         TensorView(lists.data(), {5, kList}));
      },
      [&](const RunParams& p, const Operand& keys, const Operand& values, const Context& context) {
        attention::cuda::run_sparse(p, keys, values, kHeads,
                                    TensorView(copy(lists), {5, kList}, context.device), context);
      });
}

}  // namespace
}  // namespace hyla::testing
