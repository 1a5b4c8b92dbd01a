// Lists of checkpoints, which the prefills of states and of windows share.
#pragma once

#include "core/check.h"

namespace hyla {

// Where the host sees them: token counts in rising order up to the row's length, ended by a
// negative one. Returns how many there are. Looks no further than the first wrong one: a list may
// claim any number of columns.
inline std::int64_t check_checkpoint_offsets(const core::IndexView& offsets,
                                             const core::Sequences& sequences, std::int64_t row) {
  const std::int64_t length = sequences.length(row);
  std::int64_t count = 0;
  for (std::int64_t before = -1; count < offsets.columns; ++count) {
    const std::int64_t tokens = offsets.at(row, count);
    if (tokens < 0) break;
    if (tokens <= before || tokens > length) {
      core::fail("checkpoint_offsets",
                 "rising token counts up to the sequence's " + core::text(length),
                 core::text(tokens) + " in row " + core::text(row));
    }
    before = tokens;
  }
  return count;
}

}  // namespace hyla
