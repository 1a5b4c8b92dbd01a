// Sequences of calls: however a sequence is cut, drafted or checkpointed, outputs and windows are
// those of one prefill over the tokens that count, to the bit.
#include <hyla/conv.h>
#include <sys/mman.h>

#include <array>

#include "ops/support/guarded.h"

namespace hyla::tests {
namespace {

constexpr std::int64_t kChannels = 3;

void copy_token(Tensor& to, std::int64_t to_token, const Tensor& from, std::int64_t from_token) {
  for (std::int64_t c = 0; c < kChannels; ++c) {
    to.set(from.get(from_token, c), to_token, c);
  }
}

// A sequence with its outputs and its window after every prefix, from zeros, in one prefill each.
struct Sequence {
  std::int64_t W, L, total;
  DType dtype, state_dtype;
  Tensor x, weight, bias, out;

  Sequence(Draw& draw, DType x_dtype, DType pool_dtype)
      : W(draw.from(2, 4)),
        L(W - 1 + draw.pick<std::int64_t>({0, 1, 4})),
        total(draw.from(0, 40)),
        dtype(x_dtype),
        state_dtype(pool_dtype),
        x(Tensor(x_dtype, {total, kChannels})),
        weight(Tensor(draw.float_type(), {kChannels, W})),
        bias(Tensor(draw.float_type(), {kChannels})),
        out(Tensor(x_dtype, {total, kChannels})) {
    for (std::int64_t c = 0; c < kChannels; ++c) {
      bias.set(draw.number(), c);
      for (std::int64_t j = 0; j < W; ++j) weight.set(draw.number(), c, j);
      for (std::int64_t t = 0; t < total; ++t) x.set(draw.number(), t, c);
    }
    prefix(total, false, out);
  }

  // The pool of one slot after the first `tokens` tokens.
  Tensor prefix(std::int64_t tokens, bool at_offset, Tensor& outputs) const {
    Tensor state(state_dtype, {1, kChannels, L});
    const Tensor offsets = indices({0, tokens}), fresh = mask(false), window = indices({0});
    conv::PrefillParams params{.x = x.view(),
                               .weight = weight.view(),
                               .out = outputs.view(),
                               .state = state.view(),
                               .bias = bias.view(),
                               .cu_seqlens = offsets.view(),
                               .has_initial_state = fresh.view()};
    if (at_offset) params.window_offsets = window.view();
    conv::prefill(params);
    return state;
  }

  static Tensor mask(bool value) {
    Tensor result(DType::kBool, {1});
    result.set(value, 0);
    return result;
  }

  void expect_output(const Tensor& piece, std::int64_t piece_token, std::int64_t token) const {
    for (std::int64_t c = 0; c < kChannels; ++c) {
      ASSERT_EQ(piece.get(piece_token, c), out.get(token, c)) << "token " << token;
    }
  }
};

// Continues a sequence whose pool of one slot is `state`: `tokens` from `position` on, of which
// the first `real` are the sequence's and the rest are drafts to be rejected, here NaN.
struct Cursor {
  const Sequence& sequence;
  Tensor state;
  bool at_offset;
  std::int64_t position = 0, offset = 0;

  Tensor piece(std::int64_t tokens, std::int64_t real) const {
    Tensor result(sequence.dtype, {tokens, kChannels});
    for (std::int64_t t = 0; t < real; ++t) copy_token(result, t, sequence.x, position + t);
    return result;
  }

  void check(const Tensor& out, std::int64_t real) {
    for (std::int64_t t = 0; t < real; ++t) {
      sequence.expect_output(out, t, position + t);
      if (::testing::Test::HasFatalFailure()) return;
    }
    position += real;
  }

  void prefill(std::int64_t tokens) {
    const Tensor x = piece(tokens, tokens), at = indices({offset}), rows = indices({0, tokens});
    const Tensor started = Sequence::mask(position > 0),
                 out = Tensor(x.view().dtype, {tokens, kChannels});
    conv::PrefillParams params{.x = x.view(),
                               .weight = sequence.weight.view(),
                               .out = out.view(),
                               .state = state.view(),
                               .bias = sequence.bias.view(),
                               .cu_seqlens = rows.view(),
                               .has_initial_state = started.view()};
    if (at_offset) params.window_offsets = at.view();
    conv::prefill(params);
    offset = 0;
    check(out, tokens);
  }

  void update(std::int64_t tokens, std::int64_t real) {
    const Tensor x = piece(tokens, real), at = indices({offset}), rows = indices({0, tokens});
    const Tensor commit = indices({real}), out(x.view().dtype, {tokens, kChannels});
    conv::UpdateParams params{.x = x.view(),
                              .weight = sequence.weight.view(),
                              .out = out.view(),
                              .state = state.view(),
                              .bias = sequence.bias.view(),
                              .cu_seqlens = rows.view()};
    if (at_offset) {
      params.window_offsets = at.view();
    } else if (real < tokens) {
      params.commit_lengths = commit.view();
    }
    conv::update(params);
    if (tokens > 0) offset = real - 1;
    check(out, real);
  }

