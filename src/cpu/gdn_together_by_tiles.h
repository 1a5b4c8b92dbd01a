// A few tokens at once over bfloat16 states [V, 128]: products of q and k as they came by AMX, the
// update by vectors. Compiled for each target (see foreach_target.h).
#if defined(HYLA_CPU_GDN_TOGETHER_BY_TILES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_TOGETHER_BY_TILES_H_
#undef HYLA_CPU_GDN_TOGETHER_BY_TILES_H_
#else
#define HYLA_CPU_GDN_TOGETHER_BY_TILES_H_
#endif

#include "cpu/amx.h"
#include "cpu/gdn_together_of_k.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

#if HYLA_TARGET_HAS_PAIRS
// Sixteen value rows are tiles as they lie, which meet eight keys and eight queries. Those stay in
// tiles 0 to 3 for all of a head.
struct TogetherByTiles {
  static constexpr std::int64_t kGroup = 16, kK = 128;
  static constexpr bool kTiles = true;
  template <class S>
  static constexpr std::int64_t kept_floats() {
    return kGroup * amx::kWidth;
  }
  template <class S>
  static constexpr bool arranges_keys(std::int64_t) {
    return true;
  }
  template <class S>
  static constexpr bool arranges_values() {
    return false;
  }

  // Keys and queries of `count` tokens, pairs of them in the lines of tiles.
  static void make_tiles(const Token* tokens, std::int64_t count, KeyTiles& tiles) {
    constexpr std::size_t kBytes = kK * sizeof(bfloat16);
    alignas(64) float lines[2 * kTokenBlock][kK / 2];
    std::memset(lines, 0, sizeof lines);
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t line = t / 4 * 8 + t % 4;  // by four keys, four queries
      std::memcpy(lines[line], tokens[t].k_pairs, kBytes);
      std::memcpy(lines[line + 4], tokens[t].q_pairs, kBytes);
    }
    for (std::int64_t j = 0; j < kK / 2; j += amx::kWidth) {
      P columns[4][4];
      turn(lines[0] + j, kK / 2, columns);
#pragma GCC unroll 16
      for (int n = 0; n < 16; ++n) store_pairs(columns[n % 4][n / 4], tiles.pairs[j + n]);
    }
  }
  static HYLA_INLINE void begin(const KeyTiles& tiles) {
    amx::load<0>(tiles.pairs[0], amx::kWidth);
    amx::load<1>(tiles.pairs[16], amx::kWidth);
    amx::load<2>(tiles.pairs[32], amx::kWidth);
    amx::load<3>(tiles.pairs[48], amx::kWidth);
  }

  static HYLA_INLINE void all_products(const Together&, std::int64_t, std::int64_t,
                                       const bfloat16* from, std::int64_t stride, const bfloat16*,
                                       float* kept, float*, float*) {
    const float* pairs = reinterpret_cast<const float*>(from);
    amx::zero<4>();
    amx::load<6>(pairs, stride / 2);
    amx::add_product<4, 6, 0>();
    amx::load<7>(pairs + 16, stride / 2);
    amx::add_product<4, 7, 1>();
    amx::load<6>(pairs + 32, stride / 2);
    amx::add_product<4, 6, 2>();
    amx::load<7>(pairs + 48, stride / 2);
    amx::add_product<4, 7, 3>();
    amx::store<4>(kept, amx::kWidth);
  }

  // By now they are there: [value row, key or query].
  static HYLA_INLINE void finish_products(const Together& t, const float* kept, float* ks,
                                          float* qs) {
    P turned[4][4];
    turn(kept, amx::kWidth, turned);
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      store(mul(set(t.k_factor[n]), as_floats(turned[n][0])), ks + n * kGroup);
      store(mul(set(t.q_factor[n]), as_floats(turned[n][1])), qs + n * kGroup);
      if (t.tokens == 4) continue;
      store(mul(set(t.k_factor[n + 4]), as_floats(turned[n][2])), ks + (n + 4) * kGroup);
      store(mul(set(t.q_factor[n + 4]), as_floats(turned[n][3])), qs + (n + 4) * kGroup);
    }
  }

  // After 1000 cycles and more without a product the next one takes 850.
  static HYLA_INLINE void stay_awake() { amx::add_product<5, 6, 0>(); }

  static HYLA_INLINE void update(const Together& t, std::int64_t K, std::int64_t count,
                                 const bfloat16* from, const float*, bfloat16* to,
                                 std::int64_t stride, const float* weights,
                                 const Ahead<bfloat16>& ahead) {
    if (t.tokens == 4) {
      TogetherOfK::update_rows_by_two<4>(t, K, count, from, stride, to, stride, weights, &ahead);
    } else {
      TogetherOfK::update_rows_by_two<8>(t, K, count, from, stride, to, stride, weights, &ahead);
    }
  }

 private:
  static HYLA_INLINE P load_line(const float* from) { return from_words(_mm512_load_si512(from)); }

  // Column 4 m + n of sixteen lines is columns[n][m].
  static HYLA_INLINE void turn(const float* from, std::int64_t stride, P (&columns)[4][4]) {
    P blocks[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const float* line = from + 4 * i * stride;
      transpose_in_blocks(load_line(line), load_line(line + stride), load_line(line + 2 * stride),
                          load_line(line + 3 * stride), blocks[i]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < 4; ++n) {
      transpose_blocks(blocks[0][n], blocks[1][n], blocks[2][n], blocks[3][n], columns[n]);
    }
  }
  static HYLA_INLINE F as_floats(P x) { return from_raw(_mm512_castsi512_ps(words(x))); }
};
#endif

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_TOGETHER_BY_TILES_H_
