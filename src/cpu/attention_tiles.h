// Tiles in registers of attention of few columns: keys by columns, columns by values. Compiled for
// each target (see foreach_target.h).
//
// Logits are products along D. A vector of them is a few keys by kColumns columns, so that neither
// the softmax nor the products with values move anything between lanes. With pairs of bfloat16 the
// two keys of a pair are those whose weights lie in the same lane of neighbouring vectors.
//
// Eight columns of pairs are enough products for each key to hide its way into the lanes. Pairs of
// two keys meet queries whose pairs lie there twice, so that sums are over half of the lanes. Or, by
// column, pairs of four keys lie side by side, a vector of logits is sixteen keys of one column, and
// the keys of a pair are neighbours: less work in the first cache, more between lanes.
#if defined(HYLA_CPU_ATTENTION_TILES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_TILES_H_
#undef HYLA_CPU_ATTENTION_TILES_H_
#else
#define HYLA_CPU_ATTENTION_TILES_H_
#endif

#include "cpu/attention_ahead.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

template <class Op, int kColumns, bool kByColumn>
struct StreamTiles {
  using Vector = typename Op::Vector;
  static constexpr int kKeys = kLanes / kColumns;         // whose logits share a vector
  static constexpr int kMostGroup = kLanes == 8 ? 4 : 8;  // columns that there are registers for
  static constexpr int kGroup = std::min(kColumns, kMostGroup);  // those of a tile of outputs
  static constexpr int kBlock = kValueVectors * kLanes;          // values of it
  // At a time: as many as have room in the L1 cache beside outputs under way, converted lines or
  // not.
  static constexpr std::int64_t kStreamKeys = Op::kSummed == 2 && kColumns >= 8 ? 64 : 32;

  static constexpr bool kByTwos = Op::kSummed == 2 && kColumns == 8 && !kByColumn;
  // Of a query, for every vector of its pairs.
  static constexpr int kQueryVectors = kByTwos ? 2 : 1;
  static constexpr int kApart = kByColumn ? 1 : kKeys;  // the keys of a pair

  // Half a vector of two keys each, whose sums over lanes cost half as much.
  template <class Rows>
  static constexpr bool kByHalves = HYLA_TARGET_HAS_AVX512 != 0 && Rows::kSplit;
  // Whose logits are made together.
  template <class Rows>
  static constexpr std::int64_t kTileKeys = kByColumn                    ? 8
                                            : kByTwos || kByHalves<Rows> ? 2 * kKeys
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

