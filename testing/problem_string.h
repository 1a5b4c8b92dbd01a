// One string names a problem everywhere, in tests, benchmarks and messages:
//
//     operation:key=value,...      gdn_decode:b=64,hq=16,hv=32,state=bf16
//
// Keys that are left out have the operation's default. `lens` is a sum of LENGTH or LENGTHxCOUNT:
// 8192x4 is four sequences of 8192 tokens, 65+0+130 three sequences, 64x3+5 four, 32768 one.
#pragma once

#include <hyla/gdn.h>
#include <hyla/tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hyla::testing {

enum class Operation {
  kGdnDecode,
  kGdnMtp,
  kGdnPrefill,
  kGdnRecurrence,
  kConvPrefill,
  kConvUpdate,
  kNormGatedRms,
  kAttentionDecode,
  kAttentionPrefill,
  kAttentionAppend,
  kAttentionMerge,
};

enum class Mode {
  kFinal,     // MTP writes the state after the last token
  kAll,       // MTP writes the state after every token to a buffer, and leaves the pool alone
  kAccepted,  // MTP writes the state after commit_lengths tokens
};

enum class Rope { kNone, kHalves, kPairs };  // of appended keys

enum class Mask { kCausal, kNone, kWindow, kChunked };

// Keys of multi-head latent attention, whose values are the first part of them.
inline constexpr std::int64_t kMlaDim = 576, kMlaValueDim = 512;

struct ProblemSpec {
  Operation operation = Operation::kGdnDecode;
  std::int64_t b = 1, t = 1;       // rows, tokens a row
  std::vector<std::int64_t> lens;  // ragged lengths instead of b and t; empty: not given
  std::int64_t hq = 16, hk = 16, hv = 32;
  std::int64_t k = 128, v = 128;    // dims of GDN heads
  std::int64_t d = 128, dv = 0;     // dims of attention heads and of their values; 0: d
  std::vector<std::int64_t> kvlen;  // one for all rows, or one a row; empty: that of the queries
  std::int64_t page = 16;           // tokens a page; 0: a dense cache
  DType io = DType::kBFloat16, state = DType::kFloat32, kv = DType::kBFloat16;
  gdn::StateLayout layout = gdn::StateLayout::kVK;
  gdn::Gate::Kind gate = gdn::Gate::Kind::kRaw;
  gdn::Beta::Kind beta = gdn::Beta::Kind::kLogit;
  bool norm = true;        // L2 norm of q and k
  bool gated = false;      // gated RMS norm of out, fused
  std::int64_t slots = 0;  // pool size; 0: as many as the rows need
  Mode mode = Mode::kFinal;
  std::int64_t width = 4;      // taps of a convolution
  std::int64_t drafts = 0;     // conv: columns beyond the window, read at an offset; 0: rolling
  bool channels_last = false;  // conv: windows [slots, L, C] instead of [slots, C, L]
  bool in_place = false;       // conv, norm: out is x; merge: out is a, lse a_lse
  Mask mask = Mask::kCausal;
  std::int64_t window = 0;  // of mask = window or chunked
  Rope rope = Rope::kNone;
  bool given_scales = false;    // append: divide by the scales that the cache holds
  bool by_slots = false;        // append: tokens bring slots along instead of rows and pages
  std::int64_t checkpoint = 0;  // every n tokens; 0: none
  bool initial = true;          // prefill: states come from the pool, or start from zero
  bool longest = true;          // does the host know the tokens of the longest row?
  bool told = false;            // and of all rows?
  Device::Kind device = Device::Kind::kCpu;
  std::string impl;  // empty: the best
  std::int64_t threads = 0;
  bool pool = false;       // a ThreadPool in place of OpenMP's threads
  bool pdl = false;        // programmatic dependent launch
  bool invariant = false;  // a row's bits depend on nothing but the row
  std::int64_t seed = 0;

  bool operator==(const ProblemSpec&) const = default;
};

// What an operation's keys mean when they are left out.
ProblemSpec defaults(Operation operation);

// Throws InvalidArgument whose argument() is "operation" or the key. What it returns has passed
// check_problem.
ProblemSpec parse_problem(std::string_view text);

// The keys that differ from the defaults, in a fixed order: parse_problem(to_string(x)) == x.
std::string to_string(const ProblemSpec& spec);

// Values in range, and in step with each other. The same errors as parse_problem.
void check_problem(const ProblemSpec& spec);

std::vector<std::int64_t> parse_lengths(std::string_view key, std::string_view text);
std::string lengths_to_string(const std::vector<std::int64_t>& lengths);

const char* name_of(Operation operation);          // "gdn_decode"
const char* library_name_of(Operation operation);  // "gdn.decode", as hyla::operations() says it
std::vector<Operation> all_operations();

struct KeyInfo {
  std::string name, values, meaning;
};
std::vector<KeyInfo> keys_of(Operation operation);

// Of attention: dv, or d.
std::int64_t value_dim(const ProblemSpec& spec);
// Tokens of each row, from lens or from b and t.
std::vector<std::int64_t> row_lengths(const ProblemSpec& spec);
std::int64_t total_tokens(const ProblemSpec& spec);
// Tokens in the cache of each row, those of this call included.
std::vector<std::int64_t> kv_lengths(const ProblemSpec& spec);

}  // namespace hyla::testing
