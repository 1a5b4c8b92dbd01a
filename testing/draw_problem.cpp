#include "testing/draw_problem.h"

#include <hyla/error.h>

#include <algorithm>
#include <array>
#include <string>

#include "testing/random.h"

namespace hyla::testing {
namespace {

using std::int64_t;

// The reference's time grows with these: states times tokens, and products of queries and keys.
// Mostly the smaller one.
constexpr double kGdnWork[] = {1e6, 6e6}, kAttentionWork[] = {1e7, 6e7};
constexpr double kLarge = 0.1;
constexpr double kMostCache = 3e6;
constexpr double kMla = 0.06;

constexpr std::array kFloats = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};
constexpr std::array kCaches = {DType::kBFloat16,   DType::kBFloat16, DType::kFloat16,
                                DType::kFloat8E4M3, DType::kInt8,     DType::kFloat32};

class Drawer {
 public:
  Drawer(Operation operation, std::uint64_t number)
      : random_(number, name_of(operation)), spec_(defaults(operation)) {
    spec_.seed = below(1 << 20);
    large_ = chance(kLarge) ? 1 : 0;
  }

  ProblemSpec draw(Device::Kind device) {
    spec_.device = device;
    spec_.invariant = chance(0.2);
    spec_.pdl = device == Device::Kind::kCuda && chance(0.25);
    spec_.io = of(kFloats);
    switch (spec_.operation) {
      case Operation::kConvPrefill:
      case Operation::kConvUpdate:
        draw_conv();
        break;
      case Operation::kNormGatedRms:
        spec_.b = one_of(0, 1, 2, 7, 33, 70);
        spec_.hv = one_of(1, 3, 4, 6);
        spec_.v = dim();
        break;
      case Operation::kAttentionMerge:
        spec_.b = one_of(0, 1, 2, 7, 33, 70);
        spec_.hq = spec_.hk = one_of(1, 3, 4, 6, 16);
        spec_.d = chance(0.1) ? 512 : dim();
        spec_.in_place = chance(0.25);
        break;
      case Operation::kAttentionDecode:
      case Operation::kAttentionPrefill:
      case Operation::kAttentionAppend:
        draw_attention();
        break;
      default:
        draw_gdn();
    }
    check_problem(spec_);
    return spec_;
  }

 private:
  int64_t below(int64_t limit) { return random_.below(next_++, limit); }
  bool chance(double probability) { return random_.chance(next_++, probability); }
  template <class T, std::size_t N>
  const T& of(const std::array<T, N>& list) {
    return list[static_cast<std::size_t>(below(N))];
  }
  template <class... T>
  int64_t one_of(T... values) {
    return of(std::array{static_cast<int64_t>(values)...});
  }

  // The usual dims half of the time, any other multiple of 8 otherwise.
  int64_t dim() { return chance(0.55) ? one_of(64, 128, 128, 256) : 8 * (1 + below(32)); }

  // Up to `most` rows of up to `longest` tokens, many of them at the edges of blocks, some empty.
  std::vector<int64_t> ragged(int64_t most, int64_t longest) {
    std::vector<int64_t> lengths(static_cast<std::size_t>(1 + below(most)));
    for (int64_t& length : lengths) {
      const int64_t edge = one_of(1, 2, 4, 8, 16, 32, 64, 128, 256) + one_of(-1, 0, 0, 1);
      length = chance(0.15) ? 0 : chance(0.5) ? edge : below(longest + 1);
      length = std::min(length, longest);
    }
    return lengths;
  }

  void draw_state() {
    spec_.state = of(kFloats);
    spec_.slots = 0;
  }

