// The copy engine (TMA): tiles described by a tensor map, and plain bulk copies. Loads complete on
// an mbarrier, stores in bulk groups of the issuing thread. One thread issues.
#pragma once

#include <cuda.h>

#include "arch/mbarrier.cuh"

namespace hyla::arch {

struct Coordinates2 {
  int x, y;
};
struct Coordinates3 {
  int x, y, z;  // x: the contiguous dimension
};
struct Coordinates4 {
  int x, y, z, w;
};
struct Coordinates5 {
  int x, y, z, w, v;
};

__device__ __forceinline__ void load_tile(void* to, const CUtensorMap& map, Coordinates3 at,
                                          Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void load_tile(std::uint32_t to, const CUtensorMap& map, Coordinates2 at,
                                          Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(at.x), "r"(at.y), "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void load_tile(std::uint32_t to, const CUtensorMap& map, Coordinates4 at,
                                          Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void load_tile(std::uint32_t to, const CUtensorMap& map, Coordinates5 at,
                                          Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
      "l"(&map), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(at.v),
      "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void store_tile(const CUtensorMap& map, Coordinates3 at,
                                           const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
          &map),
      "r"(at.x), "r"(at.y), "r"(at.z), "r"(shared_address(from))
      : "memory");
}

// Plain copies: 16-byte aligned on both sides, a multiple of 16 bytes.
__device__ __forceinline__ void load_bulk(void* to, const void* from, std::uint32_t bytes,
                                          Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void store_bulk(void* to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until the sources of all but the latest `Pending` groups have been read: they may be overwritten.
template <int Pending>
__device__ __forceinline__ void wait_for_store_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

// Until all but the latest `Pending` groups are in memory.
template <int Pending>
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}

// Memory written by ordinary stores, seen by the copy engine and wgmma afterwards. By every writer,
// before the barrier that hands it over.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Into L2 only.
__device__ __forceinline__ void prefetch_bulk(const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace hyla::arch
