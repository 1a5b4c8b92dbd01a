// attention.append with a slot for every token: what it writes is what rows, lengths and pages
// would, and every argument that does not go with slots is refused by name.
#include <gtest/gtest.h>
#include <hyla/attention.h>
#include <hyla/backend.h>
#include <hyla/error.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ops/attention_faults.h"
#include "ops/support/implementations.h"

namespace {

namespace attention = hyla::attention;
using attention::AppendParams;
using attention::KvCache;
using hyla::TensorView;

constexpr std::int64_t kPages = 4, kPage = 4, kTokens = 5, kHeads = 2, kDim = 8;
constexpr float kUntouched = -100;

// Five tokens whose every number says which token, head and half it is of.
struct Fixture {
  std::vector<float> k, v, k_pages, v_pages, cos, sin;
  std::vector<std::int64_t> slots = {9, -1, 0, 15, -7}, positions = {3, 99, 0, 1, -5};

  Fixture() {
    for (std::int64_t i = 0; i < kTokens * kHeads * kDim; ++i) {
      k.push_back(static_cast<float>(1 + i));
      v.push_back(static_cast<float>(-1 - i));
    }
    reset();
    for (std::int64_t i = 0; i < 4 * kDim / 2; ++i) {
      cos.push_back(i / (kDim / 2) == 0 ? 1.0f : 0.0f);  // position 0 stays, others turn by 90
      sin.push_back(i / (kDim / 2) == 0 ? 0.0f : 1.0f);
    }
  }
  void reset() {
    k_pages.assign(static_cast<std::size_t>(kPages * kPage * kHeads * kDim), kUntouched);
    v_pages = k_pages;
  }

  AppendParams params(bool rope = false) {
    AppendParams p;
    p.cache = KvCache::paged(TensorView(k_pages.data(), {kPages, kPage, kHeads, kDim}),
                             TensorView(v_pages.data(), {kPages, kPage, kHeads, kDim}), {});
    p.k = TensorView(k.data(), {kTokens, kHeads, kDim});
    p.v = TensorView(v.data(), {kTokens, kHeads, kDim});
    p.slots = TensorView(slots.data(), {kTokens});
    if (rope) {
      p.rope.cos = TensorView(cos.data(), {4, kDim / 2});
      p.rope.sin = TensorView(sin.data(), {4, kDim / 2});
      p.positions = TensorView(positions.data(), {kTokens});
    }
    return p;
  }

  void refuse(const std::string& what, const std::string& blamed, const std::string& says,
              const std::function<void(AppendParams&)>& spoil, bool rope = false) {
    AppendParams p = params(rope);
    spoil(p);
    try {
      attention::append(p);
      ADD_FAILURE() << what << ": not refused";
    } catch (const hyla::InvalidArgument& error) {
      EXPECT_EQ(error.argument(), blamed) << what << ": " << error.what();
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos)
          << what << ": " << error.what();
    }
    for (const float number : k_pages) EXPECT_EQ(number, kUntouched) << what;
  }
};

std::vector<std::string> cpu_implementations() {
  Fixture f;
  return hyla::testing::implementations_of(f.params());
}

// By layout: token t of the flat order of pages.
std::int64_t offset(attention::KvLayout layout, std::int64_t slot, std::int64_t head) {
  const std::int64_t page = slot / kPage, token = slot % kPage;
  return layout == attention::KvLayout::kNHD ? ((page * kPage + token) * kHeads + head) * kDim
                                             : ((page * kHeads + head) * kPage + token) * kDim;
}

TEST(AttentionAppendSlots, EveryTokenGoesToItsSlotAndOthersNowhere) {
  for (const std::string& impl : cpu_implementations()) {
    for (const attention::KvLayout layout :
         {attention::KvLayout::kNHD, attention::KvLayout::kHND}) {
      for (const bool dense : {false, true}) {
        Fixture f;
        AppendParams p = f.params();
        if (dense) p.cache.kind = KvCache::Kind::kDense;
        p.cache.layout = layout;
        if (layout == attention::KvLayout::kHND) {
          p.cache.k = TensorView(f.k_pages.data(), {kPages, kHeads, kPage, kDim});
          p.cache.v = TensorView(f.v_pages.data(), {kPages, kHeads, kPage, kDim});
        }
        p.impl = impl.c_str();
        attention::append(p);
        std::vector<float> want_k(f.k_pages.size(), kUntouched), want_v = want_k;
        for (std::size_t t = 0; t < kTokens; ++t) {
          if (f.slots[t] < 0) continue;
          for (std::int64_t h = 0; h < kHeads; ++h) {
            for (std::int64_t d = 0; d < kDim; ++d) {
              const auto to = static_cast<std::size_t>(offset(layout, f.slots[t], h) + d);
              const auto from =
                  static_cast<std::size_t>((static_cast<std::int64_t>(t) * kHeads + h) * kDim + d);
              want_k[to] = f.k[from];
              want_v[to] = f.v[from];
            }
          }
        }
        EXPECT_EQ(f.k_pages, want_k) << impl;
        EXPECT_EQ(f.v_pages, want_v) << impl;
      }
    }
  }
}

