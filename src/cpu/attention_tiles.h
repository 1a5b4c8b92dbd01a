// Tiles in registers of attention of few columns: keys by columns, columns by values. Compiled for
// each target (see foreach_target.h).
//
// Logits are products along D. A vector of them is a few keys by kColumns columns, so that neither
// the softmax nor the products with values move anything between lanes. With pairs of bfloat16 the
// two keys of a pair are those whose weights lie in the same lane of neighbouring vectors.
//
// Eight columns of pairs are enough products for each key to hide its way into the lanes: pairs of
// four keys lie side by side then, little is summed over lanes, a vector of logits is sixteen keys
// of one column, and the keys of a pair are neighbours.
#if defined(HYLA_CPU_ATTENTION_TILES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_TILES_H_
#undef HYLA_CPU_ATTENTION_TILES_H_
#else
#define HYLA_CPU_ATTENTION_TILES_H_
#endif

#include "cpu/attention_rows.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

template <class Op, int kColumns>
struct StreamTiles {
  using Vector = typename Op::Vector;
  static constexpr int kKeys = kLanes / kColumns;         // whose logits share a vector
  static constexpr int kMostGroup = kLanes == 8 ? 4 : 8;  // columns that there are registers for
  static constexpr int kGroup = std::min(kColumns, kMostGroup);  // those of a tile of outputs
  static constexpr int kBlock = kValueVectors * kLanes;          // values of it
  // At a time: as many as have room in the L1 cache beside outputs under way, converted lines or
  // not.
  static constexpr std::int64_t kStreamKeys = Op::kSummed == 2 && kColumns >= 8 ? 64 : 32;

  static constexpr bool kByColumn = Op::kSummed == 2 && kColumns == 8;
  static constexpr int kApart = kByColumn ? 1 : kKeys;  // the keys of a pair

  // Half a vector of two keys each, whose sums over lanes cost half as much.
  template <class Rows>
  static constexpr bool kByHalves = HYLA_TARGET_HAS_AVX512 != 0 && Rows::kSplit;
  // Whose logits are made together.
  template <class Rows>
  static constexpr std::int64_t kTileKeys = kByColumn         ? 8
                                            : kByHalves<Rows> ? 2 * kKeys
                                                              : kKeys;

  static constexpr std::int64_t logit_at(std::int64_t key, std::int64_t column) {
    return kByColumn ? column * kStreamKeys + key : key * kColumns + column;
  }
  // Weights, after the softmax.
  static constexpr std::int64_t weight_at(std::int64_t step, std::int64_t column) {
    return kByColumn ? column * kStreamKeys + step : step * kColumns + column;
  }

  // Values of so many keys at a time, all of their numbers: memory is fastest when rows are taken in
  // its order.
  static constexpr std::int64_t kValueKeys = kByColumn ? 8 : kStreamKeys;

  static constexpr bool kAsksTwice = Op::kSummed == 2;
  using Asking = Asked<kStreamKeys, kAsksTwice>;

  // A query among the others of its group, for `products` and `logits_by_column`.
  static void place_query(const float* query, std::int64_t elements, std::int64_t column,
                          float* to) {
    for (std::int64_t j = 0; j < elements; j += kLanes) {
      std::memcpy(to + j * kColumns + column * kLanes, query + j, kVectorBytes);
    }
  }

#if HYLA_TARGET_HAS_PAIRS
  template <class Rows>
  static HYLA_INLINE void four_keys(const char* const* rows, std::int64_t j,
                                    P (&to)[Rows::kParts][4]) {
    P a[Rows::kParts], b[Rows::kParts], c[Rows::kParts], d[Rows::kParts];
    Rows::keys(rows[0] + j, a);
    Rows::keys(rows[1] + j, b);
    Rows::keys(rows[2] + j, c);
    Rows::keys(rows[3] + j, d);
#pragma GCC unroll 2
    for (int n = 0; n < Rows::kParts; ++n) transpose_in_blocks(a[n], b[n], c[n], d[n], to[n]);
  }

