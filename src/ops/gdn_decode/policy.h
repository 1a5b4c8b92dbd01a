// Which variant of a one-token kernel runs. Measured on an H200 with HV = 32, 128 x 128, L2 cold,
// CUDA graph; the tables are in experiments.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace hyla::gdn {

struct DecodeVariant {
  std::int64_t most_bytes;  // of all states
  int loads;                // accesses in flight a thread, of 16 bytes
  int lanes;                // side by side along a line
  int warps = 0;            // kVK: that own rows; kKV: what K needs
  // kVK: a warp without rows serves the others; else each does everything for itself. kKV: it sums
  // the columns for them, behind a second barrier; else each does.
  bool served = false;
  int parts = 1;  // kVK: warps side by side along a row
  bool early =
      false;  // kKV, served: the sums with k first, those with q while the others are added
  bool spread = false;  // kKV, served: the columns are added up by the other warps, one a thread
  bool again = false;   // 16-bit states, served or kKV: unpacked twice, which saves registers
  int resident = 0;     // served or kKV: warps that an SM must have room for
  bool staged = false;  // served or kKV: the state waits in shared memory, not in registers
  int around = 0;       // kVK: bytes that L2 gets with each access, 0 for no more
  bool apart = false;   // kVK, served: work between the stores of a line
  bool half = false;    // kKV, 16-bit states: accesses of 8 bytes, so fewer columns a lane
  bool dense = false;   // kKV: only for lines of K values that lie side by side
  int keys = 0;         // only for so many, 0 for any
};

// Few bytes: latency counts, so more and shorter warps. Many: instructions and the order in which
// the memory is asked.
using DecodeVariants = std::array<DecodeVariant, 9>;

inline constexpr std::int64_t kMiB = 1 << 20, kAnyBytes = std::int64_t{1} << 62;

// The first that fits is taken; the last one, which fits everything, fills up the list.
constexpr DecodeVariants in_order(std::initializer_list<DecodeVariant> variants) {
  DecodeVariants list;
  list.fill(variants.end()[-1]);
  std::copy(variants.begin(), variants.end(), list.begin());
  return list;
}

// The same for 128 keys only.
constexpr DecodeVariant of_128_keys(DecodeVariant vk, std::int64_t most_bytes) {
  vk.most_bytes = most_bytes, vk.keys = 128;
  return vk;
}
// And with work between its stores.
constexpr DecodeVariant stored_apart(DecodeVariant vk, std::int64_t most_bytes) {
  vk.apart = true;
  return of_128_keys(vk, most_bytes);
}

// Up to 8 MiB a lane group takes 64 bytes of a row at a time, the other half of a line with its
// next access or the next warp: 3 to 7 % faster than whole lines.
constexpr DecodeVariants vk_variants(std::size_t element_bytes, bool is_half) {
  if (element_bytes == 4) {
    constexpr DecodeVariant kLeast{kMiB / 4, 2, 32, 4, true};
    constexpr DecodeVariant kFew{.most_bytes = 4 * kMiB,
                                 .loads = 2,
                                 .lanes = 4,
                                 .warps = 8,
                                 .served = true,
                                 .parts = 4,
                                 .around = 128};
    constexpr DecodeVariant kSome{.most_bytes = 8 * kMiB,
                                  .loads = 4,
                                  .lanes = 4,
                                  .warps = 8,
                                  .served = true,
                                  .parts = 2,
                                  .around = 128};
    constexpr DecodeVariant kMany{kAnyBytes, 8, 16, 1};
    constexpr DecodeVariant kFewApart = stored_apart(kFew, kFew.most_bytes);
    return in_order({kLeast, kFewApart, kFew, kSome, kMany});
  }
  constexpr DecodeVariant kLeast{kMiB / 2, 2, 4, 4, true, 2};
  constexpr DecodeVariant kFew{.most_bytes = 2 * kMiB,
                               .loads = 2,
                               .lanes = 4,
                               .warps = 8,
                               .served = true,
                               .parts = 2,
                               .around = 128};
  constexpr DecodeVariant kFewHalves{2 * kMiB, 2, 4, 4, true, 2};
  // One wave of CTAs up to 8 MiB, as kKV. Half precision has not enough registers for it.
  constexpr auto some = [](std::int64_t most_bytes) {
    return DecodeVariant{.most_bytes = most_bytes,
                         .loads = 4,
                         .lanes = 4,
                         .warps = 4,
                         .served = true,
                         .parts = 2,
                         .again = true,
                         .resident = 40,
                         .around = 128};
  };
  constexpr DecodeVariant kMoreHalves{4 * kMiB, 2, 16, 8, true, 4}, kSomeHalves{8 * kMiB, 4, 16, 4};
  constexpr DecodeVariant kMore{32 * kMiB, 4, 16, 4, true}, kMany{kAnyBytes, 4, 16, 2, true};
  if (is_half) return in_order({kLeast, kFewHalves, kMoreHalves, kSomeHalves, kMore, kMany});
  constexpr DecodeVariant kFewApart = stored_apart(kFew, 4 * kMiB);
  // Where they fill the multiprocessors; up to 7 MiB (B = 6) it is 2 % slower.
  constexpr DecodeVariant kFull = some(8 * kMiB), kFullApart = stored_apart(kFull, 8 * kMiB);
  return in_order({kLeast, kFewApart, kFew, some(4 * kMiB), of_128_keys(kFull, 7 * kMiB),
                   kFullApart, kFull, kMore, kMany});
}

