// Where a row of the batch lies among the keys and values that were widened into the workspace.
#pragma once

namespace hyla::attention {

struct Region {
  int begin;       // row of the workspace; does not fall from one row of the batch to the next
  int first, end;  // tokens of the cache: from a multiple of a tile to the length
  int chosen;      // 0: the row is not widened
};

}  // namespace hyla::attention
