// A random attention call with everything around it poisoned, and its result by plain matrix
// formulas: all keys and values gathered into matrices, the full score matrix, the mask as a matrix
// of yes and no, softmax by rows. Shares no code with the library but the storage formats.
#pragma once

#include <hyla/attention.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace attention_test {

using hyla::DType;
using hyla::TensorView;
using hyla::attention::KvCache;
using hyla::attention::KvLayout;

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Numbers of any dtype.
class Storage {
 public:
  Storage() = default;
  Storage(DType dtype, std::int64_t count)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(count) * hyla::size_of(dtype)) {}

  void set(std::int64_t i, double value) {
    switch (dtype_) {
      case DType::kFloat32:
        return put(i, static_cast<float>(value));
      case DType::kBFloat16:
        return put(i, hyla::bfloat16(static_cast<float>(value)));
      case DType::kFloat16:
        return put(i, hyla::float16(static_cast<float>(value)));
      case DType::kFloat8E4M3:
        return put(i, hyla::float8_e4m3(static_cast<float>(value)));
      case DType::kInt8:  // no NaN: the poison is the value farthest from anything stored
        return put(i, static_cast<std::int8_t>(std::isnan(value) ? -128 : std::lround(value)));
      case DType::kInt32:
        return put(i, static_cast<std::int32_t>(static_cast<std::int64_t>(value)));
      case DType::kUInt32:
        return put(i, static_cast<std::uint32_t>(static_cast<std::int64_t>(value)));
      default:
        return put(i, static_cast<std::int64_t>(value));
    }
  }
  double get(std::int64_t i) const {
    switch (dtype_) {
      case DType::kFloat32:
        return take<float>(i);
      case DType::kBFloat16:
        return static_cast<float>(take<hyla::bfloat16>(i));
      case DType::kFloat16:
        return static_cast<float>(take<hyla::float16>(i));
      case DType::kFloat8E4M3:
        return static_cast<float>(take<hyla::float8_e4m3>(i));
      default:
        return take<std::int8_t>(i);
    }
  }
  void fill(double value) {
    for (std::int64_t i = 0; i < count(); ++i) set(i, value);
  }
  std::int64_t count() const {
    return static_cast<std::int64_t>(bytes_.size() / hyla::size_of(dtype_));
  }
  TensorView view(std::initializer_list<std::int64_t> shape) const {
    return TensorView::dense(const_cast<unsigned char*>(bytes_.data()), dtype_, shape);
  }
  DType dtype() const { return dtype_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  template <class T>
  void put(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }
  template <class T>
  T take(std::int64_t i) const {
    T value;
    std::memcpy(static_cast<void*>(&value), bytes_.data() + static_cast<std::size_t>(i) * sizeof(T),
                sizeof(T));
    return value;
  }
  DType dtype_ = DType::kFloat32;
  std::vector<unsigned char> bytes_;
};

enum class Pool { kDense, kRagged, kPaged, kFused, kBlocks };

struct Case {
  Pool pool = Pool::kPaged;
  KvLayout layout = KvLayout::kNHD;
  DType io = DType::kFloat32, kv = DType::kFloat32, index = DType::kInt32;
  std::int64_t page = 16, layers = 3, layer = 1;
  std::int64_t query_heads = 4, kv_heads = 2, dim = 16, value_dim = 16;
  std::int64_t granularity = 0;  // 0: no scales
  bool mla = false;              // values are a slice of the keys
  bool by_starts = false;        // starts and lengths instead of offsets
  std::vector<std::int64_t> queries = {1}, keys = {1};
  bool causal = true, sinks = false, lse = true;
  std::int64_t window = 0, chunk = 0;
  double softcap = 0;
  std::optional<double> scale;
  unsigned seed = 1;

  std::string text() const;
};

inline std::string list(const std::vector<std::int64_t>& values) {
  std::ostringstream text;
  for (std::size_t i = 0; i < values.size(); ++i) text << (i > 0 ? "+" : "") << values[i];
  return text.str();
}