// Longer rows by more warps side by side, so that a lane has as many of a row: they are registers.
// 64 keys in 16 bits are one line: a warp has all of it, beyond 4 MiB by warps that do everything.
constexpr DecodeVariant for_rows(DecodeVariant vk, int K, std::size_t element_bytes) {
  if (vk.lanes >= 16 || K == 128) return vk;
  if (element_bytes == 4) {
    if (K > 128) vk.parts *= K / 128;
    if (K < 128 && vk.parts == 4) vk.parts = 2;
    return vk;
  }
  if (K < 128 && vk.most_bytes > 4 * kMiB) return {vk.most_bytes, 4, 16, 4};
  return {.most_bytes = vk.most_bytes,
          .loads = K < 128 ? 2 : vk.loads,
          .lanes = 4,
          .warps = K < 128 ? 4 : 8,
          .served = true,
          .parts = K < 128 ? 1 : 4,
          .around = 128};
}

constexpr DecodeVariants kv_variants(std::size_t element_bytes) {
  constexpr DecodeVariant kMany{kAnyBytes, 8, 16, 0, true};
  if (element_bytes == 4) {
    return in_order({{4 * kMiB, 4, 4}, {8 * kMiB, 8, 4}, kMany});
  }
  // Four columns a lane instead of eight: half the sums to exchange, and few enough for each thread
  // to add up its columns over the warps, without a second barrier. Lines at known distances.
  // One CTA an SM is asked for, which ptxas takes for leave to use 72 registers instead of 64.
  constexpr DecodeVariant kHalves{.most_bytes = 4 * kMiB,
                                  .loads = 8,
                                  .lanes = 8,
                                  .resident = 5,
                                  .half = true,
                                  .dense = true,
                                  .keys = 128};
  // 8 MiB are one wave of CTAs if an SM has room for eight, so registers count.
  return in_order({kHalves,
                   {.most_bytes = kMiB, .loads = 4, .lanes = 4, .served = true},
                   {.most_bytes = 4 * kMiB, .loads = 4, .lanes = 4, .served = true, .early = true},
                   {.most_bytes = 8 * kMiB, .loads = 8, .lanes = 4, .again = true, .resident = 24},
                   {.most_bytes = 64 * kMiB,
                    .loads = 8,
                    .lanes = 16,
                    .served = true,
                    .resident = 36,
                    .staged = true},
                   kMany});
}

// For values that do not fill a CTA of those: 64 do.
constexpr DecodeVariant kv_fallback(std::size_t element_bytes) {
  if (element_bytes == 4) return {kAnyBytes, 8, 16, 0, true};
  return {kAnyBytes, 4, 8, 0, true};
}

