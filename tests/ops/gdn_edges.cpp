// Empty batches, extreme numbers, pools beyond 2^31 elements, and the same bits every time.
#include <gtest/gtest.h>
#include <hyla/gdn.h>
#include <hyla/recurrence_kernel.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "ops/support/gdn_case.h"

namespace hyla::gdn_test {
namespace {

using gdn::StateLayout;

TEST(GdnEmpty, NoRows) {
  // No memory at all: every pointer is null.
  float* none = nullptr;
  std::int32_t* no_index = nullptr;
  const TensorView qk(none, {0, 2, 8}), v(none, {0, 4, 16}), pool(none, {0, 4, 16, 8});
  const TensorView gate(none, {0, 4}), slots(no_index, {0});
  const std::int32_t zero = 0;
  const TensorView cu_seqlens(&zero, {1});

  gdn::DecodeParams decode;
  decode.q = decode.k = qk;
  decode.v = decode.out = v;
  decode.state = pool;
  decode.gate = gdn::Gate::log(gate);
  decode.beta = gdn::Beta::probability(gate);
  decode.read_slots = decode.write_slots = slots;
  EXPECT_NO_THROW(gdn::decode(decode));

  gdn::MtpParams mtp;
  mtp.q = mtp.k = qk;
  mtp.v = mtp.out = v;
  mtp.state = pool;
  mtp.update_state = true;
  mtp.cu_seqlens = cu_seqlens;
  EXPECT_NO_THROW(gdn::mtp(mtp));
  mtp.cu_seqlens = {};
  mtp.starts = mtp.lengths = slots;
  EXPECT_NO_THROW(gdn::mtp(mtp));
  mtp.starts = mtp.lengths = {};
  mtp.q = mtp.k = TensorView(none, {0, 3, 2, 8});
  mtp.v = mtp.out = TensorView(none, {0, 3, 4, 16});
  EXPECT_NO_THROW(gdn::mtp(mtp));

  gdn::PrefillParams prefill;
  prefill.q = prefill.k = qk;
  prefill.v = prefill.out = v;
  prefill.cu_seqlens = cu_seqlens;
  EXPECT_NO_THROW(gdn::prefill(prefill));
  prefill.state = pool;
  EXPECT_NO_THROW(gdn::prefill(prefill));

  gdn::RecurrenceParams recurrence;
  recurrence.qkv = TensorView(none, {0, 2 * 2 * 8 + 4 * 16});
  recurrence.out = TensorView(none, {0, 4 * 16});
  recurrence.state = TensorView(none, {0, 4, 8, 16});
  recurrence.key_heads = 2;
  recurrence.value_heads = 4;
  recurrence.key_dim = 8;
  recurrence.value_dim = 16;
  recurrence.cu_seqlens = cu_seqlens;
  EXPECT_NO_THROW(gdn::recurrence(recurrence));
}

TEST(GdnEmpty, NoTokensPassTheStateThrough) {
  const Case p({.lengths = {0, 0, 0}, .padding = {1}, .slots = 12});
  const Results results = p.results(dense);
  const Tensor write = Tensor::of_indices(DType::kInt32, Index{10, 11, 7});
  const Packed packed(p, 1, 0);
  const auto check = [&](const std::function<void()>& run) {
    Expectation out(p.out, "out"), state(p.state, "state");
    p.expect_state(state, {10}, results, 0, 0, 0);
    p.expect_state(state, {7}, results, 2, 0, 0);
    run();
    out.check();
    state.check();
  };
  check([&] {
    gdn::PrefillParams params = p.prefill();
    params.write_slots = write.view();
    gdn::prefill(params);
  });
  check([&] {
    gdn::MtpParams params = p.mtp();
    params.write_slots = write.view();
    gdn::mtp(params);
  });
  check([&] {
    gdn::MtpParams params = p.mtp();  // [B, 0, ...]
    params.cu_seqlens = {};
    for (TensorView* view : {&params.q, &params.k, &params.v, &params.out}) {
      *view = view->slice(0, 0, 0).split(0, 1);
      view->shape[0] = p.rows;
      view->shape[1] = 0;
    }
    params.gate = {};
    params.beta = {};
    params.write_slots = write.view();
    gdn::mtp(params);
  });
  check([&] {
    gdn::RecurrenceParams params = packed.params(p);
    params.write_slots = write.view();
    gdn::recurrence(params);
  });
}

// Without the norm a key of any finite size is legal: no intermediate may overflow or vanish.
TEST(GdnExtremes, KeysOfAnySize) {
  for (double size : {1e4, 1e-20}) {
    for (DType io : {DType::kFloat32, DType::kBFloat16}) {
      Spec spec{.lengths = {3, 1}, .io = io};
      spec.l2norm = false;
      spec.beta = gdn::Beta::Kind::kNone;
      Case p(spec);
      for_each_index(p.k.shape(), [&](const Index& i) {
        const double x = p.k.get(i);
        if (!std::isnan(x)) p.k.set(i, x * size);
      });
      Case bent = p;
      for (std::int64_t row = 0; row < p.rows; ++row) {
        for (std::int64_t head = 0; head < p.heads; ++head) {
          HeadInput& in =
              bent.inputs[static_cast<std::size_t>(row)][static_cast<std::size_t>(head)];
          for_each_index({in.T, in.K}, [&](const Index& i) {
            in.k[static_cast<std::size_t>(i[0] * in.K + i[1])] =
                p.k.get({p.start(row) + i[0], head / 2, i[1]});
          });
        }
      }
      const Results results = bent.results(dense);
      Expectation out(bent.out, "out"), state(bent.state, "state");
      bent.expect_out(out, results);
      bent.expect_final(state, results);
      gdn::prefill(bent.prefill());
      out.check();
      state.check();
      for_each_index({bent.length(0), bent.heads, spec.V},
                     [&](const Index& i) { ASSERT_TRUE(std::isfinite(bent.out.get(i))); });
    }
  }
}

// k = 60000 e0 in float16: k*k is far beyond float16. S = k v^T, then k^T S = 3.6e9 v.
TEST(GdnExtremes, Float16KeysWhoseSquaresOverflowFloat16) {
  Tensor q(DType::kFloat16, {2, 1, 8}), k(DType::kFloat16, {2, 1, 8}),
      v(DType::kFloat16, {2, 1, 8});
  Tensor out(DType::kFloat16, {2, 1, 8}), state(DType::kFloat32, {1, 1, 8, 8});
  for (Tensor* tensor : {&q, &k, &v, &state}) {
    for_each_index(tensor->shape(), [&](const Index& i) { tensor->set(i, 0); });
  }
  for (std::int64_t t : {0, 1}) {
    k.set({t, 0, 0}, 60000);
    v.set({t, 0, 0}, 1);
    q.set({t, 0, 0}, 0x1p-20);
  }
  const Tensor offsets = Tensor::of_indices(DType::kInt32, Index{0, 2});
  gdn::PrefillParams params;
  params.q = q.view();
  params.k = k.view();
  params.v = v.view();
  params.out = out.view();
  params.state = state.view();
  params.cu_seqlens = offsets.view();
  params.scale = 1;
  gdn::prefill(params);
  // float16 has 60000 exactly. S1 = 60000; delta2 = 1 - 3.6e9; S2 = 60000 + 60000 * (1 - 3.6e9)
  const double s2 = 120000.0 - 60000.0 * 3.6e9;
  EXPECT_EQ(state.get({0, 0, 0, 0}), static_cast<double>(static_cast<float>(s2)));
  EXPECT_EQ(out.get({0, 0, 0}), static_cast<double>(static_cast<float>(float16(60000 * 0x1p-20f))));
  EXPECT_EQ(out.get({1, 0, 0}), -INFINITY);  // 2.16e14 * 2^-20 = 2e8 is beyond float16
}

class Pages {  // zero-filled address space; only what is touched costs memory
 public:
  explicit Pages(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Pages() {
    if (mapped()) munmap(data_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  bool mapped() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

// The state of one head of `to` becomes that of `from`, whatever their strides.
void copy_state(const TensorView& from, std::int64_t from_slot, const TensorView& to,
                std::int64_t to_slot) {
  const TensorView a = from.select(0, from_slot), b = to.select(0, to_slot);
  for_each_index({a.shape[0], a.shape[1], a.shape[2]}, [&](const Index& i) {
    const auto offset = [&](const TensorView& v) {
      return i[0] * v.strides[0] + i[1] * v.strides[1] + i[2] * v.strides[2];
    };
    testing::store_element(b, offset(b), testing::load_element(a, offset(a)));
  });
}

TEST(GdnBigPools, SlotsBeyondTwoToThe31Elements) {
  // 4200 slots of 8 x 256 x 256 bfloat16: 2.2e9 elements, of which two slots are touched.
  constexpr std::int64_t kSlots = 4200, kHigh = 4199, kWrite = 4150;
  const Spec spec{
      .lengths = {1}, .Hq = 8, .Hk = 8, .HV = 8, .K = 256, .V = 256, .state = DType::kBFloat16};
  const Case p(spec);
  const Pages pages(static_cast<std::size_t>(kSlots) * 8 * 256 * 256 * 2);
  ASSERT_TRUE(pages.mapped());
  const TensorView pool = TensorView::dense(pages.data(), DType::kBFloat16, {kSlots, 8, 256, 256});
  copy_state(p.state.view(), p.slot(0), pool, kHigh);
  const Results results = p.results(dense);
  gdn::DecodeParams params = p.decode();
  const std::int64_t read = kHigh, write = kWrite;
  params.state = pool;
  params.read_slots = TensorView(&read, {1});
  params.write_slots = TensorView(&write, {1});
  Expectation out(p.out, "out"), state(p.state, "state");
  p.expect_out(out, results);
  p.expect_state(state, {0}, results, 0, 1);
  gdn::decode(params);
  out.check();
  copy_state(pool, kWrite, p.state.view(), 0);  // where the expectation looks
  state.check();
  // A 32-bit offset would have written here.
  const auto wrapped = (kWrite * 8 * 256 * 256) & 0x7fffffff;
  EXPECT_EQ(static_cast<const std::uint16_t*>(pages.data())[wrapped], 0);
}

TEST(GdnBigPools, DocumentedStridesMultiplyIn64Bits) {
  // Slot 2 of a pool whose slot stride is 2^31 + 16: its offset does not fit 32 bits.
  constexpr std::uint32_t kStride = 0x80000010u;
  const Pages pages((2 * std::size_t{kStride} + 64) * 4);
  ASSERT_TRUE(pages.mapped());
  auto* pool = static_cast<float*>(pages.data());
  float* slot = pool + 2 * std::size_t{kStride};
  float qkv[24] = {}, out[8] = {}, decay = 0.5f, beta = 1.0f;
  qkv[0] = qkv[8] = 1e4f;  // normalised: e0
  qkv[16] = 3;
  slot[1 * 8 + 5] = 4;  // key 1 is not touched by k = e0 and halves
  std::uint32_t slots = 2, offsets[2] = {0, 1};
  gdn::gated_delta_recurrence_fwd_gpu<DType::kFloat32, DType::kFloat32, 8, 8, 32>(
      8, 1, 1, 1, 1, 8, 8, 24, {out, {1, 8}}, {pool, {3, 1, 8, 8}}, {&slots, {1}}, {qkv, {1, 24}},
      {&decay, {1, 1}}, {&beta, {1, 1}}, {offsets, {2}}, 24, 1, 1, 1, kStride, 64, 8, 1, 8, 1, {});
  EXPECT_EQ(slot[0], 3);
  EXPECT_EQ(slot[1 * 8 + 5], 2);
  EXPECT_EQ(out[0], static_cast<float>(3 / std::sqrt(8.0)));
  EXPECT_EQ(pool[32], 0);  // 2 * (2^31 + 16) modulo 2^32
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const testing::Buffer &x = a.buffer(), &y = b.buffer();
  return x.data_bytes() == y.data_bytes() && std::memcmp(x.data(), y.data(), x.data_bytes()) == 0;
}

TEST(GdnDeterminism, TheSameCallGivesTheSameBitsWithAnyThreads) {
  const Spec spec{.lengths = {6, 6, 6}, .padding = {1}, .io = DType::kBFloat16};
  const auto check = [&](const std::function<void(const Case&, const Context&)>& run) {
    for (bool invariant : {false, true}) {
      Context context;
      context.batch_invariant = invariant;
      const Case first(spec);
      run(first, context);
      for (int threads : {0, 1, 3}) {
        const Case again(spec);
        context.threads = threads;
        run(again, context);
        EXPECT_TRUE(same_bits(first.out, again.out));
        EXPECT_TRUE(same_bits(first.state, again.state));
      }
    }
  };
  check([](const Case& p, const Context& c) { gdn::decode(p.decode(2), c); });
  check([](const Case& p, const Context& c) { gdn::mtp(p.mtp(), c); });
  check([](const Case& p, const Context& c) { gdn::prefill(p.prefill(), {}, c); });
  check([](const Case& p, const Context& c) {
    const Packed packed(p, 1, 0);
    gdn::recurrence(packed.params(p), c);
  });
}

TEST(GdnDeterminism, ARowDoesNotDependOnItsBatch) {
  const Case batch({.lengths = {66, 5, 70}}), alone({.lengths = {66, 5, 70}});
  gdn::prefill(batch.prefill());
  for (std::int64_t row = 0; row < 3; ++row) {
    gdn::PrefillParams params = alone.prefill();
    params.cu_seqlens = params.cu_seqlens.slice(0, row, 2);
    params.read_slots = params.read_slots.slice(0, row, 1);
    gdn::prefill(params);
  }
  EXPECT_TRUE(same_bits(batch.out, alone.out));
  EXPECT_TRUE(same_bits(batch.state, alone.state));
}

TEST(GdnDeterminism, ABatchInvariantRowDoesNotDependOnHowLongItGoesOn) {
  constexpr std::int64_t kTokens = 40;
  const Spec spec{.lengths = {kTokens}};
  Context context;
  context.batch_invariant = true;
  const Case whole(spec);
  gdn::prefill(whole.prefill(), {}, context);
  for (std::int64_t length : {1, 2, 5, 8, 9, 33}) {
    const Case prefix(spec);
    const Tensor offsets = Tensor::of_indices(DType::kInt32, Index{0, length});
    gdn::PrefillParams params = prefix.prefill();
    params.cu_seqlens = offsets.view();
    gdn::prefill(params, {}, context);
    for_each_index({length, whole.heads, spec.V}, [&](const Index& i) {
      ASSERT_EQ(whole.out.get(i), prefix.out.get(i)) << length;
    });
  }
}

// Outputs of a prefix, and its state, are those on the way through the whole row.
TEST(GdnDeterminism, ABatchInvariantRowOfTokenAfterTokenDoesNotDependOnItsLengthEither) {
  Context context;
  context.batch_invariant = true;
  for (DType state : {DType::kFloat32, DType::kBFloat16}) {
    const Spec spec{.lengths = {20}, .K = 128, .V = 32, .io = DType::kBFloat16, .state = state};
    const Case whole(spec);
    gdn::mtp(whole.mtp(), context);
    // Nothing is rounded between steps, but where the reference goes on in float64.
    if (state == DType::kFloat32 && !tests_reference()) {
      const Case steps(spec);
      for (std::int64_t t = 0; t < 20; ++t) gdn::decode(steps.decode(t), context);
      EXPECT_TRUE(same_bits(steps.out, whole.out));
      EXPECT_TRUE(same_bits(steps.state, whole.state));
    }
    for (std::int64_t length : {1, 2, 3, 8, 9, 17}) {
      const Tensor offsets = Tensor::of_indices(DType::kInt32, Index{0, length});
      const Tensor commit = Tensor::of_indices(DType::kInt32, Index{length});
      const Case prefix(spec), on_the_way(spec), packed(spec);
      gdn::MtpParams params = prefix.mtp();
      params.cu_seqlens = offsets.view();
      gdn::mtp(params, context);
      params = on_the_way.mtp();
      params.commit_lengths = commit.view();
      gdn::mtp(params, context);
      EXPECT_TRUE(same_bits(on_the_way.out, whole.out)) << length;
      EXPECT_TRUE(same_bits(on_the_way.state, prefix.state)) << length;

      const Packed rows(packed, 1, 0);
      gdn::RecurrenceParams recurrence = rows.params(packed);
      recurrence.cu_seqlens = offsets.view();
      gdn::recurrence(recurrence, context);
      EXPECT_TRUE(same_bits(packed.state, prefix.state)) << length;
      for_each_index({length, whole.heads, spec.V}, [&](const Index& i) {
        ASSERT_EQ(whole.out.get(i), prefix.out.get(i)) << length;
        ASSERT_EQ(whole.out.get(i), rows.out.get({i[0], i[1] * spec.V + i[2]})) << length;
      });
    }
  }
}

}  // namespace
}  // namespace hyla::gdn_test