  std::int64_t left() const { return sequence.total - position; }
  std::int64_t most_tokens() const { return at_offset ? sequence.L - (sequence.W - 2) : 6; }

  // The columns that a reader would see, against those of one prefill.
  void expect_window() const {
    Tensor ignored = sequence.out;
    const Tensor whole = sequence.prefix(position, at_offset, ignored);
    const std::int64_t columns = at_offset ? sequence.W - 1 : sequence.L;
    for (std::int64_t c = 0; c < kChannels; ++c) {
      for (std::int64_t i = 0; i < columns; ++i) {
        ASSERT_EQ(state.get(0, c, (at_offset ? offset : 0) + i), whole.get(0, c, i))
            << "after " << position << " tokens, channel " << c << ", column " << i;
      }
    }
  }
};

constexpr std::uint64_t kSeeds = 300;

template <class Body>
void for_each_sequence(Body&& body) {
  for (std::uint64_t seed = 0; seed < kSeeds && !::testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    const DType dtype = draw.float_type();
    const Sequence sequence(draw, dtype, draw.pick({dtype, DType::kFloat32}));
    Cursor cursor{sequence, Tensor(sequence.state_dtype, {1, kChannels, sequence.L}),
                  draw.chance(0.5)};
    cursor.prefill(std::min(draw.from(1, 4), cursor.left()));
    body(draw, cursor);
    if (!::testing::Test::HasFatalFailure()) cursor.expect_window();
  }
}

TEST(ConvFlows, ASequenceMayBeCutAnywhere) {
  for_each_sequence([](Draw& draw, Cursor& cursor) {
    while (cursor.left() > 0 && !::testing::Test::HasFatalFailure()) {
      const std::int64_t tokens = std::min(draw.from(0, cursor.most_tokens()), cursor.left());
      if (draw.chance(0.5)) {
        cursor.prefill(tokens);
      } else {
        cursor.update(tokens, tokens);
      }
    }
  });
}

// Wide enough for products of pairs, and of numbers whose sums depend on their order: some are far
// larger than others and cancel.
TEST(ConvFlows, AWideSequenceOfBfloat16MayBeCutAnywhere) {
  constexpr std::int64_t kWide = 96, kTokens = 100;
  constexpr DType kType = DType::kBFloat16;
  Draw draw(7);
  const auto power = [&] {
    return std::ldexp(draw.chance(0.5) ? 1.0 : -1.0, static_cast<int>(draw.from(-12, 12)));
  };
  Tensor x(kType, {kTokens, kWide}), weight(kType, {kWide, 4}), bias(kType, {kWide});
  Tensor state(kType, {1, kWide, 3});
  const Tensor whole(kType, {kTokens, kWide}), pieces = whole;
  for (std::int64_t c = 0; c < kWide; ++c) {
    bias.set(power(), c);
    for (std::int64_t j = 0; j < 4; ++j) weight.set(power(), c, j);
    for (std::int64_t j = 0; j < 3; ++j) state.set(0, 0, c, j);
    for (std::int64_t t = 0; t < kTokens; ++t) x.set(power(), t, c);
  }
  for (const auto activation : {conv::Activation::kNone, conv::Activation::kSilu}) {
    const Tensor rows = indices({0, kTokens}), started = Sequence::mask(true);
    Tensor pool = state;
    conv::prefill({.x = x.view(),
                   .weight = weight.view(),
                   .out = whole.view(),
                   .bias = bias.view(),
                   .cu_seqlens = rows.view(),
                   .activation = activation});
    for (std::int64_t at = 0; at < kTokens;) {
      const std::int64_t count = std::min(draw.pick<std::int64_t>({1, 2, 3, 6}), kTokens - at);
      const Tensor piece = indices({0, count});
      const TensorView tokens = x.view().slice(0, at, count);
      const TensorView out = pieces.view().slice(0, at, count);
      if (draw.chance(0.5)) {
        conv::update({.x = tokens,
                      .weight = weight.view(),
                      .out = out,
                      .state = pool.view(),
                      .bias = bias.view(),
                      .cu_seqlens = piece.view(),
                      .activation = activation});
      } else {
        conv::prefill({.x = tokens,
                       .weight = weight.view(),
                       .out = out,
                       .state = pool.view(),
                       .bias = bias.view(),
                       .cu_seqlens = piece.view(),
                       .has_initial_state = started.view(),
                       .activation = activation});
      }
      at += count;
    }
    EXPECT_TRUE(whole.same_memory(pieces));
  }
}

TEST(ConvFlows, RejectedDraftsLeaveNoTrace) {
  for_each_sequence([](Draw& draw, Cursor& cursor) {
    while (cursor.left() > 0 && !::testing::Test::HasFatalFailure()) {
      const std::int64_t drafted = draw.from(1, cursor.most_tokens());
      // At an offset at least one token is accepted: the one that the model itself chose.
      const std::int64_t least = cursor.at_offset ? 1 : 0;
      const std::int64_t accepted = std::min(draw.from(least, drafted), cursor.left());
      cursor.update(drafted, accepted);
      cursor.expect_window();
    }
  });
}

TEST(ConvFlows, ACheckpointIsTheFinalWindowOfThatPrefix) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Draw draw(seed);
    const Sequence sequence(draw, draw.float_type(), draw.float_type());
    const std::int64_t total = sequence.total, slots = total + 2;
    const bool at_offset = draw.chance(0.5);
    // Slot 0 is the row's own; the window after n tokens goes to slot n + 1.
    Tensor state(sequence.state_dtype, {slots, kChannels, sequence.L});
    Tensor counts(DType::kInt64, {1, total + 1}), to(DType::kInt64, {1, total + 1});
    for (std::int64_t n = 0; n <= total; ++n) {
      counts.set(static_cast<double>(n), 0, n);
      to.set(static_cast<double>(n + 1), 0, n);
    }
    Tensor out = sequence.out;
    const Tensor rows = indices({0, total}), fresh = Sequence::mask(false), window = indices({0});
    conv::PrefillParams params{.x = sequence.x.view(),
                               .weight = sequence.weight.view(),
                               .out = out.view(),
                               .state = state.view(),
                               .bias = sequence.bias.view(),
                               .cu_seqlens = rows.view(),
                               .has_initial_state = fresh.view(),
                               .checkpoint_offsets = counts.view(),
                               .checkpoint_slots = to.view()};
    if (at_offset) params.window_offsets = window.view();
    conv::prefill(params);
    for (std::int64_t n = 0; n <= total; ++n) {
      const Tensor prefix = sequence.prefix(n, at_offset, out);
      for (std::int64_t c = 0; c < kChannels; ++c) {
        for (std::int64_t i = 0; i < (at_offset ? sequence.W - 1 : sequence.L); ++i) {
          ASSERT_EQ(state.get(n + 1, c, i), prefix.get(0, c, i)) << "after " << n << " tokens";
          if (n == total) {
            ASSERT_EQ(state.get(0, c, i), prefix.get(0, c, i));
          }
        }
      }
    }
  }
}

