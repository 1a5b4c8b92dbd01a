// Drafts that were not accepted, as an engine leaves them: anything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "testing/call.h"

namespace hyla::testing {

// Of an MTP call with commit_lengths and rows of T tokens: whatever belongs to the tokens behind a
// row's commit length becomes NaN. Returns how many tokens these are.
inline std::int64_t spoil_rejected_tokens(Call& call) {
  auto& p = std::get<gdn::MtpParams>(call.params);
  const std::int64_t rows = p.q.shape[0], tokens = p.q.shape[1];
  std::int64_t rejected = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const TensorView& lengths = p.commit_lengths;
    const auto read = static_cast<std::int64_t>(load_element(lengths, row * lengths.strides[0]));
    const std::int64_t commit = std::clamp<std::int64_t>(read, 0, tokens);
    for (const TensorView& view : {p.q, p.k, p.v, p.gate.value, p.beta.value}) {
      if (!view.present()) continue;
      const TensorView rest = view.select(0, row).slice(0, commit, tokens - commit);
      for_each_element(rest, [&](std::int64_t, std::int64_t offset) {
        store_element(rest, offset, std::numeric_limits<double>::quiet_NaN());
      });
    }
    rejected += tokens - commit;
  }
  return rejected;
}

}  // namespace hyla::testing
