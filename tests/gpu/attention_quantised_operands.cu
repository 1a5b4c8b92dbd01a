// Operands of one byte a value in the kernels through the public headers: scales of a head or of
// some of its values, one of the user's that has addresses only, and none.
#include <gtest/gtest.h>
#include <hyla/kv_operand_base.h>
#include <hyla/kv_operands.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "gpu/operand_call.h"

namespace hyla::testing {

using namespace hyla::attention;

constexpr std::int64_t kHeads = 2, kRows = 420, kKeys = 210;

// Tokens from the last to the first, a head's scale behind its values, as a cache of records has
// them.
template <class Element, int Dim>
struct RecordOperand : KvOperandBase<RecordOperand<Element, Dim>, Element> {
  static constexpr bool quantization_enabled = true, cache_length_is_full = true;
  static constexpr int quantization_granularity = Dim;
  static constexpr std::int64_t kRecord = Dim + 16;  // bytes; rows stay aligned to 16

  const char* records = nullptr;  // [rows, heads]

  static std::string get_type_name() { return "RecordOperand"; }
  template <int tile_size>
  HYLA_HOST_DEVICE const Element* block_paged_ptr(std::uint32_t batch, std::uint32_t token,
                                                  std::uint32_t head,
                                                  std::uint32_t head_dim = 0) const {
    return reinterpret_cast<const Element*>(record(batch, token, head)) + head_dim;
  }
  HYLA_HOST_DEVICE const float* scales_block_paged_ptr(std::int64_t batch, std::int64_t token,
                                                       std::int64_t head, std::int64_t = 0) const {
    return reinterpret_cast<const float*>(record(batch, token, head) + Dim);
  }
  template <int width>
  HYLA_HOST_DEVICE ShortVector<float, width> load_scale(std::int64_t batch, std::int64_t token,
                                                        std::int64_t head, std::int64_t) const {
    ShortVector<float, width> result;
    for (int i = 0; i < width; ++i) result.values[i] = *scales_block_paged_ptr(batch, token, head);
    return result;
  }
  // Of a cache of records there is no matrix.
  template <int BMN>
  TmaTensorTile<float, TileShape<1, BMN>, TileShape<1, BMN>> create_scale_tma_tile(
      const Context&) const {
    return {};
  }
  HYLA_HOST_DEVICE std::uint32_t row_idx(std::uint32_t batch, std::uint32_t token) const {
    return static_cast<std::uint32_t>(kRows - 1 - batch * kKeys - token);
  }
  HYLA_HOST_DEVICE std::int64_t cache_length(std::int64_t) const { return kKeys; }
  HYLA_HOST_DEVICE std::uint32_t max_context_length() const { return kKeys; }

