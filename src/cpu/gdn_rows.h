// Rows of tokens, one token after another, over states that stay where they are: decode, MTP and
// recurrence.
#pragma once

#include "cpu/parallel.h"
#include "cpu/target.h"
#include "problem/gdn_mtp.h"
#include "problem/gdn_prefill.h"

namespace hyla::cpu {

inline constexpr std::int64_t kTokenBlock = 8;  // prepared at a time, on the stack
inline constexpr std::int64_t kTogether = 3;    // two tokens are as fast one after the other
inline constexpr std::int64_t kPartWidth = 8;   // of the value dimension
inline constexpr std::int64_t kTileRows = 16;   // the same where AMX is used
inline constexpr std::int64_t kMaxDim = 256;

// Rows of a prefill that are faster this way than by chunks.
inline bool is_short_row(const gdn::PrefillProblem& p, std::int64_t row) {
  const std::int64_t length = p.sequences.length(row);
  return length > 0 && length <= kTokenBlock && p.starts_from_pool(row);
}

// A unit of work is a part of the value dimension of one head of one row. Value rows of a state do
// not depend on each other, so the bits of a result do not depend on the parts.
struct RowsPlan {
  std::int64_t parts = 1;                        // of a head
  std::int64_t units = 0;                        // rows * heads * parts
  bool stream = false;                           // states of all tokens go past the caches
  const gdn::PrefillProblem* prefill = nullptr;  // not null: its short rows alone
  bool far = false;      // the states do not fit the caches: all that is read comes from memory
  bool pages = false;    // nor do their addresses stay in the translation buffers
  bool near = false;     // the first cache has room for what is fetched ahead
  bool twice = false;    // what is out of memory is asked for twice and close by, see Fetch
  bool pairs = true;     // products of pairs of bfloat16 are fast where the target has them
  bool one_way = false;  // token after token, however many a row has: its bits do not tell
  bool tiles = false;    // products of few tokens go by AMX, see rows_amx_refuses

  bool takes(std::int64_t row) const { return prefill == nullptr || is_short_row(*prefill, row); }
};

struct RowsKernels {
  // `scratch`: K * V floats, needed by rows of more than kTokenBlock tokens.
  void (*run)(const gdn::MtpProblem& p, const RowsPlan& plan, Range units, float* scratch);
};
const RowsKernels& rows_kernels(Target target);

}  // namespace hyla::cpu