TEST(AttentionAppendSlots, OfARaggedPoolASlotIsAToken) {
  for (const std::string& impl : cpu_implementations()) {
    Fixture f;
    AppendParams p = f.params();
    p.cache = KvCache::ragged(TensorView(f.k_pages.data(), {kPages * kPage, kHeads, kDim}),
                              TensorView(f.v_pages.data(), {kPages * kPage, kHeads, kDim}), {});
    p.impl = impl.c_str();
    attention::append(p);
    EXPECT_EQ(f.k_pages[9 * kHeads * kDim], f.k[0]) << impl;
    EXPECT_EQ(f.v_pages[0], f.v[2 * kHeads * kDim]) << impl;
    EXPECT_EQ(f.k_pages[kHeads * kDim], kUntouched) << impl;
  }
}

TEST(AttentionAppendSlots, KeysTurnByTheirPositionsWhateverTheirSlots) {
  for (const std::string& impl : cpu_implementations()) {
    Fixture f;
    AppendParams p = f.params(true);
    p.impl = impl.c_str();
    attention::append(p);
    const float* turned = f.k_pages.data() + 9 * kHeads * kDim;  // token 0, position 3
    const float* straight = f.k_pages.data();                    // token 2, position 0
    for (std::int64_t d = 0; d < kDim / 2; ++d) {
      EXPECT_EQ(turned[d], -f.k[static_cast<std::size_t>(d + kDim / 2)]) << impl;
      EXPECT_EQ(turned[d + kDim / 2], f.k[static_cast<std::size_t>(d)]) << impl;
      EXPECT_EQ(straight[d], f.k[static_cast<std::size_t>(2 * kHeads * kDim + d)]) << impl;
    }
    EXPECT_EQ(f.v_pages[9 * kHeads * kDim], f.v[0]) << impl;
  }
}

TEST(AttentionAppendSlots, NarrowIndicesAndNoTokens) {
  Fixture f;
  std::vector<std::int32_t> narrow(f.slots.begin(), f.slots.end());
  AppendParams p = f.params();
  p.slots = TensorView(narrow.data(), {kTokens});
  attention::append(p);
  EXPECT_EQ(f.k_pages[9 * kHeads * kDim], f.k[0]);
  f.reset();
  p = f.params();
  p.k.shape[0] = p.v.shape[0] = p.slots.shape[0] = 0;
  EXPECT_NO_THROW(attention::append(p));
  EXPECT_EQ(f.k_pages[0], kUntouched);
}

TEST(AttentionAppendSlots, WhatDoesNotGoWithSlotsIsRefusedByName) {
  Fixture f;
  std::vector<std::int64_t> few = {0, kTokens};
  const TensorView offsets(few.data(), {2}), one(few.data(), {1}), table(few.data(), {1, 2});
  f.refuse("offsets", "cu_seqlens", "beside slots",
           [&](AppendParams& p) { p.cu_seqlens = offsets; });
  f.refuse("starts", "starts", "beside slots", [&](AppendParams& p) { p.starts = one; });
  f.refuse("lengths", "lengths", "beside slots", [&](AppendParams& p) { p.lengths = one; });
  f.refuse("lengths of the cache", "kv_lengths", "beside slots",
           [&](AppendParams& p) { p.kv_lengths = one; });
  f.refuse("a page table", "cache.page_table", "beside slots",
           [&](AppendParams& p) { p.cache.page_table = table; });
  f.refuse("offsets of a ragged cache", "cache.cu_kv", "beside slots", [&](AppendParams& p) {
    p.cache = KvCache::ragged(TensorView(f.k_pages.data(), {16, kHeads, kDim}),
                              TensorView(f.v_pages.data(), {16, kHeads, kDim}), offsets);
  });
  f.refuse("too few slots", "slots", "5", [](AppendParams& p) { p.slots.shape[0] = 4; });
  f.refuse("slots of another rank", "slots", "", [](AppendParams& p) {
    p.slots = TensorView::dense(p.slots.data, hyla::DType::kInt64, {5, 1});
  });
  f.refuse("slots that are no integers", "slots", "float32",
           [&](AppendParams& p) { p.slots = TensorView(f.k.data(), {kTokens}); });
  f.refuse(
      "no positions", "positions", "rope is given beside slots",
      [](AppendParams& p) { p.positions = {}; }, true);
  f.refuse(
      "too few positions", "positions", "5", [](AppendParams& p) { p.positions.shape[0] = 4; },
      true);
  f.refuse(
      "positions without rope", "positions", "without rope.cos",
      [](AppendParams& p) { p.rope = {}; }, true);
  f.refuse("slots in the pool", "cache.k", "slots",
           [](AppendParams& p) { p.slots.data = p.cache.k.data; });
  AppendParams rows = f.params();
  rows.slots = {};
  rows.positions = TensorView(f.positions.data(), {kTokens});
  EXPECT_THROW(attention::append(rows), hyla::InvalidArgument);
}

TEST(AttentionAppendSlots, ContentsAreCheckedOnTheCpu) {
  Fixture f;
  f.slots[2] = kPages * kPage;
  f.refuse("beyond the pool", "slots", "16 at index 2", [](AppendParams&) {});
  f.slots[2] = std::int64_t{1} << 40;
  f.refuse("far beyond", "slots", "at index 2", [](AppendParams&) {});
  f.slots[2] = 0;
  f.positions[3] = 4;
  f.refuse(
      "beyond the tables", "positions", "4 at index 3", [](AppendParams&) {}, true);
  f.positions[3] = -1;
  f.refuse(
      "before the tables", "positions", "-1 at index 3", [](AppendParams&) {}, true);
}

}  // namespace
