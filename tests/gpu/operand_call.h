// A call over operands, the same on the host and on the device, in the reference and in a kernel.
#pragma once

#include <hyla/attention_cuda.h>
#include <hyla/attention_decode.h>
#include <hyla/attention_prefill.h>
#include <hyla/attention_reference.h>

#include <cmath>
#include <random>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {

// Queries of a few tokens in rows, KV heads of a group of queries each.
struct OperandShape {
  std::int64_t heads = 2, group = 3, dim = 64, value_dim = 64;
};

class OperandTest : public Gpu {
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

  Workspace workspace(std::size_t bytes, const Context& context) {
    return {copy(std::vector<char>(bytes, 0x55)), bytes, context.device};
  }

  template <class T>
  static std::vector<T> normal(std::size_t count, unsigned seed, float size = 1) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> draw;
    std::vector<T> values(count);
    for (T& x : values) {
      if constexpr (std::is_same_v<T, std::int8_t>) {
        x = static_cast<T>(std::lround(std::fmin(std::fmax(size * draw(rng), -127.0f), 127.0f)));
      } else {
        x = T(size * draw(rng));
      }
    }
    return values;
  }

  // Elsewhere than in (low, high) nothing.
  static std::vector<float> uniform(std::size_t count, unsigned seed, float low, float high) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> draw(low, high);
    std::vector<float> values(count);
    for (float& x : values) x = draw(rng);
    return values;
  }

  // reference(params), on the host, and call(params, context), on the device. Probabilities and
  // outputs are rounded to `Query`: the error model of compare.h with one roundoff of the operands
  // as its naive error.
  template <class Query, class Reference, class Call>
  void compare(const std::vector<std::int32_t>& offsets, const OperandShape& shape,
               std::int64_t window, const Reference& reference, const Call& call) {
    const auto rows = static_cast<std::int64_t>(offsets.size()) - 1;
    const std::int64_t total = offsets.back(), heads = shape.heads * shape.group;
    const std::vector<Query> q =
        normal<Query>(static_cast<std::size_t>(total * heads * shape.dim), 1);
    const auto count = static_cast<std::size_t>(total * heads * shape.value_dim);
    std::vector<float> wide(q.begin(), q.end()), exact(count);
    std::vector<Query> got(count, Query(NAN));
    RunParams p;
    p.q = TensorView(wide.data(), {total, heads, shape.dim});
    p.out = TensorView(exact.data(), {total, heads, shape.value_dim});
    p.cu_seqlens = TensorView(offsets.data(), {rows + 1});
    p.window = window;
    reference(p);

    Context context;
    context.device = Device::cuda(0);
    context.stream = testing::cuda::stream();
    Query* out = copy(got);
    p.q = TensorView(copy(q), {total, heads, shape.dim}, context.device);
    p.out = TensorView(out, {total, heads, shape.value_dim}, context.device);
    p.cu_seqlens = TensorView(copy(offsets), {rows + 1}, context.device);
    call(p, context);
    testing::cuda::synchronize();
    testing::cuda::download(got.data(), out, count * sizeof(Query));
    const int roundoff = std::is_same_v<Query, bfloat16> ? -8 : -11;
    const auto width = static_cast<std::size_t>(shape.value_dim);
    for (std::size_t i = 0; i < count; i += width) {
      double largest = 0;
      for (std::size_t d = 0; d < width; ++d) {
        largest = std::fmax(largest, std::fabs(static_cast<double>(exact[i + d])));
      }
      for (std::size_t d = 0; d < width; ++d) {
        const double bound = kFactor * std::ldexp(largest, roundoff) +
                             half_ulp(dtype_of<Query>, static_cast<double>(exact[i + d]));
        ASSERT_NEAR(static_cast<float>(got[i + d]), exact[i + d], bound) << "value " << i + d;
      }
    }
  }

  // The same two operands on the host and on the device, in the kernels.
  template <class K, class V>
  struct Operands {
    K host_k;
    V host_v;
    K k;
    V v;
  };
  using RunParams = attention::RunParams;

  template <class Query, class K, class V>
  void compare_rows(const std::vector<std::int32_t>& offsets, const OperandShape& shape,
                    const Operands<K, V>& o, std::int64_t window = 0) {
    compare<Query>(offsets, shape, window, reference_of(o, shape),
                   [&](const RunParams& p, const Context& context) {
                     attention::cuda::run(p, o.k, o.v, shape.heads, context);
                   });
  }
  template <int HeadDim, class Query, class K, class V>
  void compare_prefill(const std::vector<std::int32_t>& offsets, const OperandShape& shape,
                       const Operands<K, V>& o, std::int64_t window = 0) {
    compare<Query>(offsets, shape, window, reference_of(o, shape),
                   [&](const RunParams& p, const Context& context) {
                     const auto rows = static_cast<std::int64_t>(offsets.size()) - 1;
                     attention::prefill<HeadDim>(
                         p, o.k, o.v, shape.heads,
                         workspace(attention::prefill_workspace_bytes(rows), context), context);
                   });
  }
  template <int HeadDim, class Query, class K, class V>
  void compare_decode(const std::vector<std::int32_t>& offsets, const OperandShape& shape,
                      const Operands<K, V>& o, std::int64_t window = 0) {
    compare<Query>(
        offsets, shape, window, reference_of(o, shape),
        [&](const RunParams& p, const Context& context) { decode<HeadDim>(p, o, shape, context); });
  }
  template <int HeadDim, class K, class V>
  void decode(const RunParams& p, const Operands<K, V>& o, const OperandShape& shape,
              const Context& context) {
    const std::size_t bytes =
        attention::cuda::decode_workspace_bytes<HeadDim>(p, shape.heads, context);
    attention::cuda::decode<HeadDim>(p, o.k, o.v, shape.heads, workspace(bytes, context), context);
  }

 private:
  template <class K, class V>
  static auto reference_of(const Operands<K, V>& o, const OperandShape& shape) {
    return [&o, &shape](const RunParams& p) {
      attention::reference::run(p, o.host_k, o.host_v, shape.heads);
    };
  }

  std::vector<void*> owned_;
};

}  // namespace hyla::testing
