#include "testing/problem_string.h"

#include <hyla/error.h>

#include <algorithm>
#include <charconv>
#include <numeric>

namespace hyla::testing {
namespace {

using std::int64_t;
using std::string;
using std::string_view;

struct OperationName {
  Operation operation;
  const char* name;
  const char* library_name;
};

constexpr OperationName kOperations[] = {
    {Operation::kGdnDecode, "gdn_decode", "gdn.decode"},
    {Operation::kGdnMtp, "gdn_mtp", "gdn.mtp"},
    {Operation::kGdnPrefill, "gdn_prefill", "gdn.prefill"},
    {Operation::kGdnRecurrence, "gdn_recurrence", "gdn.recurrence"},
    {Operation::kConvPrefill, "conv_prefill", "conv.prefill"},
    {Operation::kConvUpdate, "conv_update", "conv.update"},
    {Operation::kNormGatedRms, "norm_gated_rms", "norm.gated_rms"},
    {Operation::kAttentionDecode, "attention_decode", "attention.run"},
    {Operation::kAttentionPrefill, "attention_prefill", "attention.run"},
    {Operation::kAttentionAppend, "attention_append", "attention.append"},
    {Operation::kAttentionMerge, "attention_merge", "attention.merge"},
};

constexpr unsigned only(Operation operation) { return 1u << static_cast<unsigned>(operation); }
constexpr unsigned kDecode = only(Operation::kGdnDecode), kMtp = only(Operation::kGdnMtp),
                   kPrefill = only(Operation::kGdnPrefill),
                   kRecurrence = only(Operation::kGdnRecurrence),
                   kConvPrefill = only(Operation::kConvPrefill),
                   kConvUpdate = only(Operation::kConvUpdate),
                   kNorm = only(Operation::kNormGatedRms),
                   kAttentionDecode = only(Operation::kAttentionDecode),
                   kAttentionPrefill = only(Operation::kAttentionPrefill),
                   kAppend = only(Operation::kAttentionAppend),
                   kMerge = only(Operation::kAttentionMerge);
constexpr unsigned kGdn = kDecode | kMtp | kPrefill | kRecurrence;
constexpr unsigned kConv = kConvPrefill | kConvUpdate;
constexpr unsigned kAttention = kAttentionDecode | kAttentionPrefill;
constexpr unsigned kCaches = kAttention | kAppend;
constexpr unsigned kAny = kGdn | kConv | kNorm | kCaches | kMerge;
constexpr unsigned kRagged = (kGdn & ~kDecode) | kConv | kAttentionPrefill | kAppend;

constexpr int64_t kMaxRows = 1 << 20, kMaxTokens = 1 << 26, kMaxHeads = 1024;
constexpr int64_t kMaxSlots = 1 << 24;
constexpr int64_t kMaxThreads = 1024;
constexpr std::size_t kMaxImplName = 64;

[[noreturn]] void fail(string_view key, const string& expected, string_view got) {
  // A value may be as long as a command line; a message may not.
  constexpr std::size_t kShown = 80;
  string quoted("'");
  quoted.append(got.substr(0, kShown)).append(got.size() > kShown ? "...'" : "'");
  throw InvalidArgument(string(key), expected, quoted);
}

void append(string& list, string_view separator, string_view item) {
  if (!list.empty()) list.append(separator);
  list.append(item);
}

template <class T>
struct Choice {
  const char* name;
  T value;
};

constexpr Choice<DType> kIoTypes[] = {
    {"bf16", DType::kBFloat16}, {"f16", DType::kFloat16}, {"f32", DType::kFloat32}};
constexpr Choice<DType> kStateTypes[] = {
    {"f32", DType::kFloat32}, {"bf16", DType::kBFloat16}, {"f16", DType::kFloat16}};
constexpr Choice<DType> kKvTypes[] = {{"bf16", DType::kBFloat16},
                                      {"f16", DType::kFloat16},
                                      {"f32", DType::kFloat32},
                                      {"e4m3", DType::kFloat8E4M3},
                                      {"int8", DType::kInt8}};
constexpr Choice<gdn::StateLayout> kLayouts[] = {{"vk", gdn::StateLayout::kVK},
                                                 {"kv", gdn::StateLayout::kKV}};
constexpr Choice<gdn::Gate::Kind> kGates[] = {{"none", gdn::Gate::Kind::kNone},
                                              {"linear", gdn::Gate::Kind::kLinear},
                                              {"log", gdn::Gate::Kind::kLog},
                                              {"raw", gdn::Gate::Kind::kRaw}};
constexpr Choice<gdn::Beta::Kind> kBetas[] = {{"none", gdn::Beta::Kind::kNone},
                                              {"prob", gdn::Beta::Kind::kProbability},
                                              {"logit", gdn::Beta::Kind::kLogit}};
constexpr Choice<bool> kSwitch[] = {{"0", false}, {"1", true}};
constexpr Choice<Mode> kModes[] = {
    {"final", Mode::kFinal}, {"all", Mode::kAll}, {"accepted", Mode::kAccepted}};
constexpr Choice<Mask> kMasks[] = {{"causal", Mask::kCausal},
                                   {"none", Mask::kNone},
                                   {"window", Mask::kWindow},
                                   {"chunked", Mask::kChunked}};
constexpr Choice<Rope> kRopes[] = {
    {"none", Rope::kNone}, {"halves", Rope::kHalves}, {"pairs", Rope::kPairs}};
constexpr Choice<bool> kScales[] = {{"own", false}, {"given", true}};
constexpr Choice<bool> kBy[] = {{"rows", false}, {"slots", true}};
constexpr Choice<Device::Kind> kDevices[] = {{"cpu", Device::Kind::kCpu},
                                             {"cuda", Device::Kind::kCuda}};

struct Key {
  const char* name;
  unsigned operations;  // that have it
  const char* meaning;
  string (*values)();
  void (*set)(ProblemSpec&, string_view key, string_view text);
  string (*get)(const ProblemSpec&);
  void (*check)(const ProblemSpec&, string_view key);
};

bool parse_integer(string_view text, int64_t& value) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}

struct Range {
  int64_t low, high, step = 1;
  bool holds(int64_t value) const { return value >= low && value <= high && value % step == 0; }
  string text() const {
    const string span = std::to_string(low) + " to " + std::to_string(high);
    return step == 1 ? "an integer from " + span
                     : "a multiple of " + std::to_string(step) + " from " + span;
  }
};

template <auto Field, Range kRange>
constexpr Key integer(const char* name, unsigned operations, const char* meaning) {
  return {name,
          operations,
          meaning,
          [] { return kRange.text(); },
          [](ProblemSpec& spec, string_view key, string_view text) {
            if (!parse_integer(text, spec.*Field)) fail(key, kRange.text(), text);
          },
          [](const ProblemSpec& spec) { return std::to_string(spec.*Field); },
          [](const ProblemSpec& spec, string_view key) {
            if (!kRange.holds(spec.*Field)) fail(key, kRange.text(), std::to_string(spec.*Field));
          }};
}

template <const auto& kChoices>
string choices_text() {
  string text;
  for (const auto& choice : kChoices) append(text, ", ", choice.name);
  return "one of " + text;
}

template <auto Field, const auto& kChoices>
constexpr Key choice(const char* name, unsigned operations, const char* meaning) {
  return {name,
          operations,
          meaning,
          [] { return choices_text<kChoices>(); },
          [](ProblemSpec& spec, string_view key, string_view text) {
            for (const auto& c : kChoices) {
              if (text == c.name) {
                spec.*Field = c.value;
                return;
              }
            }
            fail(key, choices_text<kChoices>(), text);
          },
          [](const ProblemSpec& spec) {
            for (const auto& c : kChoices) {
              if (spec.*Field == c.value) return string(c.name);
            }
            return string("?");
          },
          [](const ProblemSpec& spec, string_view key) {
            const bool known = std::any_of(std::begin(kChoices), std::end(kChoices),
                                           [&](const auto& c) { return spec.*Field == c.value; });
            if (!known) fail(key, choices_text<kChoices>(), "?");
          }};
}

string lengths_text() {
  return "lengths such as 8192x4 or 65+0+130, each from 0 to " + std::to_string(kMaxTokens) +
         ", at most " + std::to_string(kMaxRows) + " of them and " + std::to_string(kMaxTokens) +
         " tokens in all";
}

void check_lengths(string_view key, const std::vector<int64_t>& lengths) {
  int64_t total = 0;
  for (int64_t length : lengths) {
    if (length < 0 || length > kMaxTokens) fail(key, lengths_text(), std::to_string(length));
    total += length;
    if (total > kMaxTokens) fail(key, lengths_text(), lengths_to_string(lengths));
  }
  if (static_cast<int64_t>(lengths.size()) > kMaxRows) {
    fail(key, lengths_text(), std::to_string(lengths.size()) + " lengths");
  }
}

template <auto Field>
constexpr Key lengths(const char* name, unsigned operations, const char* meaning) {
  return {name,
          operations,
          meaning,
          [] { return lengths_text(); },
          [](ProblemSpec& spec, string_view key, string_view text) {
            spec.*Field = parse_lengths(key, text);
          },
          [](const ProblemSpec& spec) { return lengths_to_string(spec.*Field); },
          [](const ProblemSpec& spec, string_view key) { check_lengths(key, spec.*Field); }};
}

string impl_text() { return "a name of lower-case letters, digits and underscores"; }

void check_impl(const ProblemSpec& spec, string_view key) {
  const bool good = std::all_of(spec.impl.begin(), spec.impl.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (!good || spec.impl.size() > kMaxImplName) fail(key, impl_text(), spec.impl);
}

using S = ProblemSpec;
constexpr Range kRowRange{0, kMaxRows}, kTokenRange{0, kMaxTokens}, kHeadRange{1, kMaxHeads};
constexpr Range kDimRange{8, 256, 8};

// The order of this table is the order of a canonical string.
constexpr Key kKeys[] = {
    integer<&S::b, kRowRange>("b", kAny, "rows (sequences) of the batch"),
    integer<&S::t, kTokenRange>("t", kRagged | kAttentionDecode, "tokens a row"),
    lengths<&S::lens>("lens", kRagged, "tokens of each row, instead of b and t"),
    integer<&S::hq, kHeadRange>("hq", kAny & ~(kNorm | kAppend), "query heads"),
    integer<&S::hk, kHeadRange>("hk", kPrefill | kCaches, "key heads; hq when left out"),
    integer<&S::hv, kHeadRange>("hv", kGdn | kConv | kNorm, "value heads"),
    integer<&S::k, kDimRange>("k", kGdn | kConv, "key dim"),
    integer<&S::v, kDimRange>("v", kGdn | kConv | kNorm, "value dim"),
    integer<&S::d, Range{8, 576, 8}>("d", kCaches | kMerge,
                                     "head dim, up to 256; or 576 with dv=512 (MLA)"),
    integer<&S::dv, Range{0, 512, 8}>("dv", kCaches, "dim of the values; 0: the head dim"),
    lengths<&S::kvlen>("kvlen", kCaches,
                       "tokens in the cache, this call's included: of all rows, or of each"),
    integer<&S::page, Range{0, 1024}>("page", kCaches, "tokens a page; 0: a dense cache"),
    choice<&S::io, kIoTypes>("io", kAny, "dtype of inputs and outputs"),
    choice<&S::state, kStateTypes>("state", kGdn | kConv, "dtype of the state pool"),
    choice<&S::kv, kKvTypes>("kv", kCaches, "dtype of the cache"),
    choice<&S::layout, kLayouts>("layout", kGdn, "order of a state's last two dimensions"),
    choice<&S::gate, kGates>("gate", kGdn, "how the decay is given"),
    choice<&S::beta, kBetas>("beta", kGdn, "how the update strength is given"),
    choice<&S::norm, kSwitch>("norm", kGdn, "L2 norm of q and k"),
    choice<&S::gated, kSwitch>("gated", kDecode | kMtp, "gated RMS norm of out, fused"),
    integer<&S::slots, Range{0, kMaxSlots}>("slots", kGdn | kConv,
                                            "size of the state pool; 0: as many as the rows need"),
    choice<&S::mode, kModes>("mode", kMtp, "which states are written"),
    integer<&S::width, Range{2, 4}>("width", kConv, "taps of the convolution"),
    integer<&S::drafts, Range{0, 1024}>("drafts", kConv,
                                        "window columns for drafts, read at an offset; 0: rolling"),
    choice<&S::channels_last, kSwitch>("channels_last", kConv,
                                       "windows [slots, L, C] instead of [slots, C, L]"),
    choice<&S::in_place, kSwitch>("in_place", kConv | kNorm | kMerge,
                                  "out is x; of a merge a, and lse a_lse"),
    choice<&S::mask, kMasks>("mask", kAttention, "which keys a query sees"),
    integer<&S::window, kTokenRange>("window", kAttention, "size of the window or chunk"),
    choice<&S::rope, kRopes>("rope", kAppend, "which values of a key are rotated together"),
    choice<&S::given_scales, kScales>("scales", kAppend,
                                      "what a quantised cache's numbers are divided by: scales of "
                                      "their own, or those that the cache holds"),
    choice<&S::by_slots, kBy>("by", kAppend,
                              "what says where tokens go: rows, lengths and pages, or a slot each"),
    integer<&S::checkpoint, Range{0, kMaxTokens, 64}>("checkpoint", kPrefill,
                                                      "a checkpoint every n tokens; 0: none"),
    choice<&S::initial, kSwitch>("initial", kPrefill,
                                 "start from the states of the pool, or from zero"),
    choice<&S::longest, kSwitch>("longest", kPrefill,
                                 "is the length of the longest row given (max_length)?"),
    choice<&S::told, kSwitch>("told", kPrefill,
                              "are the lengths of all rows given on the host (host_lengths)?"),
    choice<&S::device, kDevices>("device", kAny, "where it runs"),
    {"impl", kAny, "force an implementation by name", impl_text,
     [](S& spec, string_view, string_view text) { spec.impl = text; },
     [](const S& spec) { return spec.impl; }, check_impl},
    integer<&S::threads, Range{0, kMaxThreads}>("threads", kAny,
                                                "CPU threads; 0: as many as the machine has"),
    choice<&S::pool, kSwitch>("pool", kAny, "CPU: a hyla::ThreadPool in place of OpenMP's threads"),
    choice<&S::pdl, kSwitch>("pdl", kAny, "GPU: programmatic dependent launch"),
    choice<&S::invariant, kSwitch>("invariant", kAny, "a row's bits depend on nothing but the row"),
    integer<&S::seed, Range{0, INT64_MAX}>("seed", kAny, "of the random inputs"),
};

bool has(const Key& key, Operation operation) { return (key.operations & only(operation)) != 0; }

const Key& find_key(Operation operation, string_view name) {
  string known;
  for (const Key& key : kKeys) {
    if (!has(key, operation)) continue;
    if (name == key.name) return key;
    append(known, ", ", key.name);
  }
  fail(name.empty() ? "key" : name, "a key of " + string(name_of(operation)) + " (" + known + ")",
       name);
}

Operation parse_operation(string_view name) {
  string known;
  for (const OperationName& o : kOperations) {
    if (name == o.name) return o.operation;
    append(known, ", ", o.name);
  }
  fail("operation", "one of " + known, name);
}

void check_gdn_heads(const ProblemSpec& spec) {
  const bool gva = spec.hk == spec.hq && spec.hv % spec.hq == 0;
  const bool gqa = spec.hk == spec.hv && spec.hq % spec.hk == 0;
  if (spec.operation == Operation::kGdnPrefill) {
    if (gva || gqa) return;
    if (spec.hk == spec.hq) {
      fail("hv", "a multiple of hq = hk = " + std::to_string(spec.hq), std::to_string(spec.hv));
    }
    fail("hk", "hq, or hv with hq a multiple of it", std::to_string(spec.hk));
  }
  if (spec.hk != spec.hq) fail("hk", "hq = " + std::to_string(spec.hq), std::to_string(spec.hk));
  if (!gva) {
    fail("hv", "a multiple of hq = " + std::to_string(spec.hq), std::to_string(spec.hv));
  }
}

// The inputs of all tokens of a row but the first stay in columns beyond the window.
void check_drafts(const ProblemSpec& spec) {
  int64_t longest = 0;
  for (int64_t length : row_lengths(spec)) longest = std::max(longest, length);
  if (spec.drafts < longest - 1) {
    fail("drafts", "at least " + std::to_string(longest - 1) + " for the longest row, or 0",
         std::to_string(spec.drafts));
  }
}

void check_attention(const ProblemSpec& spec) {
  if (spec.given_scales && size_of(spec.kv) != 1) {
    fail("scales", "own beside a cache that is not quantised", "given");
  }
  if (spec.d != kMlaDim || spec.dv != kMlaValueDim) {
    if (spec.d > kDimRange.high) {
      fail("d", kDimRange.text() + ", or 576 with dv=512", std::to_string(spec.d));
    }
    if (spec.dv > kDimRange.high) {
      fail("dv", "0, or " + kDimRange.text() + ", or 512 with d=576", std::to_string(spec.dv));
    }
  }
  if (spec.operation != Operation::kAttentionAppend && spec.hq % spec.hk != 0) {
    fail("hk", "a divisor of hq = " + std::to_string(spec.hq), std::to_string(spec.hk));
  }
  const bool sized = spec.mask == Mask::kWindow || spec.mask == Mask::kChunked;
  if (sized && spec.window == 0) fail("window", "a size >= 1 for this mask", "0");
  if (!sized && spec.window != 0) {
    fail("window", "none without mask=window or mask=chunked", std::to_string(spec.window));
  }
  const std::vector<int64_t> queries = row_lengths(spec);
  if (spec.operation == Operation::kAttentionDecode && spec.kvlen.empty()) {
    fail("kvlen", lengths_text(), "");
  }
  if (spec.kvlen.size() > 1 && spec.kvlen.size() != queries.size()) {
    fail("kvlen", "one length, or one for each of the " + std::to_string(queries.size()) + " rows",
         lengths_to_string(spec.kvlen));
  }
  const std::vector<int64_t> keys = kv_lengths(spec);
  int64_t total = 0;
  for (std::size_t n = 0; n < queries.size(); ++n) {
    total += keys[n];
    if (spec.operation == Operation::kAttentionAppend && keys[n] < queries[n]) {
      fail("kvlen",
           "at least the " + std::to_string(queries[n]) + " tokens of row " + std::to_string(n) +
               ", which are in the cache too",
           std::to_string(keys[n]));
    }
    if (total > kMaxTokens * 16) fail("kvlen", "a cache of at most 2^30 tokens", "more");
  }
}

}  // namespace

const char* name_of(Operation operation) {
  return kOperations[static_cast<std::size_t>(operation)].name;
}

const char* library_name_of(Operation operation) {
  return kOperations[static_cast<std::size_t>(operation)].library_name;
}

std::vector<Operation> all_operations() {
  std::vector<Operation> result;
  for (const OperationName& o : kOperations) result.push_back(o.operation);
  return result;
}

std::vector<KeyInfo> keys_of(Operation operation) {
  std::vector<KeyInfo> result;
  for (const Key& key : kKeys) {
    if (has(key, operation)) result.push_back({key.name, key.values(), key.meaning});
  }
  return result;
}

ProblemSpec defaults(Operation operation) {
  ProblemSpec spec;
  spec.operation = operation;
  switch (operation) {
    case Operation::kGdnMtp:
      spec.t = 4;
      break;
    case Operation::kGdnPrefill:
      spec.t = 256;
      spec.gate = gdn::Gate::Kind::kLinear;
      spec.beta = gdn::Beta::Kind::kProbability;
      spec.norm = false;
      break;
    case Operation::kGdnRecurrence:
      spec.t = 16;
      spec.layout = gdn::StateLayout::kKV;
      spec.gate = gdn::Gate::Kind::kLinear;
      spec.beta = gdn::Beta::Kind::kProbability;
      break;
    case Operation::kConvPrefill:
      spec.t = 256;
      spec.state = DType::kBFloat16;
      break;
    case Operation::kConvUpdate:
      spec.state = DType::kBFloat16;
      break;
    case Operation::kAttentionDecode:
      spec.hk = 2;
      spec.d = 256;
      spec.kvlen = {1024};
      break;
    case Operation::kAttentionAppend:
      spec.hk = 2;
      spec.d = 256;
      break;
    case Operation::kAttentionMerge:
      spec.d = 256;
      break;
    case Operation::kAttentionPrefill:
      spec.hk = 2;
      spec.d = 256;
      spec.t = 256;
      break;
    default:
      break;
  }
  return spec;
}

std::vector<int64_t> parse_lengths(string_view key, string_view text) {
  std::vector<int64_t> result;
  string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t plus = rest.find('+');
    more = plus != string_view::npos;
    const string_view item = rest.substr(0, plus);
    rest = more ? rest.substr(plus + 1) : string_view();
    const std::size_t x = item.find('x');
    int64_t length = 0, count = 1;
    const bool good = parse_integer(item.substr(0, x), length) &&
                      (x == string_view::npos || parse_integer(item.substr(x + 1), count)) &&
                      length >= 0 && length <= kMaxTokens && count >= 1 && count <= kMaxRows &&
                      static_cast<int64_t>(result.size()) + count <= kMaxRows;
    if (!good) fail(key, lengths_text(), text);
    result.insert(result.end(), static_cast<std::size_t>(count), length);
  }
  check_lengths(key, result);
  return result;
}

