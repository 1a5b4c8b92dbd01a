#include "problem/gdn_decode.h"

#include "problem/gdn_rows.h"

namespace hyla::gdn {

DecodeProblem validate(const DecodeParams& params, const Context& context) {
  DecodeProblem p;
  core::Shapes shapes;
  const bool with_token_dim = params.q.rank == 4;  // [B, 1, H, K]
  if (with_token_dim) shapes.bind("T", 1);
  check_rows(p, params, with_token_dim ? kUniform : kOneToken, shapes, context);
  p.sequences.rows = shapes["B"];
  p.sequences.tokens = 1;
  core::check_slots(p.slots,
                    {params.read_slots, params.read_columns, params.write_slots, params.first_slot,
                     p.initial.slots, p.initial.slots, "state"},
                    p.sequences.rows, context);
  core::Overlaps overlaps;
  add_row_tensors(overlaps, params);
  overlaps.check();
  return p;
}

}  // namespace hyla::gdn