// More lines for the same warps: CTAs of sixteen were 1.2 to 1.5 times slower.
constexpr DecodeVariant for_keys(DecodeVariant kv, int K, std::size_t element_bytes) {
  constexpr int kMostWarps = 8, kMostLoads = 8;
  // And a warp alone, where K is short, 1.2 times.
  if (kv.again && K * kv.lanes <= 32 * kv.loads) {
    return {.most_bytes = kv.most_bytes,
            .loads = 4,
            .lanes = 8,
            .served = true,
            .resident = 40,
            .staged = true};
  }
  if (K < 128 && element_bytes == 2 && kv.most_bytes <= 4 * kMiB) kv.loads = 2, kv.early = true;
  while (K * kv.lanes > 32 * kv.loads * kMostWarps) {
    if (kv.loads < kMostLoads) {
      kv.loads *= 2;
    } else {
      kv.lanes /= 2;
    }
    kv.again = true;
  }
  const int columns = kv.lanes * (16 / static_cast<int>(element_bytes)),
            warps = K * kv.lanes / (32 * kv.loads);
  kv.spread = kv.spread && 2 * columns <= 32 * warps;
  return kv;
}

// With the fused norm, K = V = 128: the values of a head are one CTA, or a cluster of at most
// kMaxCluster. kVK: all are served.
using GatedVariants = std::array<DecodeVariant, 5>;

// Pieces of 64 bytes as without the norm, 3 to 11 % faster than whole rows. 6 and 8 MiB are one wave
// of CTAs.
constexpr DecodeVariant vk_gated_pieces(std::int64_t most_bytes, int loads, int warps, int parts) {
  return {.most_bytes = most_bytes,
          .loads = loads,
          .lanes = 4,
          .warps = warps,
          .served = true,
          .parts = parts,
          .around = 128};
}

constexpr GatedVariants vk_gated_variants(std::size_t element_bytes) {
  if (element_bytes == 4) {
    return {{vk_gated_pieces(6 * kMiB, 4, 4, 4),
             vk_gated_pieces(8 * kMiB, 4, 8, 4),
             vk_gated_pieces(16 * kMiB, 8, 4, 4),
             {kAnyBytes, 4, 32, 4, true},
             {kAnyBytes, 4, 32, 4, true}}};
  }
  constexpr DecodeVariant kHead{.most_bytes = 16 * kMiB,
                                .loads = 8,
                                .lanes = 16,
                                .warps = 8,
                                .served = true,
                                .resident = 36,
                                .staged = true};
  constexpr DecodeVariant kMany{
      .most_bytes = kAnyBytes, .loads = 4, .lanes = 16, .warps = 4, .served = true, .again = true};
  return {{vk_gated_pieces(6 * kMiB, 4, 4, 2), vk_gated_pieces(8 * kMiB, 4, 8, 2), kHead, kMany,
           kMany}};
}

constexpr GatedVariants kv_gated_variants(std::size_t element_bytes) {
  if (element_bytes == 4) {
    constexpr DecodeVariant kMany{kAnyBytes, 4, 8, 0, true};
    constexpr DecodeVariant kStaged{.most_bytes = 16 * kMiB,
                                    .loads = 8,
                                    .lanes = 8,
                                    .served = true,
                                    .resident = 35,
                                    .staged = true};
    return {{{4 * kMiB, 8, 4, 0, true}, kStaged, kMany, kMany, kMany}};
  }
  constexpr DecodeVariant kHalf{.most_bytes = 8 * kMiB,
                                .loads = 8,
                                .lanes = 8,
                                .served = true,
                                .resident = 40,
                                .staged = true};
  constexpr DecodeVariant kHead{.most_bytes = kAnyBytes,
                                .loads = 8,
                                .lanes = 16,
                                .served = true,
                                .spread = true,
                                .resident = 36,
                                .staged = true};
  constexpr DecodeVariant kHalves{
      .most_bytes = kMiB, .loads = 8, .lanes = 8, .half = true, .dense = true, .keys = 128};
  return {{kHalves, {kMiB, 4, 4, 0, true}, {4 * kMiB, 8, 4, 0, true}, kHalf, kHead}};
}

}  // namespace hyla::gdn
