// The operations of hyla.attention. The cache classes of hyla/attention.py arrive taken apart.
#include "arguments.h"
#include "operations.h"

namespace hyla::python {
namespace {

using attention::KvCache;
using attention::KvLayout;

template <class In>
void read_cache(In& in, Call::Access access, Call::Access scales, KvCache& cache) {
  cache.kind = in.template choice<KvCache::Kind>(
      "cache.kind", {{"dense", static_cast<int>(KvCache::Kind::kDense)},
                     {"ragged", static_cast<int>(KvCache::Kind::kRagged)},
                     {"paged", static_cast<int>(KvCache::Kind::kPaged)}});
  cache.layout = in.template choice<KvLayout>(
      "cache.layout",
      {{"nhd", static_cast<int>(KvLayout::kNHD)}, {"hnd", static_cast<int>(KvLayout::kHND)}});
  using Key = typename In::Key;
  const auto take = [&](Key key, Call::Access how, TensorView& view) {
    in.call.optional_tensor(key.index, how, view);
  };
  take("cache.k", access, cache.k);
  take("cache.v", access, cache.v);
  take("cache.k_scales", scales, cache.k_scales);
  take("cache.v_scales", scales, cache.v_scales);
  in.maybe_read("cache.cu_kv", cache.cu_kv);
  in.maybe_read("page_table", cache.page_table);
  in.call.rename("cache.page_table", "page_table");
}

template <class In, class Params>
void read_sequences(In& in, Params& p) {
  in.maybe_read("cu_seqlens", p.cu_seqlens);
  in.maybe_read("starts", p.starts);
  in.maybe_read("lengths", p.lengths);
  in.maybe_read("kv_lengths", p.kv_lengths);
}

constexpr auto kRun = std::to_array<const char*>({"q",
                                                  "cache.kind",
                                                  "cache.layout",
                                                  "cache.k",
                                                  "cache.v",
                                                  "cache.k_scales",
                                                  "cache.v_scales",
                                                  "cache.cu_kv",
                                                  "page_table",
                                                  "cu_seqlens",
                                                  "starts",
                                                  "lengths",
                                                  "kv_lengths",
                                                  "causal",
                                                  "window",
                                                  "chunk",
                                                  "sinks",
                                                  "softcap",
                                                  "scale",
                                                  "lse",
                                                  "batch_invariant",
                                                  "workspace",
                                                  "out",
                                                  "stream",
                                                  "impl"});

std::size_t workspace_bytes(const attention::RunParams& p, const Context& context) {
  if (p.q.rank != 3 || p.out.rank != 3 || p.cache.k.rank < 3) return 0;  // the call says it better
  const bool ragged = p.cache.kind == KvCache::Kind::kRagged;
  const bool head_first = p.cache.layout == KvLayout::kHND;
  const TensorView& rows = p.cu_seqlens.present() ? p.cu_seqlens : p.lengths;
  attention::RunBounds bounds;
  bounds.max_sequences = rows.rank == 1 ? rows.shape[0] : 0;
  bounds.max_tokens = p.q.shape[0];
  bounds.query_heads = p.q.shape[1];
  bounds.head_dim = p.q.shape[2];
  bounds.value_dim = p.out.shape[2];
  bounds.kv_heads = p.cache.k.shape[!ragged && head_first ? 1 : p.cache.k.rank - 2];
  const std::int64_t length = p.cache.k.shape[ragged ? 0 : head_first ? 2 : 1];
  const std::int64_t pages = p.cache.page_table.rank == 2 ? p.cache.page_table.shape[1] : 1;
  bounds.max_kv_length = length * pages;
  bounds.io = p.q.dtype;
  bounds.cache = p.cache.k.dtype;
  bounds.device = context.device;
  try {
    return attention::run_workspace_bytes(bounds);
  } catch (const InvalidArgument&) {
    return 0;
  }
}

PyObject* run(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kRun>("attention.run", arguments, count, [](auto& in) {
    attention::RunParams p;
    in.read("q", p.q);
    read_cache(in, Call::Access::kRead, Call::Access::kRead, p.cache);
    read_sequences(in, p);
    p.causal = in.flag("causal");
    p.window = in.given("window") ? in.integer("window") : 0;
    p.chunk = in.given("chunk") ? in.integer("chunk") : 0;
    in.maybe_read("sinks", p.sinks);
    p.softcap = in.maybe_number("softcap").value_or(0);
    p.scale = in.maybe_number("scale");
    in.maybe_write("lse", p.lse);
    in.call.context().batch_invariant = in.flag("batch_invariant");
    TensorView like = p.q;  // [total, Hq, DV]
    const TensorView& v = p.cache.v;
    if (like.rank == 3 && v.rank >= 3) like.shape[2] = v.shape[v.rank - 1];
    in.output(p.out, "out", like, true);
    if (!in.given("out")) in.call.rename("out", v.present() ? "cache.v" : "q");
    const Workspace workspace =
        in.workspace("workspace", [&] { return workspace_bytes(p, in.call.context()); });
    return perform(in.call, p, [&](const auto& params, const Context& context) {
      attention::run(params, workspace, context);
    });
  });
}

constexpr auto kAppend = std::to_array<const char*>(
    {"cache.kind",     "cache.layout", "cache.k",    "cache.v",     "cache.k_scales",
     "cache.v_scales", "cache.cu_kv",  "page_table", "k",           "v",
     "cu_seqlens",     "starts",       "lengths",    "kv_lengths",  "slots",
     "positions",      "cos",          "sin",        "interleaved", "given_scales",
     "stream",         "impl"});

PyObject* append(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kAppend>("attention.append", arguments, count, [](auto& in) {
    attention::AppendParams p;
    in.read("k", p.k);
    in.maybe_read("v", p.v);
    p.given_scales = in.flag("given_scales");
    read_cache(in, Call::Access::kWrite,
               p.given_scales ? Call::Access::kRead : Call::Access::kWrite, p.cache);
    read_sequences(in, p);
    in.maybe_read("slots", p.slots);
    in.maybe_read("positions", p.positions);
    in.maybe_read("cos", p.rope.cos);
    in.maybe_read("sin", p.rope.sin);
    p.rope.interleaved = in.flag("interleaved");
    in.call.rename("rope.cos", "cos");
    in.call.rename("rope.sin", "sin");
    return perform(in.call, p, attention::append);
  });
}

constexpr auto kMerge =
    std::to_array<const char*>({"a", "a_lse", "b", "b_lse", "lse", "out", "stream", "impl"});

PyObject* merge(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return operation<kMerge>("attention.merge", arguments, count, [](auto& in) {
    attention::MergeParams p;
    in.read("a", p.a);
    in.read("a_lse", p.a_lse);
    in.read("b", p.b);
    in.read("b_lse", p.b_lse);
    in.maybe_write("lse", p.lse);
    in.output(p.out, "out", p.a, false);
    return perform(in.call, p, attention::merge);
  });
}

}  // namespace

std::span<const Operation> attention_operations() {
  static constexpr Operation kOperations[] = {
      {"attention_run", run, kRun},
      {"attention_append", append, kAppend},
      {"attention_merge", merge, kMerge},
  };
  return kOperations;
}

}  // namespace hyla::python
