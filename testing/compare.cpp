#include "testing/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "testing/naive.h"

namespace hyla::testing {
namespace {

struct Format {
  int mantissa_bits;      // stored ones
  int smallest_exponent;  // of a normal number
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return {7, -126};
    case DType::kFloat16:
      return {10, -14};
    case DType::kFloat8E4M3:
      return {3, -6};
    default:
      return {23, -126};
  }
}

double roundoff(DType dtype) { return std::ldexp(0.5, -format_of(dtype).mantissa_bits); }

double largest(DType dtype) {
  return dtype == DType::kFloat16 ? 65504.0 : dtype == DType::kFloat8E4M3 ? 448.0 : 0x1.fep127;
}

// The vectors of a tensor: its last dimension.
std::int64_t vector_length(const TensorView& view) {
  return view.rank == 0 ? 1 : std::max<std::int64_t>(1, view.shape[view.rank - 1]);
}

std::vector<double> values(const TensorView& view) {
  std::vector<double> result;
  result.reserve(static_cast<std::size_t>(view.numel()));
  for_each_element(view, [&](std::int64_t, std::int64_t offset) {
    result.push_back(load_element(view, offset));
  });
  return result;
}

// Largest finite magnitude of each vector.
std::vector<double> scales(const std::vector<double>& numbers, std::int64_t length) {
  std::vector<double> result(numbers.size() / static_cast<std::size_t>(length), 0.0);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    double& scale = result[i / static_cast<std::size_t>(length)];
    if (std::isfinite(numbers[i])) scale = std::max(scale, std::fabs(numbers[i]));
  }
  return result;
}

std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return buffer;
}

std::string place(const std::string& name, const TensorView& view, std::int64_t index) {
  std::string result;
  for (int d = view.rank - 1; d >= 0; --d) {
    result = (d ? ", " : "") + std::to_string(index % view.shape[d]) + result;
    index /= view.shape[d];
  }
  return name + "[" + result + "]";
}

std::optional<std::string> changed_input(const Call& before, const Call& after) {
  std::set<std::string> written;
  for (const NamedTensor& t : tensors(after)) {
    if (t.access == Access::kWrite) written.insert(after.buffer_of(t.view).name());
  }
  for (std::size_t i = 0; i < before.buffers.size(); ++i) {
    const Buffer &a = before.buffers[i], &b = after.buffers[i];
    if (written.contains(a.name())) continue;
    if (std::memcmp(a.data(), b.data(), a.data_bytes()) != 0) {
      return a.name() + ": an input was changed";
    }
  }
  return std::nullopt;
}

}  // namespace

double half_ulp(DType dtype, double value) {
  const Format format = format_of(dtype);
  int exponent = value == 0 ? format.smallest_exponent : std::ilogb(value);
  exponent = std::max(exponent, format.smallest_exponent);
  return std::ldexp(0.5, exponent - format.mantissa_bits);
}

DType operand_dtype(const Call& call) {
  if (const auto* p = std::get_if<gdn::PrefillParams>(&call.params)) return p->q.dtype;
  if (const auto* p = std::get_if<attention::RunParams>(&call.params)) return p->q.dtype;
  return DType::kFloat32;
}

Judge::Judge(const Call& call, Exact exact)
    : before_(call),
      exact_(widened(call)),
      naive_(widened(call)),
      operands_(exact == Exact::kReference ? operand_dtype(call) : DType::kFloat32) {
  if (exact == Exact::kReference) {
    run(exact_, "reference");
  } else {
    run_naive(exact_, {true, DType::kFloat32});
  }
  run_naive(naive_, {false, operands_});
  if (operands_ != DType::kFloat32 && std::holds_alternative<gdn::PrefillParams>(call.params)) {
    chunked_ = widened(call);
    run_naive(*chunked_, {false, operands_, true});
  }
}

Comparison Judge::compare(const Call& result) const {
  Comparison worst;
  const std::vector<NamedTensor> got = tensors(result), exact = tensors(exact_),
                                 naive = tensors(naive_),
                                 chunked =
                                     chunked_ ? tensors(*chunked_) : std::vector<NamedTensor>();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i].access != Access::kWrite) continue;
    const Comparison one =
        compare_tensor(got[i], exact[i], naive[i], chunked_ ? &chunked[i] : nullptr);
    if (!one.ok && worst.ok) {
      worst = one;
    } else if (one.ok == worst.ok && (worst.tensor.empty() || one.ratio() > worst.ratio())) {
      worst = one;
    }
  }
  const auto damage = [&](const std::optional<std::string>& what) {
    if (!what.has_value() || !worst.ok) return;
    worst.ok = false;
    worst.failure = *what;
  };
  for (const Buffer& buffer : result.buffers) damage(buffer.check_guards());
  damage(changed_input(before_, result));
  return worst;
}

