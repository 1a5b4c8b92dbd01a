// Tiles in registers of attention of few columns: keys by columns, columns by values. Compiled for
// each target (see foreach_target.h).
//
// Logits are products along D. A vector of them is a few keys by kColumns columns, so that neither
// the softmax nor the products with values move anything between lanes. With pairs of bfloat16 the
// two keys of a pair are those whose weights lie in the same lane of neighbouring vectors.
//
// Eight columns of pairs are enough products for each key to hide its way into the lanes: pairs of
// two keys, or of two heads of a key, lie there in turn, and so do those of their queries, so that
// sums are over half of the lanes.
#if defined(HYLA_CPU_ATTENTION_TILES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_ATTENTION_TILES_H_
#undef HYLA_CPU_ATTENTION_TILES_H_
#else
#define HYLA_CPU_ATTENTION_TILES_H_
#endif

#include "cpu/attention_ahead.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// kNear: for processors that lose requests in crowds. They are fastest where loads follow the order
// of memory, too.
template <class Op, int kColumns, bool kNear>
struct StreamTiles {
  using Vector = typename Op::Vector;
  // Whose logits share a vector; the keys of a pair are so far apart.
  static constexpr int kKeys = kLanes / kColumns;
  static constexpr int kMostGroup = kLanes == 8 ? 4 : 8;  // columns that there are registers for
  static constexpr int kGroup = std::min(kColumns, kMostGroup);  // those of a tile of outputs
  static constexpr int kBlock = kValueVectors * kLanes;          // values of it
  // At a time: as many as have room in the L1 cache beside outputs under way, converted lines or
  // not.
  static constexpr std::int64_t kStreamKeys = Op::kSummed == 2 && kColumns >= 8 ? 64 : 32;

  static constexpr bool kByTwos = Op::kSummed == 2 && kColumns == 8;
  // Of a query, for every vector of its pairs.
  static constexpr int kQueryVectors = kByTwos ? 2 : 1;

  // Half a vector of two keys each, whose sums over lanes cost half as much.
  template <class Rows>
  static constexpr bool kByHalves = HYLA_TARGET_HAS_AVX512 != 0 && Rows::kSplit;
  // Whose logits are made together.
  template <class Rows>
  static constexpr std::int64_t kTileKeys = kByTwos || kByHalves<Rows> ? 2 * kKeys : kKeys;

  // Logits of keys and, after the softmax, weights of steps: lines of all columns.
  static constexpr std::int64_t weight_at(std::int64_t line, std::int64_t column) {
    return line * kColumns + column;
  }

  // Values of so many keys at a time, all of their numbers.
  static constexpr std::int64_t kValueKeys = kNear ? 8 : kStreamKeys;

  static constexpr bool kAsksTwice = Op::kSummed == 2;
  using Asking = Asked<kStreamKeys, kAsksTwice>;

  // A query among the others of its group. Where keys go by twos: its pairs lie in the even lanes, in
  // the odd ones, or in both; other lanes keep theirs.
  enum class Side { kEven, kOdd, kBoth };
  static void place_query(const float* query, std::int64_t elements, std::int64_t column,
                          [[maybe_unused]] Side side, float* to) {
    to += column * kLanes;
    for (std::int64_t j = 0; j < elements; j += kLanes, to += kQueryVectors * kColumns * kLanes) {
#if HYLA_TARGET_HAS_PAIRS
      if constexpr (kByTwos) {
        const P pairs = load_pairs(query + j);
        float* upper = to + kColumns * kLanes;
        P a, b;
        alternate_pairs(side == Side::kOdd ? even_pairs(load_pairs(to), load_pairs(upper)) : pairs,
                        side == Side::kEven ? odd_pairs(load_pairs(to), load_pairs(upper)) : pairs,
                        a, b);
        store_pairs(a, to);
        store_pairs(b, upper);
        continue;
      }
#endif
      std::memcpy(to, query + j, kVectorBytes);
    }
  }

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
  // Logits of four keys of a head, or of two heads of two keys: of rows 0 and 1 in `first`. A vector of
  // sums has one of them in its even lanes and the other in the odd ones.
  template <class Rows>
  static HYLA_INLINE void products_by_twos(const char* const (&rows)[4], const float* queries,
                                           std::int64_t elements, AskedInOrder<kNear>& asked,
                                           F& first, F& second) {
    auto places = asked.places();
    F sums[2][kColumns];
#pragma GCC unroll 8
    for (int m = 0; m < kColumns; ++m) sums[0][m] = sums[1][m] = zero();
    const char *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    const float* end = queries + kQueryVectors * elements * kColumns;
    for (std::int64_t j = 0; queries < end; j += kVectorBytes) {
      P keys[4][Rows::kParts];
      Rows::keys(a + j, keys[0]);
      Rows::keys(b + j, keys[1]);
      Rows::keys(c + j, keys[2]);
      Rows::keys(d + j, keys[3]);
      places.ask_four(asked);
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
    asked.follow(places);
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
  template <class Rows>
  static HYLA_INLINE void ask_for(const Later& later, std::int64_t key, std::int64_t byte) {
    if constexpr (kAsksTwice) {
      later.ask(key, byte);
      later.ask(key + kKeys, byte);
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
    constexpr int kSteps = 2 * kKeys / Op::kSummed;
    [[maybe_unused]] typename AskedInOrder<kNear>::Places places;
    if constexpr (kByTwos) places = asked.places();
    F sums[kTile][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kTile; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < kVectors; ++n) sums[m][n] = load(out + m * kBlock + n * kLanes);
    }
    for (std::int64_t key = 0; key < kValueKeys; key += 2 * kKeys) {
      // Or addresses of weights would be kept, in registers that are needed.
      if constexpr (kNear) asm("" : "+r"(weights));
      if constexpr (kByTwos) {
        static_assert(2 * kKeys == 4);
        if (byte >= 0) places.ask_four(asked);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kSteps; ++i) {
        const std::int64_t step = key / Op::kSummed + i;
        Vector values[kVectors];
        if constexpr (!kByTwos) {
          if (byte >= 0) ask_for<Rows>(asked, key + i, byte);
        }
        if constexpr (Op::kSummed == 2) {
          Rows::values(rows[key + i], rows[key + i + kKeys], values);
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
    if constexpr (kByTwos) asked.follow(places);
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
