// Every argument of attention.append, wrong in every way.
#include <gtest/gtest.h>
#include <hyla/attention.h>
#include <hyla/backend.h>

#include <cstdint>

#include "ops/attention_faults.h"
#include "ops/attention_memory.h"

namespace {

using namespace attention_test;
namespace attention = hyla::attention;
using attention::AppendParams;

Case base_case() {
  Case c;
  c.kv = DType::kInt8;
  c.granularity = 4;
  c.index = DType::kInt64;
  c.queries = {2, 3};
  c.keys = {20, 18};
  c.page = 8;
  c.causal = false;
  return c;
}

struct Fixture {
  Memory memory{base_case()};
  std::vector<float> k, v, cos, sin;

  Fixture()
      : k(static_cast<std::size_t>(memory.total() * 2 * 16), 1.0f),
        v(k),
        cos(20 * 4, 1.0f),
        sin(20 * 4) {}

  AppendParams params() {
    AppendParams p;
    p.cache = memory.cache();
    p.k = TensorView(k.data(), {memory.total(), 2, 16});
    p.v = TensorView(v.data(), {memory.total(), 2, 16});
    memory.set_rows(p);
    p.kv_lengths = memory.params().kv_lengths;
    p.rope.cos = TensorView(cos.data(), {20, 4});
    p.rope.sin = TensorView(sin.data(), {20, 4});
    return p;
  }