string lengths_to_string(const std::vector<int64_t>& lengths) {
  string text;
  for (std::size_t i = 0; i < lengths.size();) {
    std::size_t end = i;
    while (end < lengths.size() && lengths[end] == lengths[i]) ++end;
    append(text, "+", std::to_string(lengths[i]));
    if (end - i > 1) text.append("x").append(std::to_string(end - i));
    i = end;
  }
  return text;
}

int64_t value_dim(const ProblemSpec& spec) { return spec.dv != 0 ? spec.dv : spec.d; }

std::vector<int64_t> row_lengths(const ProblemSpec& spec) {
  if (!spec.lens.empty()) return spec.lens;
  const bool one_token = spec.operation == Operation::kGdnDecode ||
                         spec.operation == Operation::kNormGatedRms ||
                         spec.operation == Operation::kAttentionMerge;
  return std::vector<int64_t>(static_cast<std::size_t>(spec.b), one_token ? 1 : spec.t);
}

int64_t total_tokens(const ProblemSpec& spec) {
  const std::vector<int64_t> rows = row_lengths(spec);
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

std::vector<int64_t> kv_lengths(const ProblemSpec& spec) {
  std::vector<int64_t> rows = row_lengths(spec);
  if (spec.kvlen.size() == 1) std::fill(rows.begin(), rows.end(), spec.kvlen[0]);
  if (spec.kvlen.size() > 1) rows = spec.kvlen;
  return rows;
}

void check_problem(const ProblemSpec& spec) {
  const ProblemSpec initial = defaults(spec.operation);
  for (const Key& key : kKeys) {
    if (has(key, spec.operation)) {
      key.check(spec, key.name);
    } else if (string_view(key.name) != "hk" && key.get(spec) != key.get(initial)) {
      fail(key.name, "none for " + string(name_of(spec.operation)), key.get(spec));
    }
  }
  if (!spec.lens.empty() && (spec.b != initial.b || spec.t != initial.t)) {
    fail(spec.b != initial.b ? "b" : "t", "none beside lens",
         std::to_string(spec.b != initial.b ? spec.b : spec.t));
  }
  if (spec.lens.empty() && spec.b * spec.t > kMaxTokens) {
    fail("t", "at most " + std::to_string(kMaxTokens) + " tokens in all", std::to_string(spec.t));
  }
  if ((only(spec.operation) & kGdn) != 0) check_gdn_heads(spec);
  if (spec.operation == Operation::kConvUpdate && spec.drafts != 0) check_drafts(spec);
  if ((only(spec.operation) & kCaches) != 0) check_attention(spec);
  const auto rows = static_cast<int64_t>(row_lengths(spec).size());
  if (spec.slots != 0 && spec.slots < rows) {
    fail("slots", "at least the " + std::to_string(rows) + " rows, or 0",
         std::to_string(spec.slots));
  }
}

ProblemSpec parse_problem(string_view text) {
  const std::size_t colon = text.find(':');
  ProblemSpec spec = defaults(parse_operation(text.substr(0, colon)));
  string_view rest = colon == string_view::npos ? string_view() : text.substr(colon + 1);
  std::vector<string_view> seen;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const string_view item = rest.substr(0, comma);
    rest = comma == string_view::npos ? string_view() : rest.substr(comma + 1);
    if (comma != string_view::npos && rest.empty()) fail("key", "key=value after the comma", "");
    const std::size_t equals = item.find('=');
    const string_view name = item.substr(0, equals);
    const Key& key = find_key(spec.operation, name);
    if (equals == string_view::npos) fail(name, key.values() + " after '='", item);
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) fail(name, "it once", item);
    seen.push_back(name);
    key.set(spec, name, item.substr(equals + 1));
  }
  const auto given = [&](string_view name) {
    return std::find(seen.begin(), seen.end(), name) != seen.end();
  };
  if (given("hq") && !given("hk")) spec.hk = spec.hq;
  if (given("lens") && (given("b") || given("t"))) {
    fail(given("b") ? "b" : "t", "none beside lens", std::to_string(given("b") ? spec.b : spec.t));
  }
  check_problem(spec);
  return spec;
}

string to_string(const ProblemSpec& spec) {
  const ProblemSpec initial = defaults(spec.operation);
  string text;
  for (const Key& key : kKeys) {
    if (!has(key, spec.operation)) continue;
    bool differs = key.get(spec) != key.get(initial);
    // Left out, hk follows a given hq.
    if (string_view(key.name) == "hk") {
      differs = spec.hk != (spec.hq != initial.hq ? spec.hq : initial.hk);
    }
    if (differs)
      text.append(text.empty() ? ":" : ",").append(key.name).append("=").append(key.get(spec));
  }
  return name_of(spec.operation) + text;
}

}  // namespace hyla::testing