inline std::string Case::text() const {
  static const char* const kPools[] = {"dense", "ragged", "paged", "fused", "blocks"};
  std::ostringstream text;
  text << kPools[static_cast<int>(pool)] << (layout == KvLayout::kHND ? " hnd" : " nhd")
       << " io=" << name_of(io) << " kv=" << name_of(kv) << " index=" << name_of(index)
       << " page=" << page << " hq=" << query_heads << " hk=" << kv_heads << " d=" << dim
       << " dv=" << value_dim << " granularity=" << granularity << " mla=" << mla
       << " q=" << list(queries) << " k=" << list(keys) << " causal=" << causal
       << " window=" << window << " chunk=" << chunk << " sinks=" << sinks << " softcap=" << softcap
       << " seed=" << seed;
  return text.str();
}

using Matrix = std::vector<std::vector<double>>;

// The mask as a question about one query and one key position.
inline bool sees(const Case& c, std::int64_t query, std::int64_t key) {
  if (c.causal && key > query) return false;
  if (c.window > 0 && std::llabs(query - key) >= c.window) return false;
  if (c.chunk > 0) {
    const auto index = [&](std::int64_t p) {
      return std::floor(static_cast<double>(p) / static_cast<double>(c.chunk));
    };
    if (index(query) != index(key)) return false;
  }
  return true;
}

struct Expected {
  Matrix out;               // [query, DV]
  std::vector<double> lse;  // [query]
  double largest_value = 0, largest_logit = 0;
};

// One head of one row: q [queries, D], k [keys, D], v [keys, DV].
inline Expected attend(const Case& c, const Matrix& q, const Matrix& k, const Matrix& v,
                       double scale, std::optional<double> sink) {
  Expected result;
  const auto queries = static_cast<std::int64_t>(q.size()),
             keys = static_cast<std::int64_t>(k.size());
  for (std::int64_t i = 0; i < queries; ++i) {
    std::vector<double> logits, row(static_cast<std::size_t>(c.value_dim), 0.0);
    std::vector<std::int64_t> visible;
    for (std::int64_t j = 0; j < keys; ++j) {
      if (!sees(c, keys - queries + i, j)) continue;
      double dot = 0, magnitude = 0;
      for (std::int64_t d = 0; d < c.dim; ++d) {
        const double term = q[static_cast<std::size_t>(i)][static_cast<std::size_t>(d)] *
                            k[static_cast<std::size_t>(j)][static_cast<std::size_t>(d)];
        dot += term;
        magnitude += std::fabs(term);
      }
      result.largest_logit = std::fmax(result.largest_logit, magnitude * std::fabs(scale));
      dot *= scale;
      if (c.softcap > 0) dot = std::tanh(dot / c.softcap) * c.softcap;
      logits.push_back(dot);
      visible.push_back(j);
    }
    if (visible.empty()) {
      result.out.push_back(row);
      result.lse.push_back(-std::numeric_limits<double>::infinity());
      continue;
    }
    double top = sink.value_or(logits[0]);
    for (double logit : logits) top = std::fmax(top, logit);
    double sum = sink ? std::exp(*sink - top) : 0.0;
    for (double logit : logits) sum += std::exp(logit - top);
    for (std::size_t n = 0; n < visible.size(); ++n) {
      const double p = std::exp(logits[n] - top) / sum;
      for (std::size_t d = 0; d < row.size(); ++d) {
        const double value = v[static_cast<std::size_t>(visible[n])][d];
        result.largest_value = std::fmax(result.largest_value, std::fabs(value));
        row[d] += p * value;
      }
    }
    result.out.push_back(row);
    result.lse.push_back(std::log(sum) + top);
  }
  return result;
}

// Half a unit in the last place of `value` in a format.
inline double half_ulp(DType dtype, double value) {
  const int mantissa = dtype == DType::kFloat32 ? 23 : dtype == DType::kFloat16 ? 10 : 7;
  const int lowest = dtype == DType::kFloat16 ? -14 : -126;
  const int exponent = value == 0 ? lowest : std::max(std::ilogb(value), lowest);
  return std::ldexp(0.5, exponent - mantissa);
}

}  // namespace attention_test