  // Products of eight keys with eight queries: as many sums as the pipes of products have under way.
  // In a vector of sums each block of four lanes has a part of those of four keys. A function for
  // itself: it needs all registers.
  template <class Rows, bool kLarge>
  static __attribute__((noinline)) void logits_by_column(RowsAt rows, const float* query,
                                                         std::int64_t elements,
                                                         const Later<kLarge>& later, F factor,
                                                         float* to) {
    const float* end = query + elements * kColumns;
    F first[kColumns], second[kColumns];  // four keys each
#pragma GCC unroll 8
    for (int m = 0; m < kColumns; ++m) first[m] = second[m] = zero();
    for (std::int64_t j = 0; query < end; j += kVectorBytes) {
      asm("" : "+r"(rows.rows));  // or addresses would be kept, in registers that are needed
      P lower[Rows::kParts][4], upper[Rows::kParts][4];  // [part][every fourth pair]
      four_keys<Rows>(rows.rows, rows.offset + j, lower);
      four_keys<Rows>(rows.rows + 4, rows.offset + j, upper);
#pragma GCC unroll 2
      for (int n = 0; n < Rows::kParts; ++n, query += kColumns * kLanes) {
        const auto add = [&]<int t>() {
          if (n == 0) {  // not all at once: what finds no room is dropped
            later.ask(2 * t, j);
            later.ask(2 * t + 1, j);
          }
#pragma GCC unroll 8
          for (int m = 0; m < kColumns; ++m) {
            const P pairs = repeat_in_blocks<t>(load_pairs(query + m * kLanes));
            first[m] = dot_pairs(first[m], lower[n][t], pairs);
            second[m] = dot_pairs(second[m], upper[n][t], pairs);
          }
        };
        add.template operator()<0>();
        add.template operator()<1>();
        add.template operator()<2>();
        add.template operator()<3>();
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < kColumns; m += 2) {
      const F logits = sum_blocks(first[m], second[m], first[m + 1], second[m + 1]);
      store_halves(mul(logits, factor), to + logit_at(0, m), to + logit_at(0, m + 1));
    }
  }
#endif

  // Logits of kKeys keys by kColumns columns.
  template <class Rows>
  static HYLA_INLINE F products(const char* const* rows, std::int64_t offset, const float* queries,
                                std::int64_t elements, Asking asked) {
    constexpr std::int64_t kStep = Rows::kParts * kColumns * kLanes;  // of the queries
    F sums[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sums[i] = zero();
    const char* row[kKeys];
#pragma GCC unroll 4
    for (int r = 0; r < kKeys; ++r) row[r] = rows[r] + offset;
    const float* end = queries + elements * kColumns;
    for (std::int64_t j = 0; queries < end; queries += kStep, j += kVectorBytes) {
      Vector keys[kKeys][Rows::kParts];
#pragma GCC unroll 4
      for (int r = 0; r < kKeys; ++r) {
        Rows::keys(row[r] + j, keys[r]);
        if (kVectorBytes % kLine == 0 || j % kLine == 0) asked.ask();
      }
#pragma GCC unroll 4
      for (int n = 0; n < Rows::kParts; ++n) {
#pragma GCC unroll 16
        for (int m = 0; m < kColumns; ++m) {
          const Vector query = Op::load_b(queries + (n * kColumns + m) * kLanes);
#pragma GCC unroll 4
          for (int r = 0; r < kKeys; ++r) {
            sums[r * kColumns + m] = Op::add_product(sums[r * kColumns + m], keys[r][n], query);
          }
        }
      }
    }
    return sum_each(sums);
  }

#if HYLA_TARGET_HAS_AVX512
  // Logits of 2 kKeys keys, of the first kKeys in `first`. A vector of sums has key r in its lower
  // half and key kKeys + r in its upper one.
  template <class Rows>
  static HYLA_INLINE void products_by_halves(const char* const* rows, std::int64_t offset,
                                             const float* queries, std::int64_t elements,
                                             Asking asked, F& first, F& second) {
    constexpr std::int64_t kHalf = kVectorBytes / 2;
    F sums[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) sums[i] = zero();
    const float* end = queries + elements * kColumns;
    for (std::int64_t j = offset; queries < end; queries += kLanes * kColumns, j += kHalf) {
      F keys[kKeys][Rows::kParts];
#pragma GCC unroll 4
      for (int r = 0; r < kKeys; ++r) {
        Rows::keys_of_two(rows[r] + j, rows[kKeys + r] + j, keys[r]);
        asked.ask();
      }
#pragma GCC unroll 2
      for (int n = 0; n < Rows::kParts; ++n) {
#pragma GCC unroll 16
        for (int m = 0; m < kColumns; ++m) {
          const F query = load_half_twice(queries + m * kLanes + n * (kLanes / 2));
#pragma GCC unroll 4
          for (int r = 0; r < kKeys; ++r) {
            sums[r * kColumns + m] = fma(keys[r][n], query, sums[r * kColumns + m]);
          }
        }
      }
    }
    sum_each_half(sums, first, second);
  }
#endif

  // A line of the rows of a step of add_block.
  template <class Rows, bool kLarge>
  static HYLA_INLINE void ask_for(const Later<kLarge>& later, std::int64_t key, std::int64_t byte) {
    if constexpr (kAsksTwice) {
      later.ask(key, byte);
      later.ask(key + kApart, byte);
    } else {
      __builtin_prefetch(later.first[key] + byte, 0, 2);
      if constexpr (kBlock * Rows::kBytes > kLine) {
        __builtin_prefetch(later.first[key] + byte + kLine, 0, 2);
      }
    }
  }

  // Values of kValueKeys keys.
  template <class Rows, bool kLarge>
  static HYLA_INLINE void add_values(RowsAt rows, const Later<kLarge>& later, const float* weights,
                                     float* out, std::int64_t stride) {
    constexpr std::int64_t kBytes = kBlock * Rows::kBytes;
    // Bytes cost more to convert than weights to load: each of their vectors meets all columns.
    constexpr bool kOneByOne = kLanes == 8 && kGroup < kColumns && Rows::kBytes == 1;
    constexpr int kTile = kOneByOne ? kColumns : kGroup, kVectors = kOneByOne ? 1 : kValueVectors;
    for (std::int64_t d = 0, byte = 0; d < stride; d += kBlock, byte += kBytes) {
      const bool asks = kBytes % kLine == 0 || byte % kLine == 0;
      for (int n = 0; n < kValueVectors; n += kVectors) {
        const RowsAt from{rows.rows, rows.offset + byte + n * kLanes * Rows::kBytes};
        for (int m = 0; m < kColumns; m += kTile) {
          add_block<Rows, kTile, kVectors>(from, later, asks && n == 0 && m == 0 ? byte : -1,
                                           weights + m, out + m * kBlock + n * kLanes);
        }
      }
      out += kColumns * kBlock;
    }
  }

  // kTile columns by kVectors vectors of a block of values. Asks for `byte` of the rows that come
  // later, where it is one.
  template <class Rows, int kTile, int kVectors, bool kLarge>
  static HYLA_INLINE void add_block(const RowsAt& rows, const Later<kLarge>& later,
                                    std::int64_t byte, const float* weights, float* out) {
    constexpr int kSteps = 2 * kApart / Op::kSummed;
    F sums[kTile][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kTile; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) sums[m][n] = load(out + m * kBlock + n * kLanes);
    }
    for (std::int64_t key = 0; key < kValueKeys; key += 2 * kApart) {
      if constexpr (kByColumn) asm("" : "+r"(weights));  // as above
#pragma GCC unroll 8
      for (int i = 0; i < kSteps; ++i) {
        const std::int64_t step = key / Op::kSummed + i;
        Vector values[kVectors];
        if (byte >= 0) ask_for<Rows>(later, key + i, byte);
        if constexpr (Op::kSummed == 2) {
          Rows::values(rows[key + i], rows[key + i + kApart], values);
        } else {
          Rows::values(rows[key + i], values);
        }
#pragma GCC unroll 8
        for (int m = 0; m < kTile; ++m) {
          const Vector x = Op::load_a(weights + weight_at(step, m));
#pragma GCC unroll 2
          for (int n = 0; n < kVectors; ++n) {
            sums[m][n] = Op::add_product(sums[m][n], x, values[n]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kTile; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) store(sums[m][n], out + m * kBlock + n * kLanes);
    }
  }

  // Weights of the keys of two vectors.
  static HYLA_INLINE void store_weights(F a, F b, float* to) {
    if constexpr (Op::kSummed == 2) {
      Op::store_pair(a, b, to);
    } else {
      store(a, to);
      store(b, to + kLanes);
    }
  }

  // A block of values of one column, in their order. `split`: as Rows::kSplit left it.
  static HYLA_INLINE void store_block(const float* block, bool split, float* to) {
    if (kValueVectors == 2 && split) {
      for (int i = 0; i < kLanes; ++i) {
        to[2 * i] = block[i];
        to[2 * i + 1] = block[kLanes + i];
      }
    } else if constexpr (Op::kSummed == 2) {
      // Four by four, as interleave_pairs left them.
      for (int i = 0; i < kLanes / 4; ++i) {
        std::memcpy(to + 8 * i, block + 4 * i, 4 * sizeof(float));
        std::memcpy(to + 8 * i + 4, block + kLanes + 4 * i, 4 * sizeof(float));
      }
    } else {
      std::memcpy(to, block, kBlock * sizeof(float));
    }
  }
};

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_ATTENTION_TILES_H_