  // A query among the others of its group.
  static void place_query(const float* query, std::int64_t elements, std::int64_t column,
                          float* to) {
    to += column * kLanes;
    for (std::int64_t j = 0; j < elements; j += kLanes, to += kQueryVectors * kColumns * kLanes) {
#if HYLA_TARGET_HAS_PAIRS
      if constexpr (kByTwos) {
        const P pairs = load_pairs(query + j);
        P lower, upper;
        alternate_pairs(pairs, pairs, lower, upper);
        store_pairs(lower, to);
        store_pairs(upper, to + kColumns * kLanes);
        continue;
      }
#endif
      std::memcpy(to, query + j, kVectorBytes);
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

#if HYLA_TARGET_HAS_PAIRS
  // Logits of four keys, of the first two in `first`. A vector of sums has one key in its even lanes
  // and another in the odd ones.
  template <class Rows>
  static HYLA_INLINE void products_by_twos(const char* const* rows, std::int64_t offset,
                                           const float* queries, std::int64_t elements,
                                           AskedInOrder& asked, F& first, F& second) {
    RunsAhead::Place next = asked.next.place, again = asked.again.place;
    F sums[2][kColumns];
#pragma GCC unroll 8
    for (int m = 0; m < kColumns; ++m) sums[0][m] = sums[1][m] = zero();
    const char *a = rows[0] + offset, *b = rows[1] + offset, *c = rows[2] + offset,
               *d = rows[3] + offset;
    const float* end = queries + kQueryVectors * elements * kColumns;
    for (std::int64_t j = 0; queries < end; j += kVectorBytes) {
      P keys[4][Rows::kParts];
      Rows::keys(a + j, keys[0]);
      Rows::keys(b + j, keys[1]);
      Rows::keys(c + j, keys[2]);
      Rows::keys(d + j, keys[3]);
      next.ask_four(asked.next);
      again.ask_four(asked.again);
#pragma GCC unroll 2
      for (int n = 0; n < Rows::kParts; ++n) {
        P two[2][2];  // [half of every block][the first two, the others]
        alternate_pairs(keys[0][n], keys[1][n], two[0][0], two[1][0]);
        alternate_pairs(keys[2][n], keys[3][n], two[0][1], two[1][1]);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half, queries += kColumns * kLanes) {
#pragma GCC unroll 8
          for (int m = 0; m < kColumns; ++m) {
            const P query = load_pairs(queries + m * kLanes);
            sums[0][m] = dot_pairs(sums[0][m], two[half][0], query);
            sums[1][m] = dot_pairs(sums[1][m], two[half][1], query);
          }
        }
      }
    }
    first = sum_even_and_odd(sums[0]);
    second = sum_even_and_odd(sums[1]);
    asked.next.place = next;
    asked.again.place = again;
  }
#endif

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
  template <class Rows, class Asking>
  static HYLA_INLINE void add_values(RowsAt rows, Asking& asked, const float* weights, float* out,
                                     std::int64_t stride) {
    constexpr std::int64_t kBytes = kBlock * Rows::kBytes;
    // Bytes cost more to convert than weights to load: each of their vectors meets all columns.
    constexpr bool kOneByOne = kLanes == 8 && kGroup < kColumns && Rows::kBytes == 1;
    constexpr int kTile = kOneByOne ? kColumns : kGroup, kVectors = kOneByOne ? 1 : kValueVectors;
    for (std::int64_t d = 0, byte = 0; d < stride; d += kBlock, byte += kBytes) {
      const bool asks = kBytes % kLine == 0 || byte % kLine == 0;
      for (int n = 0; n < kValueVectors; n += kVectors) {
        const RowsAt from{rows.rows, rows.offset + byte + n * kLanes * Rows::kBytes};
        for (int m = 0; m < kColumns; m += kTile) {
          add_block<Rows, kTile, kVectors>(from, asked, asks && n == 0 && m == 0 ? byte : -1,
                                           weights + m, out + m * kBlock + n * kLanes);
        }
      }
      out += kColumns * kBlock;
    }
  }

  // kTile columns by kVectors vectors of a block of values. Asks for `byte` of the rows that come
  // later, where it is one.
  template <class Rows, int kTile, int kVectors, class Asking>
  static HYLA_INLINE void add_block(const RowsAt& rows, Asking& asked, std::int64_t byte,
                                    const float* weights, float* out) {
    constexpr int kSteps = 2 * kApart / Op::kSummed;
    [[maybe_unused]] RunsAhead::Place next, again;
    if constexpr (kByTwos) {
      next = asked.next.place;
      again = asked.again.place;
    }
    F sums[kTile][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kTile; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) sums[m][n] = load(out + m * kBlock + n * kLanes);
    }
    for (std::int64_t key = 0; key < kValueKeys; key += 2 * kApart) {
      if constexpr (kByColumn) asm("" : "+r"(weights));  // as above
      if constexpr (kByTwos) {
        static_assert(2 * kApart == 4);
        if (byte >= 0) {
          next.ask_four(asked.next);
          again.ask_four(asked.again);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kSteps; ++i) {
        const std::int64_t step = key / Op::kSummed + i;
        Vector values[kVectors];
        if constexpr (!kByTwos) {
          if (byte >= 0) ask_for<Rows>(asked, key + i, byte);
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
    if constexpr (kByTwos) {
      asked.next.place = next;
      asked.again.place = again;
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