  void draw_gdn() {
    const int64_t keys = one_of(1, 1, 2, 3, 4), ratio = one_of(1, 2, 2, 3, 4, 6, 8);
    spec_.hq = spec_.hk = keys;
    spec_.hv = keys * ratio;
    spec_.k = dim();
    spec_.v = chance(0.5) ? spec_.k : dim();
    draw_state();
    spec_.layout = of(std::array{gdn::StateLayout::kVK, gdn::StateLayout::kKV});
    spec_.gate = of(std::array{gdn::Gate::Kind::kRaw, gdn::Gate::Kind::kLinear,
                               gdn::Gate::Kind::kLog, gdn::Gate::Kind::kNone});
    spec_.beta = of(
        std::array{gdn::Beta::Kind::kLogit, gdn::Beta::Kind::kProbability, gdn::Beta::Kind::kNone});
    spec_.norm = chance(0.5);
    if (spec_.operation == Operation::kGdnDecode) {
      spec_.b = chance(0.1) ? 130 + below(300) : one_of(0, 1, 1, 2, 3, 5, 8, 9, 17, 33, 64);
      spec_.gated = chance(0.25);
    } else if (spec_.operation == Operation::kGdnMtp) {
      spec_.mode = of(std::array{Mode::kFinal, Mode::kAll, Mode::kAccepted});
      spec_.gated = chance(0.25);
      if (chance(0.4)) {
        spec_.lens = ragged(6, one_of(4, 8, 16, 20));
      } else {
        spec_.b = one_of(1, 2, 3, 5, 9, 40);
        spec_.t = one_of(1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17);
      }
    } else if (spec_.operation == Operation::kGdnRecurrence) {
      spec_.lens = ragged(9, 40);
    } else {
      spec_.lens = chance(0.2) ? ragged(40, 20) : ragged(6, one_of(70, 200, 400, 700));
      spec_.longest = chance(0.6);
      spec_.initial = chance(0.8);
      spec_.checkpoint = one_of(0, 0, 64, 128, 192);
      if (chance(0.2)) {  // more queries than values
        spec_.hv = spec_.hk = keys;
        spec_.hq = keys * ratio;
      }
      spec_.told = chance(0.4);
    }
    shrink_gdn();
  }

  double gdn_work() const {
    return static_cast<double>(std::max(spec_.hq, spec_.hv) * spec_.k * spec_.v) *
           static_cast<double>(std::max<int64_t>(1, total_tokens(spec_)));
  }

  // Fewer heads first, then fewer rows, then shorter ones.
  void shrink_gdn() {
    while (gdn_work() > kGdnWork[large_]) {
      const int64_t ratio = std::max(spec_.hq, spec_.hv) / spec_.hk;
      if (spec_.hk > 1) {
        spec_.hq /= spec_.hk;
        spec_.hv /= spec_.hk;
        spec_.hk = 1;
      } else if (ratio > 3) {
        (spec_.hq > spec_.hv ? spec_.hq : spec_.hv) = chance(0.5) ? 2 : 3;
      } else if (spec_.lens.size() > 1) {
        spec_.lens.resize((spec_.lens.size() + 1) / 2);
      } else if (!spec_.lens.empty()) {
        spec_.lens[0] /= 2;
      } else if (spec_.b > 1) {
        spec_.b = (spec_.b + 1) / 2;
      } else {
        spec_.t = (spec_.t + 1) / 2;
      }
    }
  }

  void draw_conv() {
    spec_.hq = spec_.hk = one_of(1, 2, 3);
    spec_.hv = spec_.hq * one_of(1, 2, 3);
    spec_.k = 8 * (1 + below(12));
    spec_.v = 8 * (1 + below(12));
    draw_state();
    spec_.width = one_of(2, 3, 4);
    spec_.channels_last = chance(0.4);
    spec_.in_place = chance(0.2);
    if (spec_.operation == Operation::kConvPrefill) {
      if (chance(0.25)) {
        spec_.b = one_of(0, 1, 3, 7);
        spec_.t = one_of(1, 2, 3, 17, 64, 130);
      } else {
        spec_.lens = ragged(8, one_of(20, 140, 400));
      }
      spec_.drafts = one_of(0, 0, 2, 7);
      return;
    }
    if (chance(0.4)) {
      spec_.lens = ragged(8, 9);
    } else {
      spec_.b = one_of(0, 1, 2, 5, 70, 129);
      spec_.t = one_of(1, 1, 1, 2, 4, 9);
    }
    spec_.drafts = chance(0.5) ? 0 : 16;
  }

