// attention::run on the CPU: the public template with the built-in operands.
#include "reference/attention.h"

#include <hyla/attention_reference.h>
#include <hyla/attention_sparse_reference.h>
#include <hyla/kv_operands.h>

#include "core/check.h"
#include "reference/scalar.h"

namespace hyla {
namespace {

using attention::CacheView;
using attention::KvCache;
using attention::Queries;

TensorView span_view(const IndexSpan& span) {
  TensorView view;
  view.data = const_cast<void*>(span.data);
  view.dtype = span.dtype;
  view.rank = 1;
  view.shape[0] = span.rows;
  view.strides[0] = span.stride;
  return view;
}

TensorView table_view(const IndexSpan& span) {
  TensorView view = span_view(span);
  view.rank = 2;
  view.shape[1] = span.columns;
  view.strides[1] = span.column_stride;
  return view;
}

template <class T, class Scale>
void run_as(const Queries& queries, const CacheView& cache) {
  const TensorView lengths =
      cache.kv_lengths.present() ? span_view(cache.kv_lengths) : TensorView();
  switch (cache.kind) {
    case KvCache::Kind::kDense: {
      using Operand = attention::DenseOperand<T, Scale>;
      attention::reference::run(queries, Operand::from(cache.k, lengths, cache.k_scales),
                                Operand::from(cache.v, lengths, cache.v_scales));
      return;
    }
    case KvCache::Kind::kRagged: {
      using Operand = attention::RaggedOperand<T, Scale>;
      const TensorView offsets = span_view(cache.cu_kv);
      attention::reference::run(queries, Operand::from(cache.k, offsets, lengths, cache.k_scales),
                                Operand::from(cache.v, offsets, lengths, cache.v_scales));
      return;
    }
    default: {
      using Operand = attention::PagedOperand<T, attention::kRunTimePageSize, Scale>;
      const TensorView table = table_view(cache.page_table);
      auto k = Operand::from(cache.k, table, lengths, cache.k_scales);
      auto v = Operand::from(cache.v, table, lengths, cache.v_scales);
      // kv_lengths count this call's tokens, a paged operand's cache_length does not.
      for (Operand* operand : {&k, &v}) {
        operand->new_offsets = queries.cu_seqlens;
        operand->new_lengths = queries.lengths;
      }
      attention::reference::run(queries, k, v);
    }
  }
}

template <class T>
void run_quantised(const Queries& queries, const CacheView& cache) {
  if (cache.quantised()) {
    run_as<T, float>(queries, cache);
  } else {
    run_as<T, void>(queries, cache);
  }
}

std::int64_t offset(const TensorView& view, std::int64_t i, std::int64_t j, std::int64_t k) {
  return i * view.strides[0] + j * view.strides[1] + k * view.strides[2];
}

}  // namespace

double attention::reference::load(const TensorView& view, std::int64_t i, std::int64_t j,
                                  std::int64_t k) {
  return hyla::reference::load(view.data, view.dtype, offset(view, i, j, k));
}

void attention::reference::store(const TensorView& view, std::int64_t i, std::int64_t j,
                                 std::int64_t k, double value) {
  hyla::reference::store(view.data, view.dtype, offset(view, i, j, k), value);
}

void attention::reference::detail::check_sparse(const Queries& call, const TensorView& indices,
                                                const Context& context) {
  if (call.mask.window > 0) core::fail("window", "0 beside indices", core::text(call.mask.window));
  if (call.mask.chunk > 0) core::fail("chunk", "0 beside indices", core::text(call.mask.chunk));
  core::Shapes shapes;
  shapes.bind("total", call.q.shape[0]);
  core::check_indices("indices", indices, "total L", shapes, context, {DType::kInt32});
  core::Overlaps overlaps;
  overlaps.writes("out", call.out);
  overlaps.writes("lse", call.lse);
  overlaps.reads("indices", indices);
  overlaps.check();
}

void reference::attention(const hyla::attention::RunProblem& problem, const Workspace&,
                          const Context&) {
  switch (problem.cache.k.dtype) {
    case DType::kFloat32:
      return run_as<float, void>(problem.queries, problem.cache);
    case DType::kBFloat16:
      return run_as<bfloat16, void>(problem.queries, problem.cache);
    case DType::kFloat16:
      return run_as<float16, void>(problem.queries, problem.cache);
    case DType::kFloat8E4M3:
      return run_quantised<float8_e4m3>(problem.queries, problem.cache);
    default:
      return run_quantised<std::int8_t>(problem.queries, problem.cache);
  }
}

}  // namespace hyla