Comparison Judge::compare_tensor(const NamedTensor& got, const NamedTensor& exact,
                                 const NamedTensor& naive, const NamedTensor* chunked) const {
  Comparison result;
  result.tensor = got.name;
  const std::int64_t length = vector_length(got.view);
  const std::vector<double> g = values(got.view), e = values(exact.view), n = values(naive.view);
  std::vector<double> scale = scales(e, length);
  if (got.name == "lse") {
    // A logarithm: its error is the relative one of what it is taken of, and it may be near zero.
    for (double& size : scale) size = std::max(size, 1.0);
  }
  const auto vector_of = [&](std::size_t i) { return i / static_cast<std::size_t>(length); };

  // Largest error of each vector. One that the naive algorithm misses by more than kHopeless of its
  // size says nothing of the others: it is judged by its own error alone.
  const auto errors = [&](const std::vector<double>& other) {
    std::vector<double> largest_errors(scale.size(), 0.0);
    for (std::size_t i = 0; i < e.size(); ++i) {
      const double error = std::fabs(other[i] - e[i]);
      double& worst = largest_errors[vector_of(i)];
      if (std::isfinite(error)) worst = std::max(worst, error);
    }
    return largest_errors;
  };
  const auto hopeless = [&](const std::vector<double>& error, std::size_t v) {
    return error[v] > kHopeless * scale[v];
  };
  const auto largest_relative = [&](const std::vector<double>& error) {
    double worst = 0;
    for (std::size_t v = 0; v < scale.size(); ++v) {
      if (error[v] > 0 && !hopeless(error, v)) worst = std::max(worst, error[v] / scale[v]);
    }
    return worst;
  };
  const std::vector<double> naive_error = errors(n);
  const double floor = std::max(kFloorRoundoffs * roundoff(DType::kFloat32), roundoff(operands_));
  double relative = kFactor * std::max(floor, largest_relative(naive_error));
  if (chunked != nullptr) {
    const double in_chunks = largest_relative(errors(values(chunked->view)));
    relative = std::max(relative, kChunkedFactor * in_chunks);
  }

  const auto wrong = [&](std::size_t i, const std::string& what) {
    if (!result.ok) return;
    result.ok = false;
    result.failure = place(got.name, got.view, static_cast<std::int64_t>(i)) + ": " + what;
  };
  std::size_t i = 0;
  for_each_element(got.view, [&](std::int64_t index, std::int64_t offset) {
    i = static_cast<std::size_t>(index);
    if (std::isnan(e[i])) {
      // Both untouched, or both NaN for a reason of the arithmetic.
      std::int64_t exact_offset = offset;
      if (is_poison(exact.view, exact_offset) && !is_poison(got.view, offset)) {
        wrong(i, "written, but nothing should be; holds " + text(g[i]));
      } else if (!std::isnan(g[i])) {
        wrong(i, "expected NaN, got " + text(g[i]));
      }
      return;
    }
    const std::size_t v = vector_of(i);
    const double slack =
        std::max(relative * scale[v], hopeless(naive_error, v) ? kFactor * naive_error[v] : 0.0);
    const double limit = std::fabs(e[i]) + slack;
    if (std::isinf(g[i]) || std::isinf(e[i])) {
      const bool overflows = limit + half_ulp(got.view.dtype, limit) > largest(got.view.dtype) &&
                             (g[i] > 0) == (e[i] > 0);
      if (g[i] != e[i] && !overflows) wrong(i, "expected " + text(e[i]) + ", got " + text(g[i]));
      return;
    }
    const double bound = slack + half_ulp(got.view.dtype, limit) + half_ulp(DType::kFloat32, limit);
    const double error = std::fabs(g[i] - e[i]);
    if (std::isnan(error)) {
      wrong(i, "expected " + text(e[i]) + ", got NaN");
      return;
    }
    if (result.bound == 0 || error / bound > result.ratio()) {
      result.max_error = error;
      result.bound = bound;
    }
    if (error > bound) {
      wrong(i, "expected " + text(e[i]) + ", got " + text(g[i]) + ", allowed error " + text(bound));
    }
  });
  return result;
}

}  // namespace hyla::testing