 private:
  HYLA_HOST_DEVICE const char* record(std::int64_t batch, std::int64_t token,
                                      std::int64_t head) const {
    return records + ((kRows - 1 - batch * kKeys - token) * kHeads + head) * kRecord;
  }
};

namespace {

class GpuQuantisedOperands : public OperandTest {
 protected:
  template <class Element, int Dim>
  std::vector<char> records(unsigned seed) {
    using Operand = RecordOperand<Element, Dim>;
    const std::size_t count = kRows * kHeads;
    constexpr float kSize = 60;  // of what is stored; scales bring it to about 1
    const auto values = normal<Element>(count * Dim, seed, kSize);
    const auto scales = uniform(count, seed + 1, 0.3f / kSize, 1.7f / kSize);
    std::vector<char> result(count * Operand::kRecord, 0x7f);
    for (std::size_t i = 0; i < count; ++i) {
      char* record = result.data() + i * Operand::kRecord;
      std::memcpy(record, values.data() + i * Dim, Dim);
      std::memcpy(record + Dim, scales.data() + i, sizeof(float));
    }
    return result;
  }
};

// One query a row, drafts and prompts.
TEST_F(GpuQuantisedOperands, OfTheUsers) {
  using Operand = RecordOperand<float8_e4m3, 64>;
  const std::vector<char> k = records<float8_e4m3, 64>(1), v = records<float8_e4m3, 64>(3);
  const auto make = [](const char* memory) {
    Operand operand;
    operand.records = memory;
    return operand;
  };
  const Operands<Operand, Operand> operands{make(k.data()), make(v.data()), make(copy(k)),
                                            make(copy(v))};
  const OperandShape shape;
  for (const std::int64_t window : {0, 70}) {
    compare_rows<bfloat16>({0, 90, 210}, shape, operands, window);
    compare_prefill<64, bfloat16>({0, 90, 210}, shape, operands, window);
    compare_prefill<64, float16>({0, 90, 210}, shape, operands, window);
    compare_decode<64, bfloat16>({0, 1, 2}, shape, operands, window);
    compare_decode<64, float16>({0, 4, 20}, shape, operands, window);
  }
}

// Scales of keys are a head's, those of values are of 32 values each; keys are wider than values.
// Pages that no row has and tokens behind a row's end have scales of NaN.
TEST_F(GpuQuantisedOperands, FineScales) {
  using K = PagedOperand<std::int8_t, 16, float, 128>;
  using V = PagedOperand<std::int8_t, 16, float, 32>;
  constexpr std::int64_t kPages = 24, kTokens = kPages * 16;
  const std::vector<std::int32_t> table = {3, 5, 7, 9, 11, 0, 2, 1 << 30, 1 << 30, 1 << 30};
  const std::vector<std::int32_t> cached = {40, 3}, offsets = {0, 30, 50};
  const auto scales = [&](std::int64_t groups, unsigned seed) {
    const auto drawn =
        uniform(static_cast<std::size_t>(kTokens * kHeads * groups), seed, 0.3f / 40, 1.7f / 40);
    std::vector<float> result(drawn.size(), NAN);
    for (std::size_t row = 0; row < 2; ++row) {
      const std::int64_t length = cached[row] + offsets[row + 1] - offsets[row];
      for (std::int64_t t = 0; t < length; ++t) {
        const std::int64_t page = table[row * 5 + static_cast<std::size_t>(t / 16)];
        const auto begin = static_cast<std::size_t>((page * 16 + t % 16) * kHeads * groups);
        for (std::size_t i = begin; i < begin + static_cast<std::size_t>(kHeads * groups); ++i) {
          result[i] = drawn[i];
        }
      }
    }
    return result;
  };
  const auto k = normal<std::int8_t>(kTokens * kHeads * 128, 5, 40);
  const auto v = normal<std::int8_t>(kTokens * kHeads * 64, 6, 40);
  const std::vector<float> k_scales = scales(1, 7), v_scales = scales(2, 8);
  const auto* pages = copy(table);
  const auto* lengths = copy(cached);
  const auto make = [&]<class Operand>(Operand, const std::vector<std::int8_t>& values,
                                       const std::vector<float>& factors, std::int64_t dim,
                                       std::int64_t groups, bool host) {
    return Operand::from(
        TensorView(host ? values.data() : copy(values), {kPages, 16, kHeads, dim}),
        TensorView(host ? table.data() : pages, {2, 5}),
        TensorView(host ? cached.data() : lengths, {2}),
        TensorView(host ? factors.data() : copy(factors), {kPages, 16, kHeads, groups}));
  };
  const Operands<K, V> operands{
      make(K(), k, k_scales, 128, 1, true), make(V(), v, v_scales, 64, 2, true),
      make(K(), k, k_scales, 128, 1, false), make(V(), v, v_scales, 64, 2, false)};
  const OperandShape shape{2, 3, 128, 64};
  compare_rows<bfloat16>(offsets, shape, operands);
  compare_prefill<128, bfloat16>(offsets, shape, operands);
  compare_prefill<128, float16>(offsets, shape, operands);
}

// Rows of nothing but a tensor; heads of two sizes, which no tile is as wide as.
TEST_F(GpuQuantisedOperands, Decode) {
  using K = DenseOperand<std::int8_t, float, 112>;
  using V = DenseOperand<std::int8_t, float, 80>;
  const auto k = normal<std::int8_t>(2 * 300 * kHeads * 112, 9, 40);
  const auto v = normal<std::int8_t>(2 * 300 * kHeads * 80, 10, 40);
  const std::vector<float> k_scales = uniform(2 * 300 * kHeads, 11, 0.3f / 40, 1.7f / 40);
  const std::vector<float> v_scales = uniform(2 * 300 * kHeads, 12, 0.3f / 40, 1.7f / 40);
  const auto make = [&]<class Operand>(Operand, const std::int8_t* values, const float* scales,
                                       std::int64_t dim) {
    return Operand::from(TensorView(values, {2, 300, kHeads, dim}), {},
                         TensorView(scales, {2, 300, kHeads, 1}));
  };
  const Operands<K, V> operands{
      make(K(), k.data(), k_scales.data(), 112), make(V(), v.data(), v_scales.data(), 80),
      make(K(), copy(k), copy(k_scales), 112), make(V(), copy(v), copy(v_scales), 80)};
  for (const std::int64_t group : {1, 8, 20}) {
    const OperandShape shape{2, group, 112, 80};
    compare_decode<128, bfloat16>({0, 1, 2}, shape, operands);
    compare_decode<128, float16>({0, 5, 5}, shape, operands);
  }
}

// Scales that decode does not take are refused by name.
TEST_F(GpuQuantisedOperands, TooManyScalesForDecode) {
  using Operand = DenseOperand<float8_e4m3, float, 32>;
  attention::Queries queries;
  queries.q.dtype = DType::kBFloat16;
  queries.query_heads = queries.kv_heads = 1;
  const auto check = [&](std::int64_t dim, std::int64_t value_dim) {
    queries.head_dim = dim;
    queries.value_dim = value_dim;
    attention::decode::check_operands<64, Operand, Operand>(queries, Operand{});
  };
  EXPECT_NO_THROW(check(32, 32));
  EXPECT_THROW(check(64, 32), Unsupported);
  EXPECT_THROW(check(32, 64), Unsupported);
}

}  // namespace
}  // namespace hyla::testing
