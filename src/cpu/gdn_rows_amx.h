// One token's step over bfloat16 states of 128 keys, with bfloat16 q and k: products with the state
// by AMX, updates by floats. Tiles and vectors in turn slow each other down (a tile halves what
// vectors do for some 150 cycles), so that tiles come for 32 rows at once; more do not stay in the
// first cache until they are updated. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_GDN_ROWS_AMX_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_ROWS_AMX_H_
#undef HYLA_CPU_GDN_ROWS_AMX_H_
#else
#define HYLA_CPU_GDN_ROWS_AMX_H_
#endif

#include "cpu/amx.h"
#include "cpu/gdn_two_at_once.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {
#if HYLA_TARGET_HAS_PAIRS

class TiledRows {
 public:
  // Of tiles: sums of 16 rows with k and q, 16 rows of 32 elements, 16 pairs of k and q.
  static constexpr amx::Shape kSums{16, 8}, kOfRows{16, 64}, kOfKeys{16, 8};
  static constexpr amx::Shape kTiles[8] = {kSums,   kSums,   kOfRows, kOfRows,
                                           kOfKeys, kOfKeys, kOfKeys, kOfKeys};

  // As TwoAtOnce::run.
  static void run(const Token& t, std::int64_t count, const bfloat16* from, bfloat16* to,
                  std::int64_t stride, const bfloat16* next, const float* v, float* o) {
    F k[kVectors];
    load_keys(t, k);
    const F alpha = set(Row::clean(t.alpha));
    alignas(64) float sums[kRows][2], delta[kTile];
    for (std::int64_t r = 0; r < count; r += kRows) {
      const std::int64_t rows = std::min(kRows, count - r);
      multiply<0>(from, stride, rows, sums[0]);
      if (rows > kTile) {
        multiply<1>(from + kTile * stride, stride, rows - kTile, sums[kTile]);
      }
      for (std::int64_t i = 0; i < rows; i += kTile) {
        const std::int64_t n = std::min(kTile, rows - i), far = r + i + kRows - count;
        finish_tile(t, n, sums[i], v + r + i, delta, o + r + i);
        if (i > 0 && r + kRows >= count) keep_awake();
        const bfloat16* fetched = far < 0 ? from + kRows * stride : next + far * stride;
        for (std::int64_t j = 0; j < n; ++j) {
          update(k, alpha, set(delta[j]), from, to, fetched);
          from += stride;
          fetched += stride;
          if (to != nullptr) to += stride;
        }
      }
    }
  }

 private:
  using Row = RowOf<bfloat16>;
  static constexpr int kVectors = 8;
  static constexpr std::int64_t kRows = 32, kTile = amx::kRows;

  // k as floats, even and odd elements; pairs of k and q side by side into tiles.
  static HYLA_INLINE void load_keys(const Token& t, F (&k)[kVectors]) {
    alignas(64) std::uint32_t both[kVectors / 2][2 * kLanes];
    const F factor = set(Row::clean(t.k_factor));
#pragma GCC unroll 4
    for (int i = 0; i < kVectors / 2; ++i) {
      const P a = load_pairs(t.k_pairs + i * 2 * kLanes);
      const P b = load_pairs(t.q_pairs + i * 2 * kLanes);
      k[2 * i] = clean_nan(mul(factor, even(a)));
      k[2 * i + 1] = clean_nan(mul(factor, odd(a)));
      const __m512i lower =
          _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
      _mm512_store_si512(both[i], _mm512_permutex2var_epi32(words(a), lower, words(b)));
      _mm512_store_si512(both[i] + kLanes, _mm512_permutex2var_epi32(words(a), upper, words(b)));
    }
    amx::load_bytes<4>(both[0], 8);
    amx::load_bytes<5>(both[1], 8);
    amx::load_bytes<6>(both[2], 8);
    amx::load_bytes<7>(both[3], 8);
  }

  // sums[row] = {row . k, row . q} of up to 16 rows, by tile kSum.
  template <int kSum>
  static HYLA_INLINE void multiply(const bfloat16* from, std::int64_t stride, std::int64_t rows,
                                   float* sums) {
    if (rows < kTile) return multiply_few<kSum>(from, stride, rows, sums);
    const std::int64_t bytes = stride * static_cast<std::int64_t>(sizeof(bfloat16));
    amx::zero<kSum>();
    amx::load_bytes<2>(from, bytes);
    amx::add_product<kSum, 2, 4>();
    amx::load_bytes<3>(from + 2 * kLanes, bytes);
    amx::add_product<kSum, 3, 5>();
    amx::load_bytes<2>(from + 4 * kLanes, bytes);
    amx::add_product<kSum, 2, 6>();
    amx::load_bytes<3>(from + 6 * kLanes, bytes);
    amx::add_product<kSum, 3, 7>();
    amx::store<kSum>(sums, 2);
  }

  // Fewer than a tile has: what follows them may be another thread's.
  template <int kSum>
  static __attribute__((noinline)) void multiply_few(const bfloat16* from, std::int64_t stride,
                                                     std::int64_t rows, float* sums) {
    alignas(64) bfloat16 copy[kTile][kVectors * kLanes];
    for (std::int64_t i = 0; i < rows; ++i) {
      std::memcpy(static_cast<void*>(copy[i]), from + i * stride, sizeof copy[i]);
    }
    multiply<kSum>(copy[0], kVectors * kLanes, kTile, sums);
  }

  // The unit sleeps after 1000 to 1500 cycles, and takes 850 to wake: longer than it is from the
  // last rows of a head to the first of the next. Nobody reads this product.
  static HYLA_INLINE void keep_awake() { amx::add_product<0, 2, 4>(); }

  // As finish(), of up to 16 rows.
  static HYLA_INLINE void finish_tile(const Token& t, std::int64_t rows, const float* sums,
                                      const float* v, float* delta, float* o) {
    F ks = load(sums), qs = load(sums + kLanes);
    split_lanes(ks, qs);
    ks = mul(set(t.k_factor), ks);
    qs = mul(set(t.q_factor), qs);
    const F alpha = set(t.alpha);
    const F d = mul(set(t.beta), sub(load_some(v, rows), mul(alpha, ks)));
    store(clean_nan(d), delta);
    store_some(fma(set(t.qk), d, mul(alpha, qs)), o, rows);
  }

  static HYLA_INLINE void update(const F (&k)[kVectors], F alpha, F delta, const bfloat16* from,
                                 bfloat16* to, const bfloat16* fetched) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; i += 2) {
      prefetch<2 * kLanes, true>(fetched + i * kLanes);
      if (to == nullptr) continue;
      F x, y;
      Row::load_two(from + i * kLanes, x, y);
      Row::store_two(fma(k[i], delta, mul(alpha, x)), fma(k[i + 1], delta, mul(alpha, y)),
                     to + i * kLanes);
    }
  }
};

#endif
}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_ROWS_AMX_H_
