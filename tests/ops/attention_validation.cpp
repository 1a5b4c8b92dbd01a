// Every argument of attention.run, wrong in every way.
#include <gtest/gtest.h>
#include <hyla/attention.h>
#include <hyla/backend.h>

#include <cstdint>

#include "ops/attention_faults.h"
#include "ops/attention_memory.h"

namespace {

using namespace attention_test;
namespace attention = hyla::attention;
using attention::RunParams;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Case base_case(Pool pool) {
  Case c;
  c.pool = pool;
  c.kv = DType::kInt8;
  c.granularity = 4;
  c.index = DType::kInt64;
  c.sinks = true;
  c.queries = {2, 3};
  c.keys = {20, 18};
  c.page = 8;
  return c;
}

struct Fixture {
  Case c;
  Memory memory;
  explicit Fixture(const Case& c_) : c(c_), memory(c_) {}

  void refuse(const Fault<RunParams>& fault, const hyla::Context& context = {}) {
    RunParams params = memory.params();
    const auto out = params.out, lse = params.lse;
    expect_refused([&](const RunParams& p) { attention::run(p, {}, context); }, params, fault,
                   [&] {
                     std::vector<std::vector<unsigned char>> bytes;
                     for (const TensorView& view : {out, lse}) {
                       const auto* data = static_cast<const unsigned char*>(view.data);
                       bytes.emplace_back(
                           data, data + static_cast<std::size_t>(view.shape[0] * view.strides[0]) *
                                            size_of(view.dtype));
                     }
                     return bytes;
                   });
  }
  void refuse(const std::string& what, const std::string& blamed,
              std::function<void(RunParams&)> apply) {
    refuse(Fault<RunParams>{what, blamed, std::move(apply)});
  }
};

std::int64_t& number(const TensorView& view, std::int64_t i) {
  return static_cast<std::int64_t*>(view.data)[i];
}

TEST(AttentionValidation, ThePagedCallIsValidAndEveryTensorFaultIsNot) {
  Fixture f(base_case(Pool::kPaged));
  ASSERT_NO_THROW(attention::run(f.memory.params()));
  const std::vector<Argument<RunParams>> arguments = {
      {"q",
       [](RunParams& p) -> TensorView& { return p.q; },
       true,
       true,
       false,
       {{0, "out"}, {1, "out"}, {2, "q"}}},
      {"out",
       [](RunParams& p) -> TensorView& { return p.out; },
       true,
       true,
       true,
       {{0, "out"}, {1, "out"}, {2, "out"}}},
      {"cache.k",
       [](RunParams& p) -> TensorView& { return p.cache.k; },
       true,
       true,
       false,
       {{0, "cache.v"}, {1, "cache.v"}, {2, "cache.v"}, {3, "cache.k"}}},
      {"cache.v",
       [](RunParams& p) -> TensorView& { return p.cache.v; },
       true,
       true,
       false,
       {{0, "cache.v"}, {1, "cache.v"}, {2, "cache.v"}, {3, "cache.v"}}},
      {"cache.k_scales",
       [](RunParams& p) -> TensorView& { return p.cache.k_scales; },
       false,
       false,
       false,
       {{0, "cache.k_scales"},
        {1, "cache.k_scales"},
        {2, "cache.k_scales"},
        {3, "cache.k_scales"}}},
      {"cache.v_scales",
       [](RunParams& p) -> TensorView& { return p.cache.v_scales; },
       true,
       false,
       false,
       {{0, "cache.v_scales"},
        {1, "cache.v_scales"},
        {2, "cache.v_scales"},
        {3, "cache.v_scales"}}},
      {"cache.page_table",
       [](RunParams& p) -> TensorView& { return p.cache.page_table; },
       true,
       false,
       false,
       {{0, "cache.page_table"}}},
      {"cu_seqlens",
       [](RunParams& p) -> TensorView& { return p.cu_seqlens; },
       true,
       false,
       false,
       {{0, "cache.page_table"}}},
      {"kv_lengths",
       [](RunParams& p) -> TensorView& { return p.kv_lengths; },
       true,
       false,
       false,
       {{0, "kv_lengths"}}},
      {"sinks",
       [](RunParams& p) -> TensorView& { return p.sinks; },
       false,
       false,
       false,
       {{0, "sinks"}}},
      {"lse",
       [](RunParams& p) -> TensorView& { return p.lse; },
       false,
       false,
       true,
       {{0, "lse"}, {1, "lse"}}},
  };
  for (const auto& fault : tensor_faults(arguments)) f.refuse(fault);
}

TEST(AttentionValidation, RaggedCachesAndStartsAndLengths) {
  Case c = base_case(Pool::kRagged);
  c.by_starts = true;
  Fixture f(c);
  ASSERT_NO_THROW(attention::run(f.memory.params()));
  const std::vector<Argument<RunParams>> arguments = {
      {"cache.k",
       [](RunParams& p) -> TensorView& { return p.cache.k; },
       true,
       true,
       false,
       {{0, "cache.v"}}},
      {"cache.cu_kv",
       [](RunParams& p) -> TensorView& { return p.cache.cu_kv; },
       true,
       false,
       false,
       {{0, "cache.cu_kv"}}},
      {"starts",
       [](RunParams& p) -> TensorView& { return p.starts; },
       true,
       false,
       false,
       {{0, "lengths"}}},
      {"lengths",
       [](RunParams& p) -> TensorView& { return p.lengths; },
       true,
       false,
       false,
       {{0, "lengths"}}},
      {"kv_lengths",
       [](RunParams& p) -> TensorView& { return p.kv_lengths; },
       false,
       false,
       false,
       {{0, "kv_lengths"}}},
  };
  for (const auto& fault : tensor_faults(arguments)) f.refuse(fault);
  f.refuse("heads first", "cache.layout", [](RunParams& p) { p.cache.layout = KvLayout::kHND; });
  f.refuse("offsets too", "starts", [](RunParams& p) { p.cu_seqlens = p.starts; });
  f.refuse("a page table", "cache.page_table", [](RunParams& p) { p.cache.page_table = p.starts; });
}

TEST(AttentionValidation, Options) {
  Fixture f(base_case(Pool::kPaged));
  f.refuse("no cache", "cache", [](RunParams& p) { p.cache = {}; });
  f.refuse("odd layout", "cache.layout",
           [](RunParams& p) { p.cache.layout = static_cast<KvLayout>(7); });
  f.refuse("negative window", "window", [](RunParams& p) { p.window = -1; });
  f.refuse("negative chunk", "chunk", [](RunParams& p) { p.chunk = -1; });
  f.refuse("window and chunk", "chunk", [](RunParams& p) { p.window = p.chunk = 4; });
  f.refuse("negative softcap", "softcap", [](RunParams& p) { p.softcap = -1; });
  f.refuse("softcap NaN", "softcap", [](RunParams& p) { p.softcap = kNaN; });
  f.refuse("infinite softcap", "softcap", [](RunParams& p) { p.softcap = kInfinity; });
  f.refuse("scale NaN", "scale", [](RunParams& p) { p.scale = kNaN; });
  f.refuse("infinite scale", "scale", [](RunParams& p) { p.scale = -kInfinity; });
  f.refuse("unknown implementation", "impl", [](RunParams& p) { p.impl = "none"; });
  f.refuse("offsets of a ragged cache", "cache.cu_kv",
           [](RunParams& p) { p.cache.cu_kv = p.cu_seqlens; });
  f.refuse("starts beside offsets", "starts", [](RunParams& p) { p.starts = p.kv_lengths; });
  f.refuse("lengths beside offsets", "lengths", [](RunParams& p) { p.lengths = p.kv_lengths; });
  f.refuse("no rows at all", "cu_seqlens", [](RunParams& p) { p.cu_seqlens = {}; });
  f.refuse("starts alone", "lengths", [](RunParams& p) {
    p.cu_seqlens = {};
    p.starts = p.kv_lengths;
  });
  f.refuse("lengths alone", "starts", [](RunParams& p) {
    p.cu_seqlens = {};
    p.lengths = p.kv_lengths;
  });
  f.refuse("scales of keys only", "cache.v_scales", [](RunParams& p) { p.cache.v_scales = {}; });
  f.refuse("scales of values only", "cache.v_scales", [](RunParams& p) { p.cache.k_scales = {}; });
  f.refuse("another dtype of values", "cache.v",
           [](RunParams& p) { p.cache.v.dtype = DType::kFloat8E4M3; });
  f.refuse("another dtype of out", "out", [](RunParams& p) { p.out.dtype = DType::kBFloat16; });
  f.refuse("8-bit queries", "q", [](RunParams& p) { p.q.dtype = DType::kInt8; });
  f.refuse("three query heads for two", "q", [](RunParams& p) {
    p.q.shape[1] = p.out.shape[1] = p.lse.shape[1] = p.sinks.shape[0] = 3;
  });
  f.refuse("no query heads", "q", [](RunParams& p) {
    p.q.shape[1] = p.out.shape[1] = p.lse.shape[1] = p.sinks.shape[0] = 0;
  });
  f.refuse("no KV heads", "cache.k", [](RunParams& p) {
    for (TensorView* v : {&p.cache.k, &p.cache.v, &p.cache.k_scales, &p.cache.v_scales})
      v->shape[2] = 0;
  });
  hyla::Context context;
  context.threads = -1;
  f.refuse({"negative threads", "context.threads", [](RunParams&) {}}, context);
  context = {};
  context.device = hyla::Device::cuda(0);
  f.refuse({"a GPU without a stream", "context.stream", [](RunParams&) {}}, context);
}

TEST(AttentionValidation, Dims) {
  const auto refuse = [](std::int64_t dim, std::int64_t value_dim, const char* blamed) {
    Case c = base_case(Pool::kDense);
    c.kv = DType::kFloat32;
    c.granularity = 0;
    c.dim = dim;
    c.value_dim = value_dim;
    Fixture f(c);
    f.refuse("dims " + std::to_string(dim) + " " + std::to_string(value_dim), blamed,
             [](RunParams&) {});
  };
  refuse(12, 16, "q");
  refuse(264, 16, "q");
  refuse(576, 16, "q");
  refuse(16, 20, "out");
  refuse(16, 512, "out");
  Case pages = base_case(Pool::kPaged);
  pages.page = 1025;
  Fixture f(pages);
  f.refuse("pages of 1025", "cache.k", [](RunParams&) {});
  f.refuse("pages of 0", "cache.k", [](RunParams& p) {
    for (TensorView* v : {&p.cache.k, &p.cache.v, &p.cache.k_scales, &p.cache.v_scales})
      v->shape[1] = 0;
  });
  Case wide = base_case(Pool::kPaged);
  wide.kv = DType::kBFloat16;
  wide.granularity = 0;
  Fixture unquantised(wide);
  std::vector<float> scales(1 << 14);
  unquantised.refuse("scales of a 16-bit cache", "cache.k_scales", [&](RunParams& p) {
    p.cache.k_scales = TensorView(scales.data(), {p.cache.k.shape[0], 8, 2, 4});
  });
}

TEST(AttentionValidation, Contents) {
  // Each writes a wrong number and puts the right one back.
  struct Entry {
    const char* what;
    const char* blamed;
    TensorView (*of)(const RunParams&);
    std::int64_t index, value;
  };
  const auto cu = [](const RunParams& p) { return p.cu_seqlens; };
  const auto lengths = [](const RunParams& p) { return p.kv_lengths; };
  const auto table = [](const RunParams& p) { return p.cache.page_table; };
  const Entry entries[] = {
      {"falling offsets", "cu_seqlens", cu, 1, 100},
      {"negative offset", "cu_seqlens", cu, 0, -1},
      {"offset past the tokens", "cu_seqlens", cu, 2, 9},
      {"negative length", "kv_lengths", lengths, 0, -1},
      {"length past the table", "kv_lengths", lengths, 1, 41},  // 5 columns of 8
      {"huge length", "kv_lengths", lengths, 1, std::int64_t{1} << 60},
      {"needed page -1", "cache.page_table", table, 2, -1},  // the third page of 20 keys
      {"needed page past the pool", "cache.page_table", table, 0, 8},
      {"needed page 2^40", "cache.page_table", table, 0, std::int64_t{1} << 40},
  };
  Fixture f(base_case(Pool::kPaged));
  ASSERT_EQ(f.memory.params().cache.page_table.shape[1], 5);
  ASSERT_EQ(f.memory.params().cache.k.shape[0], 8);
  for (const Entry& e : entries) {
    std::int64_t& entry = number(e.of(f.memory.params()), e.index);
    const std::int64_t right = entry;
    entry = e.value;
    f.refuse(e.what, e.blamed, [](RunParams&) {});
    entry = right;
  }
  EXPECT_NO_THROW(attention::run(f.memory.params()));

  Fixture r(base_case(Pool::kRagged));
  for (auto [index, value] : {std::pair<std::int64_t, std::int64_t>{0, -1}, {1, 0}, {2, 1000}}) {
    std::int64_t& entry = number(r.memory.params().cache.cu_kv, index);
    const std::int64_t right = entry;
    entry = value;
    r.refuse("cu_kv " + std::to_string(value), "cache.cu_kv", [](RunParams&) {});
    entry = right;
  }

  Case by_starts = base_case(Pool::kDense);
  by_starts.by_starts = true;
  Fixture s(by_starts);
  const RunParams p = s.memory.params();
  const std::int64_t right = number(p.starts, 0);
  for (std::int64_t wrong : {std::int64_t{-1}, std::int64_t{100}, number(p.starts, 1) + 1}) {
    number(p.starts, 0) = wrong;
    s.refuse("start " + std::to_string(wrong), "starts", [](RunParams&) {});
  }
  number(p.starts, 0) = right;
  number(p.lengths, 0) = -1;
  s.refuse("length -1", "lengths", [](RunParams&) {});
}

TEST(AttentionValidation, SharedMemory) {
  Fixture f(base_case(Pool::kPaged));
  f.refuse("out in q", "out", [](RunParams& p) { p.out.data = p.q.data; });
  f.refuse("lse in out", "out", [](RunParams& p) { p.lse.data = p.out.data; });
  f.refuse("lse in the page table", "lse",
           [](RunParams& p) { p.lse.data = p.cache.page_table.data; });
  f.refuse("out in the keys", "out", [](RunParams& p) { p.out.data = p.cache.k.data; });
  f.refuse("out in the values", "out", [](RunParams& p) { p.out.data = p.cache.v.data; });
  f.refuse("out in the scales", "out", [](RunParams& p) { p.out.data = p.cache.v_scales.data; });
  f.refuse("lse in the sinks", "lse", [](RunParams& p) { p.lse.data = p.sinks.data; });
  f.refuse("lse in the lengths", "lse", [](RunParams& p) { p.lse.data = p.kv_lengths.data; });
}

TEST(AttentionValidation, CacheFactories) {
  std::vector<float> memory(2 * 2 * 3 * 4 * 1 * 8);
  const TensorView blocks(memory.data(), {2, 2, 3, 4, 1, 8});
  const auto argument = [](const std::function<void()>& make) -> std::string {
    try {
      make();
    } catch (const hyla::InvalidArgument& error) {
      return error.argument();
    }
    return "accepted";
  };
  EXPECT_EQ(argument([&] { KvCache::blocks(blocks, 2, {}); }), "accepted");
  EXPECT_EQ(argument([&] { KvCache::blocks(blocks, 3, {}); }), "layer");
  EXPECT_EQ(argument([&] { KvCache::blocks(blocks, -1, {}); }), "layer");
  EXPECT_EQ(argument([&] { KvCache::blocks(blocks.select(0, 0), 0, {}); }), "blocks");
  EXPECT_EQ(argument([&] { KvCache::blocks({}, 0, {}); }), "blocks");
  EXPECT_EQ(argument([&] { KvCache::fused(blocks, {}); }), "pages");
  EXPECT_EQ(argument([&] { KvCache::fused(blocks.select(1, 0), {}); }),
            "pages");  // [2, 3, ..]: no pair
  EXPECT_EQ(argument([&] { KvCache::fused(blocks.select(2, 0), {}); }), "accepted");
}

TEST(AttentionValidation, Explain) {
  Fixture f(base_case(Pool::kPaged));
  const auto candidates = hyla::explain(f.memory.params());
  ASSERT_FALSE(candidates.empty());
  EXPECT_EQ(candidates.back().implementation, "reference");
  EXPECT_TRUE(candidates.back().supported);
  RunParams wrong = f.memory.params();
  wrong.q = {};
  EXPECT_THROW(hyla::explain(wrong), hyla::InvalidArgument);
  EXPECT_EQ(hyla::implementations("attention.run").back(), "reference");
  EXPECT_EQ(hyla::implementations("attention.append").back(), "reference");
}

}  // namespace
