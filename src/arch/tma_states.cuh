// Tiles of tensors with four dimensions, such as a pool of states, to memory.
#pragma once

#include "arch/tma.cuh"

namespace hyla::arch {

__device__ __forceinline__ void store_tile_4d(const CUtensorMap& map, Coordinates4 at,
                                              const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::
          "l"(&map),
      "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(shared_address(from))
      : "memory");
}

}  // namespace hyla::arch
