// Where a token goes that brings its slot along.
#pragma once

#include "ops/attention/cache_places.h"

namespace hyla::attention::appending {

// Nowhere: a slot that the cache does not have.
HYLA_HOST_DEVICE inline Place place_of_slot(const CachePlaces& places, std::int64_t slot) {
  if (slot < 0 || places.tokens == 0) return {-1, 0};
  const std::int64_t outer = slot / places.tokens;
  if (outer >= places.outers) return {-1, 0};
  return {outer, slot - outer * places.tokens};
}

}  // namespace hyla::attention::appending
