// The definition of sparse attention: each query token has its own list of keys, as encoded indices
// (see kv_operand.h); a negative one is no token. The lists decide alone: window and chunk must be
// 0, and `causal` does not apply. The operands are read the way a gather kernel reads them, by
// get_tma_row and the rows of their TMA tile.
#ifndef HYLA_ATTENTION_SPARSE_REFERENCE_H_
#define HYLA_ATTENTION_SPARSE_REFERENCE_H_

#include <hyla/attention_reference.h>

#include <cstdint>
#include <string>

namespace hyla::attention::reference {
namespace detail {

HYLA_API void check_sparse(const Queries& call, const TensorView& indices, const Context& context);

// Rows of one head at encoded indices, found through the operand's TMA tile.
template <class Operand>
struct Gatherer {
  const Operand& operand;
  TmaTileSpec spec;

  std::int64_t row(std::int64_t encoded) const {
    return encoded < 0 ? -1 : operand.get_tma_row(static_cast<std::int32_t>(encoded));
  }
  bool inside(std::int64_t encoded) const {
    const std::int64_t at = row(encoded);
    return at >= 0 && at < operand.num_kv_rows();
  }
  void append(Rows& rows, std::int64_t encoded, std::int64_t head) const {
    const auto* bytes = static_cast<const char*>(spec.base) + row(encoded) * spec.strides[2] +
                        head * spec.strides[1];
    const auto* values = reinterpret_cast<const typename Operand::dtype*>(bytes);
    for (std::int64_t d = 0; d < rows.dim; ++d) rows.values.push_back(number(values[d]));
  }
};

template <class Operand>
Gatherer<Operand> gatherer(const Operand& operand, const Context& context) {
  return {operand, operand.template create_tma_tile<TensorMapSwizzle::k128B, 8, 128>(context).spec};
}

template <class K, class V>
constexpr bool gatherable() {
  if constexpr (!is_mha_operand<K>()) {
    return false;
  } else {
    return is_mha_operand<V>();
  }
}

}  // namespace detail

// indices [total, L] int32, one list for all heads.
template <class K, class V>
void run_sparse(const RunParams& params, const K& k, const V& v, std::int64_t kv_heads,
                const TensorView& indices, const Context& context = {}) {
  if constexpr (detail::gatherable<K, V>()) {
    static_assert(
        !quantization_enabled<K>() && !quantization_enabled<V>(),
        "run_sparse: an encoded index finds values, not scales; the operands are not quantised");
    const Queries call = check_queries(params, kv_heads, context);
    detail::check_sparse(call, indices, context);
    const auto k_rows = detail::gatherer(k, context);
    const auto v_rows = detail::gatherer(v, context);
    const IndexSpan lists(indices);
    for (std::int64_t token = 0; token < lists.rows; ++token) {
      for (std::int64_t j = 0; j < lists.columns; ++j) {
        const std::int64_t encoded = lists.at(token, j);
        if (encoded >= 0 && !(k_rows.inside(encoded) && v_rows.inside(encoded))) {
          throw InvalidArgument("indices",
                                "encoded indices of tokens in the cache, or negative ones",
                                std::to_string(encoded) + " for token " + std::to_string(token));
        }
      }
    }
    const std::int64_t group = call.query_heads / call.kv_heads;
    for (std::int64_t row = 0; row < call.rows; ++row) {
      for (std::int64_t i = 0; i < call.length(row); ++i) {
        const std::int64_t token = call.begin(row) + i;
        for (std::int64_t head = 0; head < call.query_heads; ++head) {
          detail::Rows keys{call.head_dim, {}}, values{call.value_dim, {}};
          std::int64_t count = 0;
          for (std::int64_t j = 0; j < lists.columns; ++j) {
            const std::int64_t encoded = lists.at(token, j);
            if (encoded < 0) continue;
            k_rows.append(keys, encoded, head / group);
            v_rows.append(values, encoded, head / group);
            ++count;
          }
          detail::attend(call, token, head, keys, values, 0, count);
        }
      }
    }
  }
}

}  // namespace hyla::attention::reference

#endif  // HYLA_ATTENTION_SPARSE_REFERENCE_H_