  void draw_attention() {
    const bool append = spec_.operation == Operation::kAttentionAppend;
    spec_.hk = one_of(1, 1, 2, 3, 4);
    if (!append) spec_.hq = spec_.hk * one_of(1, 2, 3, 4, 5, 6, 8, 12, 16);
    spec_.d = dim();
    if (chance(0.4)) spec_.dv = dim();
    if (spec_.dv == spec_.d) spec_.dv = 0;
    if (chance(kMla)) {
      spec_.d = kMlaDim;
      spec_.dv = kMlaValueDim;
    }
    spec_.page = one_of(0, 1, 2, 3, 7, 8, 16, 16, 24, 32, 64, 64, 100, 128, 256, 1024);
    spec_.kv = of(kCaches);
    if (append) {
      spec_.rope = of(std::array{Rope::kNone, Rope::kHalves, Rope::kPairs});
      spec_.given_scales = size_of(spec_.kv) == 1 && chance(0.4);
      spec_.by_slots = chance(0.35);
    } else {
      spec_.mask =
          of(std::array{Mask::kCausal, Mask::kCausal, Mask::kNone, Mask::kWindow, Mask::kChunked});
      const bool sized = spec_.mask == Mask::kWindow || spec_.mask == Mask::kChunked;
      spec_.window = sized ? one_of(1, 2, 16, 33, 64, 80, 129, 500) : 0;
    }
    if (spec_.operation == Operation::kAttentionDecode) {
      spec_.t = one_of(1, 1, 1, 2, 3, 4, 5, 8, 16);
      spec_.kvlen = ragged(8, one_of(70, 300, 1400));
      spec_.b = static_cast<int64_t>(spec_.kvlen.size());
    } else {
      spec_.lens = chance(0.3) ? ragged(20, 5) : ragged(5, one_of(70, 200));
      spec_.kvlen = spec_.lens;
      for (int64_t& keys : spec_.kvlen) keys += chance(0.6) ? below(one_of(10, 200, 900)) : 0;
    }
    shrink_attention();
    while (cache_size() > kMostCache && spec_.page > 1) spec_.page /= 2;
    // Fewer keys than queries: the first ones stand before all keys.
    const std::vector<int64_t> queries = row_lengths(spec_);
    for (std::size_t n = 0; n < queries.size(); ++n) {
      if (append || !chance(0.07)) spec_.kvlen[n] = std::max(spec_.kvlen[n], queries[n]);
    }
  }

  double attention_work() const {
    const std::vector<int64_t> queries = row_lengths(spec_), keys = kv_lengths(spec_);
    double pairs = 0;
    for (std::size_t n = 0; n < queries.size(); ++n) {
      pairs += static_cast<double>(queries[n]) * static_cast<double>(keys[n]);
    }
    return pairs * static_cast<double>(spec_.hq * (spec_.d + value_dim(spec_)));
  }

  // Elements of the pages, full or not.
  double cache_size() const {
    double tokens = 0;
    for (const int64_t keys : kv_lengths(spec_)) {
      tokens += static_cast<double>((keys + spec_.page - 1) / std::max<int64_t>(spec_.page, 1) *
                                    spec_.page);
    }
    return tokens * static_cast<double>(spec_.hk * (spec_.d + value_dim(spec_)));
  }

  void shrink_attention() {
    while (spec_.operation != Operation::kAttentionAppend &&
           attention_work() > kAttentionWork[large_]) {
      if (spec_.hk > 1) {
        spec_.hq /= spec_.hk;
        spec_.hk = 1;
      } else if (spec_.kvlen.size() > 2) {
        spec_.kvlen.pop_back();
        if (spec_.lens.empty()) --spec_.b;
        if (!spec_.lens.empty()) spec_.lens.pop_back();
      } else if (spec_.hq > 3) {
        spec_.hq /= 2;
      } else {
        for (int64_t& keys : spec_.kvlen) keys /= 2;
        for (int64_t& length : spec_.lens) length /= 2;
      }
    }
  }

  Random random_;
  int64_t next_ = 0;
  int large_ = 0;
  ProblemSpec spec_;
};

}  // namespace

ProblemSpec draw_problem(Operation operation, Device::Kind device, std::uint64_t number) {
  return Drawer(operation, number).draw(device);
}

namespace {

// "key=value" of a problem string, one after the other.
std::vector<std::string_view> items_of(std::string_view text) {
  std::vector<std::string_view> items;
  const std::size_t colon = text.find(':');
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    items.push_back(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return items;
}

bool gives(const std::vector<std::string_view>& items, std::string_view key) {
  return std::any_of(items.begin(), items.end(),
                     [&](std::string_view item) { return item.substr(0, item.find('=')) == key; });
}

}  // namespace

std::optional<ProblemSpec> draw_problem(std::string_view text, std::uint64_t number) {
  const ProblemSpec given = parse_problem(text);
  const std::string drawn = to_string(draw_problem(given.operation, given.device, number));
  const std::vector<std::string_view> fixed = items_of(text);
  std::string together = std::string(name_of(given.operation)) + ":";
  for (const std::string_view item : fixed) together.append(item).append(",");
  const bool rows = gives(fixed, "lens") || gives(fixed, "b") || gives(fixed, "t");
  for (const std::string_view item : items_of(drawn)) {
    const std::string_view key = item.substr(0, item.find('='));
    const bool row_key = key == "lens" || key == "b" || key == "t" || key == "kvlen";
    if (gives(fixed, key) || (rows && row_key)) continue;
    together.append(item).append(",");
  }
  together.pop_back();
  try {
    return parse_problem(together);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

}  // namespace hyla::testing
