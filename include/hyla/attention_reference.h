// The definition of attention, as a template over any K and V operand: scalar, float64, on the
// host. attention::run on a CPU is this template with the built-in operands; a type of your own
// works the same way:
//
//     attention::RunParams params{.q = q, .out = out, .cu_seqlens = offsets};
//     attention::reference::run(params, my_keys, my_values, kv_heads);
//
// A row's keys are those its operand has: cache_length(b) tokens, plus the row's queries where
// cache_length counts the tokens before this step. Query i of the row stands at (keys - queries +
// i). `params.cache` and `params.kv_lengths` stay empty: the operand says both.
#ifndef HYLA_ATTENTION_REFERENCE_H_
#define HYLA_ATTENTION_REFERENCE_H_

#include <hyla/attention.h>
#include <hyla/attention_queries.h>
#include <hyla/error.h>
#include <hyla/kv_operand.h>
#include <hyla/kv_operand_check.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace hyla::attention::reference {

// Element [token, head, dim] of a rank 3 (2, 1) tensor as float64; stores round once.
HYLA_API double load(const TensorView& view, std::int64_t i, std::int64_t j = 0,
                     std::int64_t k = 0);
HYLA_API void store(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t k,
                    double value);

namespace detail {

template <class T>
double number(T stored) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(stored);
  } else {
    return static_cast<double>(static_cast<float>(stored));
  }
}

// One head's rows [keys, dim] in float64.
struct Rows {
  std::int64_t dim = 0;
  std::vector<double> values;
  const double* operator[](std::int64_t i) const { return values.data() + i * dim; }
};

template <class Operand>
Rows gather(const Operand& operand, std::int64_t row, KeyRange keys, std::int64_t head,
            std::int64_t dim) {
  Rows result{dim, {}};
  result.values.reserve(static_cast<std::size_t>((keys.end - keys.begin) * dim));
  for (std::int64_t token = keys.begin; token < keys.end; ++token) {
    const auto* values = operand.template block_paged_ptr<1>(static_cast<std::uint32_t>(row),
                                                             static_cast<std::uint32_t>(token),
                                                             static_cast<std::uint32_t>(head));
    for (std::int64_t d = 0; d < dim; ++d) {
      double value = number(values[d]);
      if constexpr (quantization_enabled<Operand>()) {
        value *= number(operand.template load_scale<1>(row, token, head, d)[0]);
      }
      result.values.push_back(value);
    }
  }
  return result;
}

// One query head: softmax over the logits, then the weighted sum of the value rows `first`, `first`
// + 1, ...
inline void attend(const Queries& call, std::int64_t token, std::int64_t head, const Rows& keys,
                   const Rows& values, std::int64_t first, std::int64_t count) {
  const auto size = static_cast<std::size_t>(count);
  std::vector<double> weight(size), query(static_cast<std::size_t>(call.head_dim));
  for (std::int64_t d = 0; d < call.head_dim; ++d) {
    query[static_cast<std::size_t>(d)] = load(call.q, token, head, d);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  double highest = -infinity;
  for (std::size_t j = 0; j < size; ++j) {
    const double* key = keys[first + static_cast<std::int64_t>(j)];
    double logit = 0;
    for (std::size_t d = 0; d < query.size(); ++d) logit += query[d] * key[d];
    logit *= call.scale;
    if (call.softcap > 0) logit = call.softcap * std::tanh(logit / call.softcap);
    weight[j] = logit;
    highest = std::fmax(highest, logit);
  }
  double denominator = 0;
  if (count > 0 && call.sinks.present()) {
    const double sink = load(call.sinks, head);
    highest = std::fmax(highest, sink);
    denominator = std::exp(sink - highest);
  }
  for (double& w : weight) {
    w = std::exp(w - highest);
    denominator += w;
  }
  std::vector<double> sum(static_cast<std::size_t>(call.value_dim));
  for (std::size_t j = 0; j < size; ++j) {
    const double* value = values[first + static_cast<std::int64_t>(j)];
    for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += weight[j] * value[d];
  }
  for (std::int64_t d = 0; d < call.value_dim; ++d) {
    store(call.out, token, head, d,
          count > 0 ? sum[static_cast<std::size_t>(d)] / denominator : 0.0);
  }
  if (call.lse.present()) {
    store(call.lse, token, head, 0, count > 0 ? highest + std::log(denominator) : -infinity);
  }
}

// Null pointers are refused before anything is written.
template <class Operand>
void check_pages(const char* argument, const Operand& operand, std::int64_t row, KeyRange keys) {
  for (std::int64_t token = keys.begin; token < keys.end; ++token) {
    if (operand.template block_paged_ptr<1>(static_cast<std::uint32_t>(row),
                                            static_cast<std::uint32_t>(token), 0) == nullptr) {
      throw InvalidArgument(
          argument, "an address for every key that is seen",
          "none for token " + std::to_string(token) + " of row " + std::to_string(row));
    }
  }
}

// Keys of a row, those of its queries included.
template <class K>
std::int64_t key_count(const Queries& call, const K& k, std::int64_t row) {
  const auto cached = static_cast<std::int64_t>(k.cache_length(row));
  return cache_length_is_full<K>() ? cached : cached + call.length(row);
}

template <class K, class V>
constexpr bool usable() {
  if constexpr (!is_addressable_operand<K>()) {
    return false;
  } else if constexpr (!is_addressable_operand<V>()) {
    return false;
  } else {
    if constexpr (quantization_enabled<K>()) {
      if constexpr (!is_quantised_operand<K>()) return false;
    }
    if constexpr (quantization_enabled<V>()) {
      if constexpr (!is_quantised_operand<V>()) return false;
    }
    return true;
  }
}

}  // namespace detail

template <class K, class V>
void run(const Queries& call, const K& k, const V& v) {
  if constexpr (detail::usable<K, V>()) {
    for (std::int64_t row = 0; row < call.rows; ++row) {
      const KeyRange seen = call.seen(row, detail::key_count(call, k, row));
      detail::check_pages("k", k, row, seen);
      detail::check_pages("v", v, row, seen);
    }
    const std::int64_t group = call.query_heads / call.kv_heads;
    for (std::int64_t row = 0; row < call.rows; ++row) {
      const std::int64_t queries = call.length(row), keys = detail::key_count(call, k, row);
      const KeyRange seen = call.seen(row, keys);
      for (std::int64_t head = 0; head < call.kv_heads; ++head) {
        const detail::Rows key_rows = detail::gather(k, row, seen, head, call.head_dim);
        const detail::Rows value_rows = detail::gather(v, row, seen, head, call.value_dim);
        for (std::int64_t i = 0; i < queries; ++i) {
          const KeyRange own = call.mask.visible(keys - queries + i, keys);
          for (std::int64_t g = 0; g < group; ++g) {
            detail::attend(call, call.begin(row) + i, head * group + g, key_rows, value_rows,
                           own.begin - seen.begin, own.end - own.begin);
          }
        }
      }
    }
  }
}

template <class K, class V>
void run(const RunParams& params, const K& k, const V& v, std::int64_t kv_heads,
         const Context& context = {}) {
  run(check_queries(params, kv_heads, context), k, v);
}

}  // namespace hyla::attention::reference

#endif  // HYLA_ATTENTION_REFERENCE_H_
