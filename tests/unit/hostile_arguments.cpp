// Valid calls with one to three fields made wrong in every way that a caller can think of. Whatever
// they are, a call is done or refused: no crash, no hang, and a refused one has written nothing.
// Run under the sanitizers this also shows that no check reads or computes beyond what it was
// given.
#include <gtest/gtest.h>
#include <hyla/error.h>

#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "testing/random_problem.h"

namespace hyla::testing {
namespace {

using Limits = std::numeric_limits<std::int64_t>;

constexpr std::int64_t kNumbers[] = {0,
                                     1,
                                     -1,
                                     2,
                                     7,
                                     8,
                                     64,
                                     256,
                                     1024,
                                     std::int64_t{1} << 31,
                                     std::int64_t{1} << 40,
                                     std::int64_t{1} << 62,
                                     Limits::max(),
                                     Limits::min()};
constexpr double kReals[] = {0.0, -0.0, 1.0, -1.0, 1e-320, 1e308, 0.5, 1e-6};

// Draws one number after another.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed, "hostile arguments") {}
  std::int64_t below(std::int64_t limit) { return random_.below(next_++, limit); }
  std::int64_t number() { return kNumbers[below(std::size(kNumbers))]; }
  // Near what it was as often as far from it.
  std::int64_t other(std::int64_t value) {
    const std::int64_t by = below(3) - 1;
    return below(2) == 0 && std::abs(value / 2) < 1 << 20 ? value + by : number();
  }

 private:
  Random random_;
  std::int64_t next_ = 0;
};

void spoil(Dice& dice, TensorView& view, const std::vector<NamedTensor>& others) {
  const auto dim = [&] { return dice.below(TensorView::kMaxRank); };
  const bool sane = view.rank > 0 && view.rank <= TensorView::kMaxRank;
  const std::int64_t d = sane ? dice.below(view.rank) : dim();
  switch (dice.below(13)) {
    case 0:
      view = {};
      break;
    case 1:
      view.data = nullptr;
      break;
    case 2:
      view.data = static_cast<char*>(view.data) + 1;
      break;
    case 3:
      view.dtype = static_cast<DType>(dice.below(13));
      break;
    case 4:
      view.device = {static_cast<Device::Kind>(dice.below(3)), static_cast<int>(dice.below(3)) - 1};
      break;
    case 5:
      view.rank = static_cast<int>(dice.other(view.rank));
      break;
    case 6:
    case 7:
      view.shape[d] = dice.other(view.shape[d]);
      break;
    case 8:
    case 9:
      view.strides[d] = dice.other(view.strides[d]);
      break;
    case 10:
      view.strides[d] = 0;
      view.shape[d] = dice.number();
      break;
    case 11:
      std::swap(view.shape[d], view.shape[dim()]);
      break;
    case 12:
      view = others[static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(others.size())))]
                 .view;
      break;
    default:
      break;
  }
}

bool holds_indices(DType dtype) {
  return dtype == DType::kInt32 || dtype == DType::kInt64 || dtype == DType::kUInt32;
}

// One slot, offset, length or page becomes another number.
void spoil_index(Dice& dice, const Call& call) {
  for (const NamedTensor& tensor : tensors(call)) {
    const TensorView& view = tensor.view;
    if (!holds_indices(view.dtype) || view.numel() == 0 || dice.below(2) == 0) continue;
    const std::int64_t value = dice.other(3);
    const bool fits = view.dtype == DType::kInt64   ? std::abs(value / 2) < Limits::max() / 2
                      : view.dtype == DType::kInt32 ? std::abs(value / 2) < 1 << 30
                                                    : value >= 0 && value < std::int64_t{1} << 32;
    if (!fits) continue;
    const std::int64_t chosen = dice.below(view.numel());
    for_each_element_in(view, chosen, chosen + 1, [&](std::int64_t, std::int64_t offset) {
      store_element(view, offset, static_cast<double>(value));
    });
    return;
  }
}

template <class Value>
void spoil_value(Dice& dice, Value& value) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if constexpr (std::is_same_v<Value, bool>) {
    value = !value;
  } else if constexpr (std::is_enum_v<Value>) {
    value = static_cast<Value>(dice.below(9) - 2);
  } else if constexpr (std::is_floating_point_v<Value>) {
    const std::int64_t i = dice.below(std::size(kReals) + 2);
    value = i < static_cast<std::int64_t>(std::size(kReals)) ? kReals[i]
            : i % 2 == 0                                     ? kNan
                                                             : kInfinity;
  } else if constexpr (std::is_integral_v<Value>) {
    value = dice.other(value);
  } else {  // optional
    if (value.has_value() && dice.below(2) == 0) {
      value.reset();
    } else {
      typename Value::value_type inside{};
      spoil_value(dice, inside);
      value = inside;
    }
  }
}

int field_count(Params& params) {
  int count = 0;
  std::visit([&](auto& p) { for_each_field(p, [&](auto&&...) { ++count; }); }, params);
  return count;
}

