// Tiles in registers of attention of few columns: keys by columns, columns by values. Compiled for
// each target (see foreach_target.h).
//
// Logits are products along D. A vector of them is a few keys by kColumns columns, so that neither
// the softmax nor the products with values move anything between lanes. With pairs of bfloat16 the
// two keys of a pair are those whose weights lie in the same lane of neighbouring vectors.
//
// Eight columns of pairs are enough products for each key to hide its way into the lanes: a vector
// of logits is sixteen keys of one column then, nothing is summed over lanes, and the keys of a
// pair are neighbours.
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
  static constexpr int kTileKeys = kByColumn         ? kLanes
                                   : kByHalves<Rows> ? 2 * kKeys
                                                     : kKeys;

  static constexpr std::int64_t logit_at(std::int64_t key, std::int64_t column) {
    return kByColumn ? column * kStreamKeys + key : key * kColumns + column;
  }
  // Weights, after the softmax.
  static constexpr std::int64_t weight_at(std::int64_t step, std::int64_t column) {
    return kByColumn ? column * kStreamKeys + step : step * kColumns + column;
  }

  static constexpr bool kAsksTwice = Op::kSummed == 2;
  using Asking = Asked<kStreamKeys, kAsksTwice>;

  // A query among the others of its group, for `products` and `logits_by_column`.
  static void place_query(const float* query, std::int64_t elements, std::int64_t column,
                          float* to) {
    if constexpr (kByColumn) {
      for (std::int64_t j = 0; j < elements; ++j) to[j * kColumns + column] = query[j];
    } else {
      for (std::int64_t j = 0; j < elements; j += kLanes) {
        std::memcpy(to + j * kColumns + column * kLanes, query + j, kVectorBytes);
      }
    }
  }

#if HYLA_TARGET_HAS_PAIRS
  template <class Rows>
  static HYLA_INLINE void four_keys(const char* const* rows, std::int64_t j, Asking& asked,
                                    P (&to)[Rows::kParts][4]) {
    P a[Rows::kParts], b[Rows::kParts], c[Rows::kParts], d[Rows::kParts];
    Rows::keys(rows[0] + j, a);
    asked.ask();
    Rows::keys(rows[1] + j, b);
    asked.ask();
    Rows::keys(rows[2] + j, c);
    asked.ask();
    Rows::keys(rows[3] + j, d);
    asked.ask();
#pragma GCC unroll 2
    for (int n = 0; n < Rows::kParts; ++n) transpose_in_blocks(a[n], b[n], c[n], d[n], to[n]);
  }

  // Products of sixteen keys with eight queries. Shuffles and products have pipes of their own. A
  // function for itself: it needs all registers.
  template <class Rows>
  static __attribute__((noinline)) void logits_by_column(const char* const* rows,
                                                         std::int64_t offset, const float* queries,
                                                         std::int64_t elements, Asking asked,
                                                         F (&to)[kColumns]) {
    F sums[kColumns];
#pragma GCC unroll 8
    for (int m = 0; m < kColumns; ++m) sums[m] = zero();
    const float* end = queries + elements * kColumns;
    for (std::int64_t j = offset; queries < end; j += kVectorBytes) {
      asm("" : "+r"(rows));  // or addresses would be kept, in registers that vectors need
      using Keys = P[Rows::kParts][4];  // [part][every fourth pair] of four keys
      Keys first, second, third, fourth;
      four_keys<Rows>(rows, j, asked, first);
      four_keys<Rows>(rows + 4, j, asked, second);
      four_keys<Rows>(rows + 8, j, asked, third);
      four_keys<Rows>(rows + 12, j, asked, fourth);
#pragma GCC unroll 2
      for (int n = 0; n < Rows::kParts; ++n, queries += kLanes * kColumns) {
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          P pairs[4];  // of all keys: number t, 4 + t, 8 + t, 12 + t
          transpose_blocks(first[n][t], second[n][t], third[n][t], fourth[n][t], pairs);
#pragma GCC unroll 4
          for (int b = 0; b < 4; ++b) {
#pragma GCC unroll 8
            for (int m = 0; m < kColumns; ++m) {
              sums[m] = dot_same_pair(sums[m], pairs[b], queries + (4 * b + t) * kColumns + m);
            }
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kColumns; ++m) to[m] = sums[m];
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

  // Addresses of kStreamKeys rows.
  struct RowsAt {
    const char* const* rows;
    std::int64_t offset;
    HYLA_INLINE const char* operator[](std::int64_t key) const { return rows[key] + offset; }
  };

  // The rows of a step of add_block.
  template <class Rows>
  static HYLA_INLINE void ask_for(const RowsAt& next, std::int64_t key) {
    __builtin_prefetch(next[key], 0, 2);
    if constexpr (Op::kSummed == 2) __builtin_prefetch(next[key + kApart], 0, 2);
    if constexpr (kBlock * Rows::kBytes > kLine) __builtin_prefetch(next[key] + kLine, 0, 2);
  }

  // Asks for the `next` values, and once more for the `keys` before them.
  template <class Rows>
  static HYLA_INLINE void add_values(RowsAt rows, RowsAt next, RowsAt keys, const float* weights,
                                     float* out, std::int64_t stride) {
    constexpr std::int64_t kBytes = kBlock * Rows::kBytes;
    // Bytes cost more to convert than weights to load: each of their vectors meets all columns.
    constexpr bool kOneByOne = kLanes == 8 && kGroup < kColumns && Rows::kBytes == 1;
    constexpr int kTile = kOneByOne ? kColumns : kGroup, kVectors = kOneByOne ? 1 : kValueVectors;
    for (std::int64_t d = 0; d < stride; d += kBlock, out += kColumns * kBlock) {
      const bool asks = kBytes % kLine == 0 || d * Rows::kBytes % kLine == 0;
      for (int n = 0; n < kValueVectors; n += kVectors) {
        const RowsAt from{rows.rows, rows.offset + n * kLanes * Rows::kBytes};
        for (int m = 0; m < kColumns; m += kTile) {
          add_block<Rows, kTile, kVectors>(from, next, keys, asks && n == 0 && m == 0, weights + m,
                                           out + m * kBlock + n * kLanes);
        }
      }
      rows.offset += kBytes;
      next.offset += kBytes;
      keys.offset += kBytes;
    }
  }

  // kTile columns by kVectors vectors of a block of values.
  template <class Rows, int kTile, int kVectors>
  static HYLA_INLINE void add_block(const RowsAt& rows, const RowsAt& next, const RowsAt& keys,
                                    bool asks, const float* weights, float* out) {
    constexpr int kSteps = 2 * kApart / Op::kSummed;
    F sums[kTile][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kTile; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) sums[m][n] = load(out + m * kBlock + n * kLanes);
    }
    for (std::int64_t key = 0; key < kStreamKeys; key += 2 * kApart) {
#pragma GCC unroll 8
      for (int i = 0; i < kSteps; ++i) {
        const std::int64_t step = key / Op::kSummed + i;
        Vector values[kVectors];
        if (asks) {
          ask_for<Rows>(next, key + i);
          if constexpr (kAsksTwice) ask_for<Rows>(keys, key + i);
        }
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
