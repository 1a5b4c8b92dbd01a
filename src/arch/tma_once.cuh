// Tiles that nobody reads again soon: they leave L2 before everything else (PTX ISA 7.4, cache
// eviction policies).
#pragma once

#include "arch/cp_async_once.cuh"
#include "arch/tma.cuh"

namespace hyla::arch {

__device__ __forceinline__ void load_tile_once(void* to, const CUtensorMap& map, Coordinates3 at,
                                               Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(shared_address(&barrier)), "l"(evict_first())
      : "memory");
}

__device__ __forceinline__ void store_tile_once(const CUtensorMap& map, Coordinates3 at,
                                                const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint"
      " [%0, {%1, %2, %3}], [%4], %5;" ::"l"(&map),
      "r"(at.x), "r"(at.y), "r"(at.z), "r"(shared_address(from)), "l"(evict_first())
      : "memory");
}

}  // namespace hyla::arch
