// Caches in every layout that the strides of one kernel have to cover: heads first, fused pools,
// layers of a block pool, ragged and dense rows.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "gpu/check.h"
#include "testing/case_builder.h"

namespace hyla::testing {
namespace {

using attention::KvCache;
using attention::KvLayout;

enum class Layout { kHeadsFirst, kFused, kFusedHeadsFirst, kBlocks, kRagged, kDenseHeadsFirst };

constexpr std::int64_t kPages = 16, kPage = 16, kHeads = 2;
const std::vector<std::int64_t> kKeys = {150, 40};

TensorView table(CaseBuilder& builder) {
  std::vector<std::int64_t> entries;
  std::int64_t page = kPages - 1;
  for (std::int64_t length : kKeys) {
    for (std::int64_t c = 0; c < 10; ++c) {
      entries.push_back(c * kPage < length ? page-- : CaseBuilder::kNobody);
    }
  }
  return builder.indices("cache.page_table", entries, {2, 10});
}

KvCache make_cache(CaseBuilder& builder, Layout layout, std::int64_t d, DType dtype) {
  const auto tensor = [&](const char* name, std::vector<std::int64_t> shape) {
    return builder.normal(name, dtype, std::move(shape), 0, 1);
  };
  switch (layout) {
    case Layout::kHeadsFirst:
      return KvCache::paged(tensor("cache.k", {kPages, kHeads, kPage, d}),
                            tensor("cache.v", {kPages, kHeads, kPage, d}), table(builder),
                            KvLayout::kHND);
    case Layout::kFused:
      return KvCache::fused(tensor("cache", {kPages, 2, kPage, kHeads, d}), table(builder));
    case Layout::kFusedHeadsFirst:
      return KvCache::fused(tensor("cache", {kPages, 2, kHeads, kPage, d}), table(builder),
                            KvLayout::kHND);
    case Layout::kBlocks:
      return KvCache::blocks(tensor("cache", {kPages, 2, 3, kPage, kHeads, d}), 1, table(builder));
    case Layout::kRagged:
      return KvCache::ragged(tensor("cache.k", {193, kHeads, d}),
                             tensor("cache.v", {193, kHeads, d}),
                             builder.indices("cache.cu_kv", {2, 152, 192}));
    case Layout::kDenseHeadsFirst:
      return KvCache::dense(tensor("cache.k", {2, kHeads, 153, d}),
                            tensor("cache.v", {2, kHeads, 153, d}), KvLayout::kHND);
  }
  return {};
}

Call make_call(Layout layout, const std::string& problem) {
  const ProblemSpec spec = parse_problem(problem);
  CaseBuilder builder(spec, CaseOptions::plain());
  const Rows rows = builder.rows(row_lengths(spec), true);
  attention::RunParams p;
  p.q = builder.normal("q", spec.io, {rows.total, spec.hq, spec.d}, 0, 1);
  p.out = builder.output("out", spec.io, {rows.total, spec.hq, spec.d});
  builder.set_sequences(p, rows);
  p.cache = make_cache(builder, layout, spec.d, spec.io);
  if (layout != Layout::kRagged) p.kv_lengths = builder.indices("kv_lengths", kKeys);
  return std::move(builder).finish(p);
}

using GpuLayouts = Gpu;

TEST_F(GpuLayouts, EveryLayout) {
  for (const Layout layout : {Layout::kHeadsFirst, Layout::kFused, Layout::kFusedHeadsFirst,
                              Layout::kBlocks, Layout::kRagged, Layout::kDenseHeadsFirst}) {
    for (const char* problem : {"attention_prefill:lens=70+40,hq=4,hk=2,d=64",
                                "attention_prefill:lens=70+40,hq=4,hk=2,d=256,io=f16,kv=f16",
                                "attention_prefill:lens=70+40,hq=4,hk=2,d=72",
                                // more queries than keys: the first ones see nothing
                                "attention_prefill:lens=200+60,hq=4,hk=2,d=128"}) {
      const std::string what =
          problem + std::string(", layout ") + std::to_string(static_cast<int>(layout));
      EXPECT_GE(check_call(what, make_call(layout, problem)), 2) << what;
    }
  }
}

}  // namespace
}  // namespace hyla::testing