  void refuse(const Fault<AppendParams>& fault) {
    expect_refused([](const AppendParams& p) { attention::append(p); }, params(), fault,
                   [&] {
                     return std::vector<std::vector<unsigned char>>{
                         memory.k_storage().bytes(), memory.v_storage().bytes(),
                         memory.k_scale_storage().bytes(), memory.v_scale_storage().bytes()};
                   });
  }
  void refuse(const std::string& what, const std::string& blamed,
              std::function<void(AppendParams&)> apply) {
    refuse(Fault<AppendParams>{what, blamed, std::move(apply)});
  }
};

std::int64_t& number(const TensorView& view, std::int64_t i) {
  return static_cast<std::int64_t*>(view.data)[i];
}

TEST(AttentionAppendValidation, TheCallIsValidAndEveryTensorFaultIsNot) {
  Fixture f;
  const std::vector<Argument<AppendParams>> arguments = {
      {"k",
       [](AppendParams& p) -> TensorView& { return p.k; },
       true,
       true,
       false,
       {{0, "v"}, {1, "v"}, {2, "k"}}},
      {"v",
       [](AppendParams& p) -> TensorView& { return p.v; },
       true,
       true,
       false,
       {{0, "v"}, {1, "v"}, {2, "v"}}},
      {"cache.k",
       [](AppendParams& p) -> TensorView& { return p.cache.k; },
       true,
       true,
       true,
       {{0, "cache.v"}, {1, "cache.v"}, {2, "cache.k"}, {3, "cache.k"}}},
      {"cache.v",
       [](AppendParams& p) -> TensorView& { return p.cache.v; },
       true,
       true,
       true,
       {{0, "cache.v"}, {1, "cache.v"}, {2, "cache.v"}, {3, "cache.v"}}},
      {"cache.k_scales",
       [](AppendParams& p) -> TensorView& { return p.cache.k_scales; },
       false,
       false,
       true,
       {{0, "cache.k_scales"}, {3, "cache.k_scales"}}},
      {"cache.v_scales",
       [](AppendParams& p) -> TensorView& { return p.cache.v_scales; },
       true,
       false,
       true,
       {{1, "cache.v_scales"}, {3, "cache.v_scales"}}},
      {"cache.page_table",
       [](AppendParams& p) -> TensorView& { return p.cache.page_table; },
       true,
       false,
       false,
       {{0, "cache.page_table"}}},
      {"cu_seqlens",
       [](AppendParams& p) -> TensorView& { return p.cu_seqlens; },
       true,
       false,
       false,
       {{0, "cache.page_table"}}},
      {"kv_lengths",
       [](AppendParams& p) -> TensorView& { return p.kv_lengths; },
       true,
       false,
       false,
       {{0, "kv_lengths"}}},
      {"rope.cos",
       [](AppendParams& p) -> TensorView& { return p.rope.cos; },
       false,
       false,
       false,
       {{0, "rope.sin"}, {1, "rope.sin"}}},
      {"rope.sin",
       [](AppendParams& p) -> TensorView& { return p.rope.sin; },
       true,
       false,
       false,
       {{0, "rope.sin"}, {1, "rope.sin"}}},
  };
  for (const auto& fault : tensor_faults(arguments)) f.refuse(fault);
  EXPECT_NO_THROW(attention::append(f.params()));
}

TEST(AttentionAppendValidation, Options) {
  Fixture f;
  f.refuse("no cache", "cache", [](AppendParams& p) { p.cache = {}; });
  f.refuse("sines alone", "rope.sin", [](AppendParams& p) { p.rope.cos = {}; });
  f.refuse("too few positions", "rope.cos",
           [](AppendParams& p) { p.rope.cos.shape[0] = p.rope.sin.shape[0] = 19; });
  f.refuse("more angles than pairs", "rope.cos", [](AppendParams& p) {
    p.rope.cos = TensorView(static_cast<float*>(p.rope.cos.data), {8, 9});
    p.rope.sin = TensorView(static_cast<float*>(p.rope.sin.data), {8, 9});
  });
  f.refuse("no angles", "rope.cos",
           [](AppendParams& p) { p.rope.cos.shape[1] = p.rope.sin.shape[1] = 0; });
  f.refuse("values of another dtype", "v", [](AppendParams& p) { p.v.dtype = DType::kBFloat16; });
  f.refuse("values without a place", "cache.v", [](AppendParams& p) { p.cache.v = {}; });
  f.refuse("scales of values alone", "cache.v_scales",
           [](AppendParams& p) { p.cache.v = p.v = {}; });
  f.refuse("unknown implementation", "impl", [](AppendParams& p) { p.impl = "none"; });
}

TEST(AttentionAppendValidation, GivenScales) {
  Fixture f;
  const auto one_for_all = [](AppendParams& p) {
    p.given_scales = true;
    for (TensorView* scales : {&p.cache.k_scales, &p.cache.v_scales}) {
      for (std::int64_t& stride : scales->strides) stride = 0;
    }
  };
  f.refuse("scales that are written, one for all", "cache.k_scales", [&](AppendParams& p) {
    one_for_all(p);
    p.given_scales = false;
  });
  f.refuse("no scales", "given_scales", [](AppendParams& p) {
    p.given_scales = true;
    p.cache.k_scales = p.cache.v_scales = {};
  });
  f.refuse("keys' scales alone", "cache.v_scales", [](AppendParams& p) {
    p.given_scales = true;
    p.cache.v_scales = {};
  });
  f.refuse("scales of the new tokens", "cache.k", [](AppendParams& p) {
    p.given_scales = true;
    p.cache.k_scales.data = p.cache.k.data;
  });
  AppendParams p = f.params();
  one_for_all(p);
  p.cache.v_scales.data = p.cache.k_scales.data;
  EXPECT_NO_THROW(attention::append(p));
}

TEST(AttentionAppendValidation, Contents) {
  Fixture f;
  const AppendParams p = f.params();
  struct Entry {
    const char* blamed;
    TensorView view;
    std::int64_t index, value;
  };
  for (const Entry& e :
       {Entry{"kv_lengths", p.kv_lengths, 1, 2},  // fewer than the three tokens added
        Entry{"kv_lengths", p.kv_lengths, 0, 41}, Entry{"kv_lengths", p.kv_lengths, 0, -1},
        Entry{"cache.page_table", p.cache.page_table, 2, -1},
        Entry{"cache.page_table", p.cache.page_table, 2, 8},
        Entry{"cu_seqlens", p.cu_seqlens, 2, 100}}) {
    const std::int64_t right = number(e.view, e.index);
    number(e.view, e.index) = e.value;
    f.refuse(std::string(e.blamed) + " " + std::to_string(e.value), e.blamed, [](AppendParams&) {});
    number(e.view, e.index) = right;
  }
  // A page that holds older tokens only is not needed.
  const std::int64_t right = number(p.cache.page_table, 0);
  number(p.cache.page_table, 0) = -1;
  EXPECT_NO_THROW(attention::append(f.params()));
  number(p.cache.page_table, 0) = right;
}

TEST(AttentionAppendValidation, SharedMemory) {
  Fixture f;
  f.refuse("keys in values", "cache.k", [](AppendParams& p) { p.cache.v.data = p.cache.k.data; });
  f.refuse("tokens in the pool", "cache.k", [](AppendParams& p) { p.k.data = p.cache.k.data; });
  f.refuse("tokens in the scales", "cache.k_scales",
           [](AppendParams& p) { p.v.data = p.cache.k_scales.data; });
  f.refuse("scales in scales", "cache.k_scales",
           [](AppendParams& p) { p.cache.v_scales.data = p.cache.k_scales.data; });
  f.refuse("angles in the pool", "cache.v",
           [](AppendParams& p) { p.rope.cos.data = p.cache.v.data; });
}

TEST(AttentionAppendValidation, Explain) {
  Fixture f;
  EXPECT_TRUE(hyla::explain(f.params()).back().supported);
  AppendParams wrong = f.params();
  wrong.k = {};
  EXPECT_THROW(hyla::explain(wrong), hyla::InvalidArgument);
}

}  // namespace