TEST(ConvFlows, NothingToDoTouchesNothing) {
  const Tensor weight(DType::kFloat32, {2, 4});
  for (const Sizes& shape : {Sizes{0, 5, 2}, Sizes{3, 0, 2}, Sizes{0, 0, 2}}) {
    const Tensor x(DType::kFloat32, shape), out = x;
    Tensor state(DType::kBFloat16, {3, 2, 3});
    const Tensor before = state;
    conv::prefill({.x = x.view(), .weight = weight.view(), .out = out.view()});
    conv::prefill(
        {.x = x.view(), .weight = weight.view(), .out = out.view(), .state = state.view()});
    conv::update(
        {.x = x.view(), .weight = weight.view(), .out = out.view(), .state = state.view()});
    EXPECT_TRUE(state.same_memory(before)) << "windows of no tokens are passed on as they are";
    EXPECT_TRUE(out.same_memory(x));
  }
  const Tensor no_channels(DType::kFloat32, {2, 0}), no_weight = no_channels;
  const Tensor taps(DType::kFloat32, {0, 4}), pool(DType::kFloat32, {2, 0, 3});
  conv::update({.x = no_channels.view(),
                .weight = taps.view(),
                .out = no_weight.view(),
                .state = pool.view()});
}

TEST(ConvFlows, SlotsBeyondTwoToThe31) {
  // Two slots more than 2^31 elements apart; only their own pages are ever touched.
  constexpr std::int64_t kPitch = (std::int64_t{1} << 31) + 8;
  constexpr std::size_t kBytes = (kPitch + 64) * sizeof(float16);
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* far = static_cast<float16*>(memory) + kPitch;
  far[0] = float16(8);
  far[1] = float16(9);
  TensorView state(static_cast<float16*>(memory), {2, 1, 2});
  state.strides[0] = kPitch;
  std::array<float, 1> x = {1}, out = {0};
  const std::array<float, 3> weight = {1, 10, 100};
  const Tensor slot = indices({1});
  conv::update({.x = {x.data(), {1, 1}},
                .weight = {weight.data(), {1, 3}},
                .out = {out.data(), {1, 1}},
                .state = state,
                .read_slots = slot.view(),
                .activation = conv::Activation::kNone});
  EXPECT_EQ(out[0], 8 + 90 + 100);
  EXPECT_EQ(static_cast<float>(far[0]), 9);
  EXPECT_EQ(static_cast<float>(far[1]), 1);
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace hyla::tests
