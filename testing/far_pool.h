// Pools of more than 2^31 elements: a small call's slots or pages at the far end of a large pool,
// in front of them nothing but NaN. A 32-bit offset anywhere reads poison or leaves a slot
// unwritten.
#pragma once

#include <string_view>

#include "testing/call.h"

namespace hyla::testing {

// Tensors that are found by slot or page number.
bool is_pool(std::string_view name);
// Does a tensor of this name hold numbers of slots or pages?
bool holds_slots(std::string_view name);

// How many numbers of such a tensor are of one entry of the pool: flat slots count tokens.
std::int64_t numbers_of_entry(const Call& call, std::string_view name);

// So many slots or pages put every pool of the call beyond 2^31 elements. 0: it has none.
std::int64_t far_shift(const Call& call);

// Adds `shift` to every number of a slot or page that is not null; one out of range stays so.
void shift_slots(Call& call, std::int64_t shift);

}  // namespace hyla::testing