void spoil_field(Dice& dice, Call& call) {
  const std::vector<NamedTensor> others = tensors(call);
  const std::int64_t chosen = dice.below(field_count(call.params));
  std::int64_t at = 0;
  std::visit(
      [&](auto& p) {
        for_each_field(p, [&](const char*, auto& field, auto... access) {
          if (at++ != chosen) return;
          if constexpr (sizeof...(access) == 1) {
            spoil(dice, field, others);
          } else {
            spoil_value(dice, field);
          }
        });
      },
      call.params);
}

// Does the memory that a view speaks of exist? One that hyla has to refuse by itself (no memory, no
// such rank, an extent beyond 2^63 bytes, another device) may be as it is.
bool truthful(const Call& call, const TensorView& view) {
  if (view.device != Device::cpu() || view.data == nullptr) return true;
  if (view.rank < 0 || view.rank > TensorView::kMaxRank) return true;
  long double last = 0;  // a product of two sizes does not fit an integer
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] <= 0 || view.strides[d] < 0) return true;
    last += static_cast<long double>(view.shape[d] - 1) * static_cast<long double>(view.strides[d]);
  }
  const long double bytes = (last + 1) * static_cast<long double>(size_of(view.dtype));
  if (bytes >= 0x1p63L) return true;
  for (const Buffer& buffer : call.buffers) {
    const std::span<const std::byte> memory = buffer.memory();
    const auto* begin = static_cast<const std::byte*>(view.data);
    if (begin < memory.data() || begin >= memory.data() + memory.size()) continue;
    return bytes <= static_cast<long double>(memory.data() + memory.size() - begin);
  }
  return false;
}

bool truthful(const Call& call) {
  for (const NamedTensor& tensor : tensors(call)) {
    if (!truthful(call, tensor.view)) return false;
  }
  return true;
}

std::vector<std::vector<std::byte>> contents(const Call& call) {
  std::vector<std::vector<std::byte>> result;
  for (const Buffer& buffer : call.buffers) {
    result.emplace_back(buffer.memory().begin(), buffer.memory().end());
  }
  return result;
}

bool unchanged(const Buffer& buffer, const std::vector<std::byte>& before) {
  return std::memcmp(buffer.memory().data(), before.data(), before.size()) == 0;
}

// Only buffers that hold a written tensor of the call may change.
void expect_only_outputs_changed(const Call& call,
                                 const std::vector<std::vector<std::byte>>& before) {
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    bool written = false;
    for (const NamedTensor& tensor : tensors(call)) {
      written =
          written || (tensor.access == Access::kWrite && call.buffers[i].holds(tensor.view.data));
    }
    EXPECT_TRUE(written || unchanged(call.buffers[i], before[i])) << call.buffers[i].name();
  }
}

class HostileArguments : public ::testing::TestWithParam<const char*> {};

TEST_P(HostileArguments, AreDoneOrRefused) {
  constexpr int kCases = 600;
  const ProblemSpec spec = parse_problem(std::string(GetParam()) + ",threads=1");
  int refused = 0, done = 0;
  for (int i = 0; i < kCases; ++i) {
    Dice dice(static_cast<std::uint64_t>(i));
    Call call = random_call(spec, CaseOptions::drawn(static_cast<std::uint64_t>(dice.below(64))));
    const bool index = dice.below(3) == 0;
    if (index) spoil_index(dice, call);
    const std::int64_t fields = dice.below(3) + (index ? 0 : 1);
    for (std::int64_t f = 0; f < fields; ++f) spoil_field(dice, call);
    if (!truthful(call)) continue;
    const auto before = contents(call);
    try {
      run(call.params, {}, call.context, dice.below(3) == 0 ? "reference" : "");
      ++done;
      expect_only_outputs_changed(call, before);
    } catch (const Error& error) {
      ++refused;
      const std::string text = error.what();
      EXPECT_GT(text.size(), 10u) << "case " << i;
      EXPECT_LT(text.size(), 1000u) << "case " << i << ": " << text;
      for (std::size_t b = 0; b < before.size(); ++b) {
        EXPECT_TRUE(unchanged(call.buffers[b], before[b]))
            << "case " << i << ": " << text << ", and yet " << call.buffers[b].name() << " changed";
      }
    }
  }
  // The cases are neither all harmless nor all hopeless.
  EXPECT_GT(refused, kCases / 4);
  EXPECT_GT(done, kCases / 50);
}

