// Words of bfloat16 as floats and back, without instructions for them. Included by cpu/simd.h alone.

#if HYLA_TARGET_HAS_AVX512
#include "cpu/simd_avx512.h"
#else
#include "cpu/simd_avx2.h"
#endif

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

HYLA_INLINE void split_words(Words x, F& even, F& odd) {
  even = even_words(x);
  odd = odd_words(x);
}

// Words of which some are NaN, as store() rounds them: rare, so not inlined.
inline __attribute__((noinline)) Words join_nans(F even, F odd) {
  alignas(64) bfloat16 words[2][kLanes], joined[2 * kLanes];
  store(even, words[0]);
  store(odd, words[1]);
  for (int i = 0; i < 2 * kLanes; ++i) joined[i] = words[i % 2][i / 2];
  return load_words(joined);
}
// join_words() rounded as store() does it, a tie to even, NaN to one: 8 instructions more.
HYLA_INLINE Words join_words_to_even(F even, F odd) {
  if (any_nan(even, odd)) return join_nans(even, odd);
  return join_words(with_tie(even), with_tie(odd));
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
