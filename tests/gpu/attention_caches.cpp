// Caches that the problem strings do not name (HND, fused, ragged, MLA) on the GPU, and index
// tensors that lie: a page outside the pool, a length beyond the table.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "gpu/check.h"

namespace hyla::testing {
namespace {

using attention::KvCache;
using attention::RunParams;
using GpuCaches = Gpu;

// One of `cache.k` and `cache.v` again, in other memory of the given shape; `place` says where
// [page or row, token, head, d] of the old one goes.
template <class Place>
TensorView moved(Call& call, const TensorView& old, const std::string& name,
                 std::vector<std::int64_t> shape, Place place) {
  call.buffers.emplace_back(name, old.dtype, std::move(shape));
  const TensorView to = call.buffers.back().view();
  for (std::int64_t a = 0; a < old.shape[0]; ++a) {
    for (std::int64_t t = 0; t < old.shape[1]; ++t) {
      for (std::int64_t h = 0; h < old.shape[2]; ++h) {
        for (std::int64_t d = 0; d < old.shape[3]; ++d) {
          const std::int64_t from =
              a * old.strides[0] + t * old.strides[1] + h * old.strides[2] + d;
          if (!is_poison(old, from)) {
            store_element(to, place(to, a, t, h, d), load_element(old, from));
          }
        }
      }
    }
  }
  return to;
}

std::int64_t swapped(const TensorView& to, std::int64_t a, std::int64_t t, std::int64_t h,
                     std::int64_t d) {
  return a * to.strides[0] + h * to.strides[1] + t * to.strides[2] + d;
}

const std::vector<std::string> kProblems = {
    "attention_decode:b=3,hq=4,hk=2,kvlen=1+140+37,page=16,d=64,seed=",
    "attention_decode:b=2,t=4,hq=8,hk=2,kvlen=30+141,page=8,d=128,kv=e4m3,seed=",
    "attention_prefill:lens=20+0+31,kvlen=40,hq=4,hk=2,page=32,d=256,seed=",
    "attention_prefill:lens=40+90,kvlen=140,hq=4,hk=2,page=8,d=128,kv=int8,seed=",
    "attention_prefill:lens=150+90,kvlen=250,hq=8,hk=1,page=8,d=128,kv=e4m3,seed="};

TEST_F(GpuCaches, HeadsBeforeTokens) {
  int seed = 0;
  for (const std::string& problem : kProblems) {
    Call call = random_call(parse_problem(problem + std::to_string(++seed)));
    auto& p = std::get<RunParams>(call.params);
    const TensorView k = p.cache.k, v = p.cache.v;
    const std::vector<std::int64_t> shape = {k.shape[0], k.shape[2], k.shape[1], k.shape[3]};
    p.cache.k = moved(call, k, "k_hnd", shape, swapped);
    p.cache.v = moved(call, v, "v_hnd", shape, swapped);
    const auto swap_scales = [&](TensorView& scales, const char* name) {
      if (!scales.present()) return;
      scales = moved(call, scales, name,
                     {scales.shape[0], scales.shape[2], scales.shape[1], scales.shape[3]}, swapped);
    };
    swap_scales(p.cache.k_scales, "k_scales_hnd");
    swap_scales(p.cache.v_scales, "v_scales_hnd");
    p.cache.layout = attention::KvLayout::kHND;
    EXPECT_GE(check_call(problem, call), 2);
  }
}

TEST_F(GpuCaches, OnePoolForKeysAndValuesOfAllLayers) {
  int seed = 10;
  for (const std::string& problem : kProblems) {
    Call call = random_call(parse_problem(problem + std::to_string(++seed)));
    auto& p = std::get<RunParams>(call.params);
    const TensorView k = p.cache.k, v = p.cache.v;
    // [P, 2, layers, S, H, D]
    call.buffers.emplace_back(
        "blocks", k.dtype,
        std::vector<std::int64_t>{k.shape[0], 2, 3, k.shape[1], k.shape[2], k.shape[3]});
    const TensorView blocks = call.buffers.back().view();
    const TensorView scales[] = {p.cache.k_scales, p.cache.v_scales};
    p.cache = KvCache::blocks(blocks, 1, p.cache.page_table);
    p.cache.k_scales = scales[0], p.cache.v_scales = scales[1];
    for (const auto& [from, to] : {std::pair{k, p.cache.k}, std::pair{v, p.cache.v}}) {
      std::vector<double> values;
      for_each_element(from, [&](std::int64_t, std::int64_t offset) {
        values.push_back(is_poison(from, offset) ? NAN : load_element(from, offset));
      });
      for_each_element(to, [&](std::int64_t i, std::int64_t offset) {
        const double x = values[static_cast<std::size_t>(i)];
        if (!std::isnan(x)) store_element(to, offset, x);
      });
    }
    EXPECT_GE(check_call(problem, call), 2);
  }
}

TEST_F(GpuCaches, Ragged) {
  int seed = 20;
  for (const char* problem :
       {"attention_decode:b=3,hq=4,hk=2,kvlen=1+140+37,page=0,d=64,seed=",
        "attention_prefill:lens=20+31,kvlen=40,hq=4,hk=2,page=0,d=96,seed=",
        "attention_prefill:lens=150+91,kvlen=240,hq=8,hk=1,page=0,d=128,kv=int8,seed="}) {
    Call call = random_call(parse_problem(problem + std::to_string(++seed)));
    auto& p = std::get<RunParams>(call.params);
    const TensorView k = p.cache.k, v = p.cache.v, lengths = p.kv_lengths;
    std::vector<std::int64_t> begins{2};  // tokens of nobody in front
    for (std::int64_t row = 0; row < lengths.shape[0]; ++row) {
      begins.push_back(begins.back() +
                       static_cast<std::int64_t>(load_element(lengths, row * lengths.strides[0])));
    }
    call.buffers.emplace_back("cu_kv", DType::kInt32,
                              std::vector<std::int64_t>{static_cast<std::int64_t>(begins.size())});
    const TensorView offsets = call.buffers.back().view();
    for (std::size_t i = 0; i < begins.size(); ++i) {
      store_element(offsets, static_cast<std::int64_t>(i), static_cast<double>(begins[i]));
    }
    const auto place = [&](const TensorView& to, std::int64_t row, std::int64_t t, std::int64_t h,
                           std::int64_t d) {
      return (begins[static_cast<std::size_t>(row)] + t) * to.strides[0] + h * to.strides[1] + d;
    };
    const std::vector<std::int64_t> shape = {begins.back() + 3, k.shape[2], k.shape[3]};
    const TensorView new_k = moved(call, k, "k_ragged", shape, place);
    const TensorView new_v = moved(call, v, "v_ragged", shape, place);
    const TensorView old[] = {p.cache.k_scales, p.cache.v_scales};
    p.cache = KvCache::ragged(new_k, new_v, offsets);
    if (old[0].present()) {
      const std::vector<std::int64_t> scales = {shape[0], shape[1], old[0].shape[3]};
      p.cache.k_scales = moved(call, old[0], "k_scales_ragged", scales, place);
      p.cache.v_scales = moved(call, old[1], "v_scales_ragged", scales, place);
    }
    p.kv_lengths = {};
    EXPECT_GE(check_call(problem, call), 2);
  }
}

TEST_F(GpuCaches, Mla) {
  Call call;
  RunParams p;
  const auto add = [&](const char* name, DType dtype, std::vector<std::int64_t> shape) {
    call.buffers.emplace_back(name, dtype, std::move(shape));
    return call.buffers.back().view();
  };
  call.buffers.reserve(8);
  p.q = add("q", DType::kBFloat16, {3, 16, 576});
  const TensorView pages = add("pages", DType::kBFloat16, {5, 8, 1, 576});
  p.out = add("out", DType::kBFloat16, {3, 16, 512});
  p.lse = add("lse", DType::kFloat32, {3, 16});
  for (Buffer& buffer : call.buffers) {
    if (buffer.name() == "q") buffer.fill_normal(1, 0, 1);
    if (buffer.name() == "pages") buffer.fill_normal(2, 0, 1);
  }
  const auto integers = [&](const char* name, std::vector<std::int64_t> shape,
                            const std::vector<double>& values) {
    const TensorView view = add(name, DType::kInt32, std::move(shape));
    call.buffers.back().fill_by(
        [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
    return view;
  };
  const TensorView table = integers("page_table", {2, 3}, {4, 1, 0, 2, -1, -1});
  p.kv_lengths = integers("kv_lengths", {2}, {21, 6});
  p.cu_seqlens = integers("cu_seqlens", {3}, {0, 1, 3});
  p.cache = KvCache::paged(pages, pages.slice(3, 0, 512), table);
  call.params = p;
  EXPECT_EQ(check_call("MLA", call), 1);
}

void set_index(const Call& call, const std::string& name, std::int64_t offset, double value) {
  for (const NamedTensor& t : tensors(call)) {
    if (t.name == name) store_element(t.view, offset, value);
  }
}

std::vector<double> outputs(const Call& call) {
  const TensorView& out = std::get<RunParams>(call.params).out;
  std::vector<double> values;
  for_each_element(
      out, [&](std::int64_t, std::int64_t offset) { values.push_back(load_element(out, offset)); });
  return values;
}

TEST_F(GpuCaches, APageOutsideThePoolIsAPageOfZeros) {
  CaseOptions options;
  options.shuffled = true;  // a pool with more pages than are used
  int seed = 30;
  for (const std::string& problem : kProblems) {
    options.wide_indices = seed % 2 == 0;
    Call good = random_call(parse_problem(problem + std::to_string(++seed)), options);
    const auto& p = std::get<RunParams>(good.params);
    const std::int64_t columns = p.cache.page_table.shape[1];
    std::vector<bool> used(static_cast<std::size_t>(p.cache.k.shape[0]), false);
    for_each_element(p.cache.page_table, [&](std::int64_t, std::int64_t offset) {
      const auto page = static_cast<std::int64_t>(load_element(p.cache.page_table, offset));
      if (page < p.cache.k.shape[0]) used[static_cast<std::size_t>(page)] = true;
    });
    std::int64_t spare = 0;
    while (used[static_cast<std::size_t>(spare)]) ++spare;
    for (const TensorView& half : {p.cache.k, p.cache.v, p.cache.k_scales, p.cache.v_scales}) {
      if (!half.present()) continue;
      const TensorView page = half.slice(0, spare, 1);
      for_each_element(page, [&](std::int64_t, std::int64_t at) { store_element(page, at, 0); });
    }
    const std::int64_t needed = columns;  // column 0 of row 1
    set_index(good, "cache.page_table", needed, static_cast<double>(spare));
    const DeviceCall gpu(good);
    for (const Candidate& candidate : gpu.explain()) {
      if (!candidate.supported) continue;
      gpu.upload(good);
      gpu.launch(candidate.implementation);
      const std::vector<double> expected = outputs(gpu.result());
      std::vector<double> lies = {-1, -7, 2147483647, static_cast<double>(p.cache.k.shape[0])};
      // Below 0, and their lower halves not; beyond the pool, and their lower halves not.
      if (options.wide_indices) lies.insert(lies.end(), {-1e12, -0x1p40, 0x1p40});
      for (double lie : lies) {
        Call bad = good;
        set_index(bad, "cache.page_table", needed, lie);
        gpu.upload(bad);
        gpu.launch(candidate.implementation);
        const Call result = gpu.result();
        EXPECT_EQ(outputs(result), expected) << problem << " " << candidate.implementation;
        for (const Buffer& buffer : result.buffers) EXPECT_FALSE(buffer.check_guards());
      }
    }
  }
}

TEST_F(GpuCaches, ALengthBeyondTheTableHarmsNobodyElse) {
  int seed = 40;
  for (const char* problem : {"attention_decode:b=3,hq=4,hk=2,kvlen=140+141+37,page=16,d=64,seed=",
                              "attention_decode:b=3,hq=4,hk=2,kvlen=40,page=0,d=128,seed=",
                              "attention_prefill:lens=100x3,kvlen=140+141+137,hq=8,hk=1,page=16,"
                              "d=64,kv=e4m3,seed="}) {
    const Call good = random_call(parse_problem(problem + std::to_string(++seed)));
    const DeviceCall gpu(good);
    for (const Candidate& candidate : gpu.explain()) {
      if (!candidate.supported) continue;
      gpu.upload(good);
      gpu.launch(candidate.implementation);
      const std::vector<double> expected = outputs(gpu.result());
      for (double lie : {1000000.0, 2147483647.0, -3.0}) {
        Call bad = good;
        set_index(bad, "kv_lengths", 1, lie);
        gpu.upload(bad);
        gpu.launch(candidate.implementation);
        const Call result = gpu.result();
        const std::vector<double> got = outputs(result);
        // Rows are cut differently when one grows, so sums are only close.
        const std::size_t row = got.size() / 3;
        for (std::size_t i = 0; i < got.size(); ++i) {
          if (i / row == 1) continue;
          EXPECT_NEAR(got[i], expected[i], 0x1p-6) << candidate.implementation;
        }
        for (const Buffer& buffer : result.buffers) EXPECT_FALSE(buffer.check_guards());
      }
    }
  }
}

// It has no more keys than the tensor, and is done in no time.
TEST_F(GpuCaches, ARaggedRowEndsWithItsTensor) {
  for (const char* types : {"io=bf16", "io=f16,kv=e4m3"}) {
    Call call = random_call(
        parse_problem(std::string("attention_prefill:lens=20+90,kvlen=40+140,hq=4,hk=2,page=0,"
                                  "d=128,") +
                      types));
    auto& p = std::get<RunParams>(call.params);
    const std::int64_t heads = p.cache.k.shape[2], dim = p.cache.k.shape[3];
    // The rows of a dense cache, one after the other.
    const auto flat = [&](TensorView& view, std::int64_t width) {
      if (!view.present()) return;
      view =
          TensorView::dense(view.data, view.dtype, {view.shape[0] * view.shape[1], heads, width});
    };
    const std::int64_t capacity = p.cache.k.shape[1];
    flat(p.cache.k, dim), flat(p.cache.v, dim);
    flat(p.cache.k_scales, p.cache.k_scales.shape[3]);
    flat(p.cache.v_scales, p.cache.v_scales.shape[3]);
    call.buffers.emplace_back("cu_kv", DType::kInt32, std::vector<std::int64_t>{3});
    call.buffers.back().fill_by([&](std::int64_t i) { return static_cast<double>(i * capacity); });
    p.cache.kind = KvCache::Kind::kRagged;
    p.cache.cu_kv = call.buffers.back().view();
    p.kv_lengths = {};
    const DeviceCall gpu(call);
    for (const Candidate& candidate : gpu.explain()) {
      if (!candidate.supported) continue;
      Call bad = call;
      set_index(bad, "cache.cu_kv", 2, 2147483647.0);
      gpu.upload(bad);
      const auto begin = std::chrono::steady_clock::now();
      gpu.launch(candidate.implementation);
      const Call result = gpu.result();
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500))
          << candidate.implementation;
      for (const Buffer& buffer : result.buffers) EXPECT_FALSE(buffer.check_guards());
    }
  }
}

// One scale for all tokens and heads, or one a head, through strides of zero.
TEST_F(GpuCaches, OneScaleServesMany) {
  for (const char* rows :
       {"attention_decode:b=3,kvlen=1+333+97", "attention_decode:b=2,t=4,kvlen=65+140",
        "attention_prefill:lens=90+0+170,kvlen=290+0+170"}) {
    for (const char* types : {"kv=e4m3", "kv=int8,io=f16"}) {
      for (const char* dims :
           {"hq=8,hk=2,d=128,page=16", "hq=4,hk=2,d=256,page=64", "hq=4,hk=2,d=64,page=0"}) {
        for (const bool a_head : {false, true}) {
          const std::string problem = std::string(rows) + "," + types + "," + dims;
          Call call = random_call(parse_problem(problem), CaseOptions{});
          auto& p = std::get<attention::RunParams>(call.params);
          for (TensorView* scales : {&p.cache.k_scales, &p.cache.v_scales}) {
            ASSERT_TRUE(scales->present());
            const int heads = p.cache.layout == attention::KvLayout::kHND ? 1 : 2;
            for (int d = 0; d < scales->rank; ++d) {
              if (!a_head || d != heads) scales->strides[d] = 0;
            }
            // The first of them may belong to no row.
            for (std::int64_t h = 0; h < (a_head ? 2 : 1); ++h) {
              store_element(*scales, h * scales->strides[heads],
                            0.02 + 0.01 * static_cast<double>(h));
            }
          }
          check_call(problem, call);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hyla::testing
