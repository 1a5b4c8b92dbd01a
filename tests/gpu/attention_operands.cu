// Operands in the kernels through the public headers: one with tensor maps, loaded by the copy
// engine, one that only has addresses, values of another width than keys, and lists of keys.
#include <gtest/gtest.h>
#include <hyla/kv_operand_base.h>
#include <hyla/kv_operands.h>

#include <random>
#include <vector>

#include "gpu/operand_call.h"

namespace hyla::testing {

using namespace hyla::attention;

constexpr std::int64_t kHeads = 2, kDim = 64, kPages = 24;

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

class GpuOperands : public OperandTest {
 protected:
  static std::vector<bfloat16> numbers(std::size_t count, unsigned seed) {
    return normal<bfloat16>(count, seed);
  }

  // In every kernel.
  template <class K>
  void compare_all(const std::vector<std::int32_t>& offsets, const Operands<K, K>& operands,
                   std::int64_t window = 0) {
    compare_rows<bfloat16>(offsets, {}, operands, window);
    compare_prefill<kDim, bfloat16>(offsets, {}, operands, window);
    compare_decode<kDim, bfloat16>(offsets, {}, operands, window);
  }
};

TEST_F(GpuOperands, WithTensorMaps) {
  using Operand = PagedOperand<bfloat16, 16>;
  const std::size_t count = kPages * 16 * kHeads * kDim;
  const std::vector<bfloat16> k = numbers(count, 2), v = numbers(count, 3);
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
  compare_all<Operand>(offsets, {make(k.data(), table.data(), cached.data()),
                                 make(v.data(), table.data(), cached.data()),
                                 make(copy(k), pages, lengths), make(copy(v), pages, lengths)});
}

// Tiles are as wide as keys, which are wider than values.
TEST_F(GpuOperands, ValuesOfAnotherWidth) {
  using Operand = PagedOperand<bfloat16, 16>;
  const std::vector<std::int32_t> table = {3, 5, 7, 9, 11, 0, 2, 1 << 30, 1 << 30, 1 << 30};
  const std::vector<std::int32_t> cached = {40, 3};
  const auto* pages = copy(table);
  const auto* lengths = copy(cached);
  const auto make = [&](const std::vector<bfloat16>& values, std::int64_t dim, bool host) {
    return Operand::from(TensorView(host ? values.data() : copy(values), {kPages, 16, kHeads, dim}),
                         TensorView(host ? table.data() : pages, {2, 5}),
                         TensorView(host ? cached.data() : lengths, {2}));
  };
  const std::vector<bfloat16> k = numbers(kPages * 16 * kHeads * 128, 15),
                              v = numbers(kPages * 16 * kHeads * 64, 16);
  const Operands<Operand, Operand> operands{make(k, 128, true), make(v, 64, true),
                                            make(k, 128, false), make(v, 64, false)};
  for (const OperandShape shape : {OperandShape{2, 3, 128, 64}, OperandShape{2, 8, 128, 64}}) {
    compare_rows<bfloat16>({0, 30, 50}, shape, operands);
    compare_prefill<128, bfloat16>({0, 30, 50}, shape, operands);
    compare_decode<128, bfloat16>({0, 30, 50}, shape, operands);
    compare_decode<128, bfloat16>({0, 1, 2}, shape, operands);
  }
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
  const std::vector<bfloat16> k = numbers(kBackwardCount, 4), v = numbers(kBackwardCount, 5);
  for (std::int64_t window : {0, 70}) {
    compare_all<BackwardOperand>(
        {0, 90, 210},
        {backward(k.data()), backward(v.data()), backward(copy(k)), backward(copy(v))}, window);
  }
}

// A token a row is decode.
TEST_F(GpuOperands, Decode) {
  const std::vector<bfloat16> k = numbers(kBackwardCount, 6), v = numbers(kBackwardCount, 7);
  compare_all<BackwardOperand>(
      {0, 1, 2}, {backward(k.data()), backward(v.data()), backward(copy(k)), backward(copy(v))});
}

TEST_F(GpuOperands, ListsOfKeys) {
  using Operand = PagedOperand<bfloat16, 16>;
  const std::size_t count = kPages * 16 * kHeads * kDim;
  const std::vector<bfloat16> k = numbers(count, 12), v = numbers(count, 13);
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
  const Operand host_k = make(k.data(), table.data(), cached.data()),
                host_v = make(v.data(), table.data(), cached.data()),
                device_k = make(copy(k), pages, lengths), device_v = make(copy(v), pages, lengths);
  compare<bfloat16>(
      offsets, {}, 0,
      [&](const RunParams& p) {
        attention::reference::run_sparse(p, host_k, host_v, kHeads,
                                         TensorView(lists.data(), {5, kList}));
      },
      [&](const RunParams& p, const Context& context) {
        attention::cuda::run_sparse(p, device_k, device_v, kHeads,
                                    TensorView(copy(lists), {5, kList}, context.device), context);
      });
}

}  // namespace
}  // namespace hyla::testing
