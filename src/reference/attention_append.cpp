#include <cmath>
#include <vector>

#include "reference/attention.h"
#include "reference/scalar.h"

namespace hyla {
namespace {

using attention::AppendProblem;
using attention::CacheView;
using attention::KvCache;

// Row of a dense cache or page, and token of it.
struct Place {
  std::int64_t outer, token;

  std::int64_t offset(const TensorView& view, std::int64_t head) const {
    if (view.rank == 3) return token * view.strides[0] + head * view.strides[1];
    return outer * view.strides[0] + token * view.strides[1] + head * view.strides[2];
  }
};

Place place_of(const CacheView& cache, std::int64_t row, std::int64_t position) {
  switch (cache.kind) {
    case KvCache::Kind::kDense:
      return {row, position};
    case KvCache::Kind::kRagged:
      return {0, cache.cu_kv.at(row) + position};
    default: {
      const std::int64_t size = cache.page_size();
      return {cache.page_table.at(row, position / size), position % size};
    }
  }
}

Place place_of_slot(const CacheView& cache, std::int64_t slot) {
  if (cache.kind == KvCache::Kind::kRagged) return {0, slot};
  return {slot / cache.page_size(), slot % cache.page_size()};
}

void rotate(std::vector<double>& head, const AppendProblem& problem, std::int64_t position) {
  const std::int64_t half = problem.cos.shape[1];
  for (std::int64_t i = 0; i < half; ++i) {
    const auto first = static_cast<std::size_t>(problem.interleaved ? 2 * i : i);
    const auto second = static_cast<std::size_t>(problem.interleaved ? 2 * i + 1 : i + half);
    const auto at = [&](const TensorView& table) {
      return reference::load(table.data, table.dtype,
                             position * table.strides[0] + i * table.strides[1]);
    };
    const double x = head[first], y = head[second], c = at(problem.cos), s = at(problem.sin);
    head[first] = x * c - y * s;
    head[second] = y * c + x * s;
  }
}

double largest_stored(DType dtype) { return dtype == DType::kInt8 ? 127.0 : 448.0; }

// `scales` absent: the values themselves are rounded. A scale of 0 makes zeros of a run, whatever
// it holds; what is divided by others is clamped, and NaN becomes NaN (e4m3) or -127 (int8).
void write_head(const std::vector<double>& head, const TensorView& values, const TensorView& scales,
                bool given, const Place& place, std::int64_t h) {
  const std::int64_t base = place.offset(values, h);
  const auto dim = static_cast<std::int64_t>(head.size());
  const std::int64_t runs = scales.present() ? scales.shape[scales.rank - 1] : 1;
  const std::int64_t run = dim / runs;
  for (std::int64_t r = 0; r < runs; ++r) {
    double scale = 1.0;
    const std::int64_t scale_at =
        scales.present() ? place.offset(scales, h) + r * scales.strides[scales.rank - 1] : 0;
    if (given) {
      scale = reference::load(scales.data, scales.dtype, scale_at);
    } else if (scales.present()) {
      double largest = 0;
      for (std::int64_t d = r * run; d < (r + 1) * run; ++d) {
        largest = std::fmax(largest, std::fabs(head[static_cast<std::size_t>(d)]));
      }
      scale = static_cast<float>(largest / largest_stored(values.dtype));
      reference::store(scales.data, scales.dtype, scale_at, scale);
    }
    for (std::int64_t d = r * run; d < (r + 1) * run; ++d) {
      const double value = head[static_cast<std::size_t>(d)];
      reference::store(values.data, values.dtype, base + d, scale == 0 ? 0.0 : value / scale);
    }
  }
}

std::vector<double> read_head(const TensorView& view, std::int64_t token, std::int64_t h) {
  std::vector<double> head(static_cast<std::size_t>(view.shape[2]));
  for (std::size_t d = 0; d < head.size(); ++d) {
    head[d] = reference::load(
        view.data, view.dtype,
        token * view.strides[0] + h * view.strides[1] + static_cast<std::int64_t>(d));
  }
  return head;
}

// All heads of a token. `position`: of the rotation.
void append_token(const AppendProblem& problem, std::int64_t token, const Place& place,
                  std::int64_t position) {
  const CacheView& cache = problem.cache;
  for (std::int64_t h = 0; h < problem.heads; ++h) {
    std::vector<double> key = read_head(problem.k, token, h);
    if (problem.cos.present()) rotate(key, problem, position);
    write_head(key, cache.k, cache.k_scales, problem.given_scales, place, h);
    if (problem.v.present()) {
      write_head(read_head(problem.v, token, h), cache.v, cache.v_scales, problem.given_scales,
                 place, h);
    }
  }
}

}  // namespace

void reference::attention_append(const AppendProblem& problem, const Workspace&, const Context&) {
  const CacheView& cache = problem.cache;
  if (problem.slots.present()) {
    for (std::int64_t i = 0; i < problem.sequences.tokens; ++i) {
      const std::int64_t slot = problem.slots.at(i);
      if (slot < 0) continue;
      append_token(problem, i, place_of_slot(cache, slot),
                   problem.positions.present() ? problem.positions.at(i) : 0);
    }
    return;
  }
  for (std::int64_t row = 0; row < problem.sequences.rows; ++row) {
    const std::int64_t added = problem.sequences.length(row);
    for (std::int64_t i = 0; i < added; ++i) {
      const std::int64_t token = problem.sequences.begin(row) + i;
      const std::int64_t position = cache.length(row) - added + i;
      append_token(problem, token, place_of(cache, row, position), position);
    }
  }
}

}  // namespace hyla