INSTANTIATE_TEST_SUITE_P(
    Operations, HostileArguments,
    ::testing::Values("gdn_decode:b=2,hq=1,hv=2,k=8,v=16", "gdn_mtp:b=2,t=2,hq=1,hv=1,k=8,v=8",
                      "gdn_mtp:lens=2+0+3,hq=1,hv=1,k=8,v=8,mode=all",
                      "gdn_mtp:b=2,t=3,hq=1,hv=1,k=8,v=8,mode=accepted",
                      "gdn_prefill:lens=70+0+3,hq=1,hv=1,k=8,v=8,checkpoint=64",
                      "gdn_prefill:lens=3+2,hq=2,hk=1,hv=1,k=8,v=8,io=f32",
                      "gdn_recurrence:lens=2+3,hq=1,hv=2,k=8,v=8",
                      "conv_prefill:lens=3+2,hq=1,hv=1,k=8,v=8",
                      "conv_update:b=2,hq=1,hv=1,k=8,v=8", "conv_update:b=2,t=3,hq=1,hv=1,k=8,v=8",
                      "norm_gated_rms:b=2,hv=2,v=8",
                      "attention_decode:b=2,hq=2,hk=1,d=8,kvlen=5,page=2,kv=e4m3",
                      "attention_prefill:lens=3+4,hq=2,hk=1,d=8,kvlen=9,page=0",
                      "attention_append:lens=2+1,hk=1,d=8,kvlen=6,page=2,rope=halves",
                      "attention_append:lens=2+1,hk=1,d=8,kvlen=6,page=2,kv=int8,scales=given",
                      "attention_append:lens=2+1,hk=1,d=8,kvlen=6,page=0,kv=int8",
                      "attention_append:lens=2+1,hk=1,d=8,kvlen=6,page=2,rope=pairs,by=slots",
                      "attention_merge:b=2,hq=2,d=8"));

// Rows of no tokens, and heads of no rows, need no memory, so that a tensor of stride 0 can claim
// more of them than anybody can go through.
TEST(HostileClaims, OfEmptyRowsAndHeadsAreRefused) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  std::vector<float> memory(64);
  std::vector<std::int32_t> zeros(2, 0);
  const auto claim = [&](std::vector<std::int64_t> shape) {
    TensorView view(memory.data(), {1});
    view.rank = static_cast<int>(shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d) {
      view.shape[d] = shape[d];
      view.strides[d] = d + 1 == shape.size() ? 1 : 0;
    }
    return view;
  };
  const auto refused = [](const char* argument, const auto& call) {
    try {
      call();
      ADD_FAILURE() << argument << " was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.argument(), argument) << error.what();
    }
  };

  gdn::MtpParams mtp;
  mtp.q = mtp.k = mtp.v = mtp.out = claim({kMany, 0, 1, 8});
  mtp.state = TensorView(memory.data(), {1, 1, 8, 8});
  mtp.read_slots = TensorView(zeros.data(), {1});
  mtp.read_slots.shape[0] = kMany;
  mtp.read_slots.strides[0] = 0;
  mtp.update_state = true;
  refused("q", [&] { gdn::mtp(mtp); });

  conv::PrefillParams windows;
  windows.x = windows.out = claim({kMany, 0, 8});
  windows.weight = TensorView(memory.data(), {8, 4});
  refused("x", [&] { conv::prefill(windows); });

  gdn::PrefillParams prefill;
  prefill.q = prefill.k = prefill.v = prefill.out = claim({0, kMany, 8});
  prefill.cu_seqlens = TensorView(zeros.data(), {2});
  refused("v", [&] { gdn::prefill(prefill); });
}

// A workspace's size is a product of bounds: none of them may be so large that it overflows.
TEST(HostileBounds, AreRefusedBeforeTheyOverflow) {
  gdn::PrefillBounds prefill;
  prefill.query_heads = prefill.key_heads = prefill.value_heads = 4;
  prefill.key_dim = prefill.value_dim = 128;
  EXPECT_NO_THROW(gdn::prefill_workspace_bytes(prefill));
  attention::RunBounds run;
  run.query_heads = run.kv_heads = 4;
  run.head_dim = run.value_dim = 128;
  EXPECT_NO_THROW(attention::run_workspace_bytes(run));
  for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{1} << 41, Limits::max()}) {
    for (std::int64_t gdn::PrefillBounds::*bound :
         {&gdn::PrefillBounds::max_sequences, &gdn::PrefillBounds::max_tokens,
          &gdn::PrefillBounds::query_heads, &gdn::PrefillBounds::value_dim}) {
      gdn::PrefillBounds spoilt = prefill;
      spoilt.*bound = wrong;
      EXPECT_THROW(gdn::prefill_workspace_bytes(spoilt), InvalidArgument) << wrong;
    }
    for (std::int64_t attention::RunBounds::*bound :
         {&attention::RunBounds::max_sequences, &attention::RunBounds::max_tokens,
          &attention::RunBounds::max_kv_length, &attention::RunBounds::query_heads,
          &attention::RunBounds::kv_heads, &attention::RunBounds::head_dim,
          &attention::RunBounds::value_dim}) {
      attention::RunBounds spoilt = run;
      spoilt.*bound = wrong;
      EXPECT_THROW(attention::run_workspace_bytes(spoilt), InvalidArgument) << wrong;
    }
  }
}

}  // namespace
}  // namespace hyla::testing
