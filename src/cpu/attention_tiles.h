// Tiles in registers of attention of few columns: keys by columns, columns by values. Compiled for
// each target (see foreach_target.h).
//
// Logits are products along D. A vector of them is a few keys by kColumns columns, so that neither
// the softmax nor the products with values move anything between lanes. With pairs of bfloat16 the
// two keys of a pair are those whose weights lie in the same lane of neighbouring vectors.
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
  static constexpr int kKeys = kLanes / kColumns;             // whose logits share a vector
  static constexpr int kGroup = kColumns < 8 ? kColumns : 8;  // columns of a tile of outputs
  static constexpr int kBlock = kValueVectors * kLanes;       // values of it
  // At a time: as many as have room in the L1 cache beside outputs under way, converted lines or
  // not.
  static constexpr std::int64_t kStreamKeys = Op::kSummed == 2 && kColumns >= 8 ? 64 : 32;

  static constexpr bool kAsksTwice = Op::kSummed == 2;
  using Asking = Asked<kStreamKeys, kAsksTwice>;

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
        asked.ask();
      }
#pragma GCC unroll 2
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
    if constexpr (Op::kSummed == 2) __builtin_prefetch(next[key + kKeys], 0, 2);
    if constexpr (kBlock * Rows::kBytes > kLine) __builtin_prefetch(next[key] + kLine, 0, 2);
  }

  // Asks for the `next` values, and once more for the `keys` before them.
  template <class Rows>
  static HYLA_INLINE void add_values(RowsAt rows, RowsAt next, RowsAt keys, const float* weights,
                                     float* out, std::int64_t stride) {
    constexpr std::int64_t kBytes = kBlock * Rows::kBytes;
    for (std::int64_t d = 0; d < stride; d += kBlock) {
      const bool asks = kBytes % kLine == 0 || d * Rows::kBytes % kLine == 0;
      for (int m = 0; m < kColumns; m += kGroup) {
        add_block<Rows>(rows, next, keys, asks && m == 0, weights + m, out);
        out += kGroup * kBlock;
      }
      rows.offset += kBytes;
      next.offset += kBytes;
      keys.offset += kBytes;
    }
  }

  // kGroup columns by kBlock values.
  template <class Rows>
  static HYLA_INLINE void add_block(const RowsAt& rows, const RowsAt& next, const RowsAt& keys,
                                    bool asks, const float* weights, float* out) {
    constexpr int kSteps = 2 * kKeys / Op::kSummed;  // of two vectors of weights
    F sums[kGroup][kValueVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kGroup; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < kValueVectors; ++n) sums[m][n] = load(out + m * kBlock + n * kLanes);
    }
    for (std::int64_t key = 0; key < kStreamKeys; key += 2 * kKeys) {
#pragma GCC unroll 8
      for (int i = 0; i < kSteps; ++i) {
        const std::int64_t step = key / Op::kSummed + i;
        Vector values[kValueVectors];
        if (asks) {
          ask_for<Rows>(next, key + i);
          if constexpr (kAsksTwice) ask_for<Rows>(keys, key + i);
        }
        if constexpr (Op::kSummed == 2) {
          Rows::values(rows[key + i], rows[key + i + kKeys], values);
        } else {
          Rows::values(rows[key + i], values);
        }
#pragma GCC unroll 8
        for (int m = 0; m < kGroup; ++m) {
          const Vector x = Op::load_a(weights + step * kColumns + m);
#pragma GCC unroll 2
          for (int n = 0; n < kValueVectors; ++n) {
            sums[m][n] = Op::add_product(sums[m][n], x, values[n]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kGroup; ++m) {
#pragma GCC unroll 2
      for (int n = 0; n < kValueVectors; ++n) store(sums[m][n], out + m * kBlock + n * kLanes);
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

  // A block of values of one column, in their order.
  static HYLA_INLINE void store_block(const float* block, float* to) {
    if constexpr (Op::kSummed == 2) {
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
