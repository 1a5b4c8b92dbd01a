// One chunk of tokens of some heads. Compiled for each target (see foreach_target.h).
//
// With D[t][s] the decay from after token s to after token t, E[t] that from the chunk's start, and
// S the state before the chunk:
//
//     (I + A) U = beta (V - E K S)      A[t][s] = beta[t] D[t][s] k[t].k[s]   for s < t
//     O = E Q S + P U                   P[t][s] = D[t][s] q[t].k[s]           for s <= t
//     S' = E[last] S + sum over s of D[last][s] k[s] U[s]
//
// Norms of q and k are factors of rows, so that bfloat16 keys enter the products as they are.
#if defined(HYLA_CPU_GDN_CHUNK_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYLA_CPU_GDN_CHUNK_H_
#undef HYLA_CPU_GDN_CHUNK_H_
#else
#define HYLA_CPU_GDN_CHUNK_H_
#endif

#include "cpu/gdn_gates.h"
#include "cpu/gdn_tokens.h"
#include "cpu/gemm.h"
#include "cpu/transpose.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

constexpr std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

// Matrices of one worker, all with lines of whole vectors.
template <class Op>
struct PrefillBuffers {
  std::int64_t K, columns;  // columns: value columns of the part, in whole vectors
  std::int64_t width;       // elements of a key: K / Op::kSummed
  float* keys;              // [2 kChunk, width]: k, then q
  float* keys_by_column;    // [width, kChunk]
  float* keys_by_token;     // [kChunk / 2, K]: pairs of tokens
  float* keys_turned;       // [K, kChunk / 2]: the same, for AMX
  float* gram;              // [2 kChunk, kChunk]: k.k, then q.k
  float* mix;               // [2 kChunk, kChunk]: -A, then P
  float* seen;              // [2 kChunk, columns]: k.S, then q.S, which becomes O
  float* u;                 // [kChunk, columns]
  float* u_decayed;         // [kChunk / Op::kSummed, columns]
  float* states;            // [heads, K, columns]
  float* state_pairs;       // [heads, K / 2, columns]

  PrefillBuffers(float* scratch, std::int64_t key_dim, std::int64_t value_columns,
                 std::int64_t heads)
      : K(key_dim), columns(round_up(value_columns, kLanes)), width(key_dim / Op::kSummed) {
    keys = take(scratch, 2 * kChunk * width);
    keys_by_column = take(scratch, width * kChunk);
    keys_by_token = take(scratch, Op::kSummed == 1 ? 0 : kChunk / 2 * K);
    keys_turned = take(scratch, Op::kTiles ? kChunk / 2 * K : 0);
    gram = take(scratch, 2 * kChunk * kChunk);
    mix = take(scratch, 2 * kChunk * kChunk);
    seen = take(scratch, 2 * kChunk * columns);
    u = take(scratch, kChunk * columns);
    u_decayed = take(scratch, kChunk / Op::kSummed * columns);
    states = take(scratch, heads * K * columns);
    state_pairs = take(scratch, Op::kSummed == 1 ? 0 : heads * K / 2 * columns);
  }
  static float* take(float*& scratch, std::int64_t floats) {
    float* result = scratch;
    scratch += round_up(floats, 16);
    return result;
  }
  float* state(std::int64_t head) const { return states + head * K * columns; }
  float* pairs_of(std::int64_t head) const { return state_pairs + head * K / 2 * columns; }
};

// Numbers of the tokens of a chunk. Tokens past the chunk's end are there up to a multiple of eight,
// for AMX all of them, and change nothing.
struct ChunkNumbers {
  std::int64_t tokens = 0, padded = 0;
  alignas(64) float k_factor[kChunk], q_factor[kChunk];  // of the norms, and the scale
  alignas(64) float alpha[kChunk], beta[kChunk], from_start[kChunk], to_end[kChunk];
};

template <class T>
HYLA_INLINE float norm_factor(const gdn::Problem& p, const T* key) {
  if (!p.l2norm) return 1.0f;
  F squares = zero();
  for (std::int64_t i = 0; i < p.K; i += kLanes) {
    const F x = load_some(key + i, p.K - i);
    squares = fma(x, x, squares);
  }
  return 1.0f / __builtin_sqrtf(sum(squares) + static_cast<float>(p.l2norm_eps));
}

template <class Op>
HYLA_INLINE float load_chunk_key(const gdn::Problem& p, const core::TokenView& view,
                                 std::int64_t offset, float* to) {
  if constexpr (Op::kSummed == 1) {
    load_values(view, offset, p.K, to);
    return norm_factor(p, to);
  } else {
    const bfloat16* from = static_cast<const bfloat16*>(view.data) + offset;
    std::memcpy(static_cast<void*>(to), from, static_cast<std::size_t>(p.K) * sizeof(bfloat16));
    return norm_factor(p, from);
  }
}

// Keys of two tokens side by side.
template <class Op>
HYLA_INLINE void pair_tokens(const PrefillBuffers<Op>& b, std::int64_t t) {
  const auto* first = reinterpret_cast<const bfloat16*>(b.keys + t * b.width);
  const bfloat16* second = first + b.K;
  float* to = b.keys_by_token + t / 2 * b.K;
  std::int64_t i = 0;
#if HYLA_TARGET_HAS_PAIRS
  for (; i + 2 * kLanes <= b.K; i += 2 * kLanes) {
    P lower, upper;
    zip_pairs(load_pairs(first + i), load_pairs(second + i), lower, upper);
    store_pairs(lower, to + i);
    store_pairs(upper, to + i + kLanes);
  }
#endif
  for (; i < b.K; ++i) {
    const bfloat16 pair[] = {first[i], second[i]};
    std::memcpy(to + i, pair, sizeof pair);
  }
}

// Queries and keys of a chunk, in the forms the products want them in, and their products with each
// other.
template <class Op>
void load_chunk(const gdn::Problem& p, std::int64_t row, std::int64_t token, std::int64_t head,
                const PrefillBuffers<Op>& b, ChunkNumbers& numbers) {
  const std::int64_t q_head = head / (p.heads / p.q_heads), k_head = head / (p.heads / p.k_heads);
  const std::int64_t width = b.width;
  for (std::int64_t t = 0; t < numbers.padded; ++t) {
    float* k = b.keys + t * width;
    float* q = b.keys + (kChunk + t) * width;
    if (t < numbers.tokens) {
      numbers.k_factor[t] = load_chunk_key<Op>(p, p.k, p.k.offset(row, token + t, k_head), k);
      numbers.q_factor[t] = static_cast<float>(p.scale) *
                            load_chunk_key<Op>(p, p.q, p.q.offset(row, token + t, q_head), q);
    } else {
      numbers.k_factor[t] = numbers.q_factor[t] = 0.0f;
      std::memset(k, 0, static_cast<std::size_t>(width) * sizeof(float));
      std::memset(q, 0, static_cast<std::size_t>(width) * sizeof(float));
    }
  }
  transpose(b.keys, width, numbers.padded, width, b.keys_by_column, kChunk);
  if constexpr (Op::kSummed == 2) {
    for (std::int64_t t = 0; t < numbers.padded; t += 2) pair_tokens(b, t);
  }
#if HYLA_TARGET_HAS_PAIRS
  if constexpr (Op::kTiles) {
    transpose(b.keys_by_token, b.K, kChunk / 2, b.K, b.keys_turned, kChunk / 2);
    amx::multiply<false>({b.keys, width}, 2 * kChunk, {b.keys_by_column, kChunk}, width, kChunk,
                         {b.gram, kChunk});
    return;
  }
#endif
  for (std::int64_t half = 0; half < 2 * kChunk; half += kChunk) {
    for (std::int64_t t = 0; t < numbers.padded; t += kTileRows) {
      const Left left{b.keys + (half + t) * width, width, 1};
      multiply<Op>(left, kTileRows, b.keys_by_column, kChunk, width,
                   round_up(t + kTileRows, kLanes), b.gram + (half + t) * kChunk, kChunk);
    }
  }
}

// Gates of a head, and -A and P from them.
template <class Op>
void mix_tokens(const gdn::Problem& p, std::int64_t row, std::int64_t token, std::int64_t head,
                const PrefillBuffers<Op>& b, ChunkNumbers& n) {
  alignas(64) float decay[kChunk] = {};  // D[t]
  for (std::int64_t t = 0; t < n.tokens; t += kLanes) {
    const int count = static_cast<int>(std::min<std::int64_t>(kLanes, n.tokens - t));
    const GateLanes lanes{row, token + t, head, 1, 0, count};
    store(alphas_of(p.gate, lanes), n.alpha + t);
    store(betas_of(p.beta, lanes), n.beta + t);
  }
  float from_start = 1.0f;
  for (std::int64_t t = 0; t < n.padded; ++t) {
    const float alpha = t < n.tokens ? n.alpha[t] : 1.0f;
    if (t >= n.tokens) n.beta[t] = 0.0f;
    from_start *= alpha;
    n.from_start[t] = from_start;
    const std::int64_t end = round_up(t + 1, kLanes);
    for (std::int64_t s = 0; s < end; s += kLanes) {
      store(mul(set(alpha), load(decay + s)), decay + s);
    }
    decay[t] = 1.0f;
    const F a = set(-n.beta[t] * n.k_factor[t]), q = set(n.q_factor[t]);
    const float* kk = b.gram + t * kChunk;
    const float* qk = b.gram + (kChunk + t) * kChunk;
    float* to_a = b.mix + t * kChunk;
    float* to_p = b.mix + (kChunk + t) * kChunk;
    for (std::int64_t s = 0; s < end; s += kLanes) {
      const F d = mul(load(decay + s), load(n.k_factor + s));
      store(mul(mul(a, d), load(kk + s)), to_a + s);
      store(mul(mul(q, d), load(qk + s)), to_p + s);
    }
    // What the tiles of P on the diagonal see of later tokens.
    for (std::int64_t s = t + 1; s < round_up(t + 1, kTileRows); ++s) to_p[s] = 0.0f;
  }
  for (std::int64_t s = 0; s < kChunk; s += kLanes) store(load(decay + s), n.to_end + s);
}

// U = W + (-A) U from the first row on: the rows above a tile by a product, the tile's own in turn.
template <int kVectors>
struct SolveTile {
  static HYLA_INLINE void tile(const float* a, std::int64_t row, float* u, std::int64_t stride,
                               std::int64_t column) {
    F sums[kTileRows][kVectors];
    float* here = u + row * stride + column;
    load_tile(here, stride, sums);
    add_tile<Singles>({a, kChunk, 1}, row, u + column, stride, row, sums);
#pragma GCC unroll 4
    for (int m = 1; m < kTileRows; ++m) {
#pragma GCC unroll 4
      for (int above = 0; above < m; ++above) {
        const F factor = set(a[(row + m) * kChunk + row + above]);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) {
          sums[m][i] = fma(factor, sums[above][i], sums[m][i]);
        }
      }
    }
    store_tile(sums, here, stride);
  }
};

// O = E (q.S) + P U, in place of q.S.
template <int kVectors>
struct OutputTile {
  static HYLA_INLINE void tile(const ChunkNumbers& n, const float* mix, std::int64_t row,
                               const float* u, float* seen, std::int64_t stride,
                               std::int64_t column) {
    F sums[kTileRows][kVectors];
    float* here = seen + row * stride + column;
    load_tile(here, stride, sums);
#pragma GCC unroll 4
    for (int m = 0; m < kTileRows; ++m) {
      const F factor = set(n.from_start[row + m] * n.q_factor[row + m]);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) sums[m][i] = mul(factor, sums[m][i]);
    }
    add_tile<Singles>({mix, kChunk, 1}, row, u + column, stride, row + kTileRows, sums);
    store_tile(sums, here, stride);
  }
};

// S = E[last] S + K^T U, and S as pairs for the next chunk.
template <class Op>
struct UpdateState {
  template <int kVectors>
  struct Tile {
    static HYLA_INLINE void tile(const Left& keys, std::int64_t row, const float* u,
                                 std::int64_t steps, float decay, float* state,
                                 [[maybe_unused]] float* pairs, std::int64_t stride,
                                 std::int64_t column) {
      F sums[kTileRows][kVectors];
      float* here = state + row * stride + column;
      load_tile(here, stride, sums);
#pragma GCC unroll 4
      for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) sums[m][i] = mul(set(decay), sums[m][i]);
      }
      add_tile<Op>(keys, row, u + column, stride, steps, sums);
      store_tile(sums, here, stride);
#if HYLA_TARGET_HAS_PAIRS
      if constexpr (Op::kSummed == 2) {
#pragma GCC unroll 4
        for (int m = 0; m < kTileRows; m += 2) {
#pragma GCC unroll 4
          for (int i = 0; i < kVectors; ++i) {
            store_pairs(pack_pairs(sums[m][i], sums[m + 1][i]),
                        pairs + (row + m) / 2 * stride + column + i * kLanes);
          }
        }
      }
#endif
    }
  };
};

#if HYLA_TARGET_HAS_PAIRS
// The same by AMX, some rows at a time, which stay in the L1 cache.
inline void update_by_tiles(const PrefillBuffers<AmxPairs>& b, float decay, float* state,
                            float* pairs) {
  constexpr std::int64_t kRows = 2 * amx::kRows;
  for (std::int64_t row = 0; row < b.K; row += kRows) {
    const std::int64_t rows = std::min(kRows, b.K - row);
    float* here = state + row * b.columns;
    for (std::int64_t i = 0; i < rows * b.columns; i += kLanes) {
      store(mul(set(decay), load(here + i)), here + i);
    }
    amx::multiply<true>({b.keys_turned + row * kChunk / 2, kChunk / 2}, rows,
                        {b.u_decayed, b.columns}, kChunk / 2, b.columns, {here, b.columns});
    for (std::int64_t m = 0; m < rows; m += 2) {
      const float* from = here + m * b.columns;
      float* to = pairs + (row + m) / 2 * b.columns;
      for (std::int64_t i = 0; i < b.columns; i += kLanes) {
        store_pairs(pack_pairs(load(from + i), load(from + b.columns + i)), to + i);
      }
    }
  }
}
#endif

// W = beta (v - E k.S) of one token, in u.
template <class Op>
void load_inflow(const gdn::Problem& p, std::int64_t row, std::int64_t token, std::int64_t head,
                 std::int64_t v0, std::int64_t count, std::int64_t t, const PrefillBuffers<Op>& b,
                 const ChunkNumbers& n) {
  alignas(64) float values[kMaxDim + 16];
  float* u = b.u + t * b.columns;
  if (t >= n.tokens) {
    for (std::int64_t i = 0; i < b.columns; i += kLanes) store(zero(), u + i);
    return;
  }
  load_values(p.v, p.v.offset(row, token + t, head / (p.heads / p.v_heads), v0), count, values);
  for (std::int64_t i = count; i < b.columns; ++i) values[i] = 0.0f;
  const F beta = set(n.beta[t]), seen = set(-n.from_start[t] * n.k_factor[t]);
  for (std::int64_t i = 0; i < b.columns; i += kLanes) {
    store(mul(beta, fma(seen, load(b.seen + t * b.columns + i), load(values + i))), u + i);
  }
}

template <class Op>
void decay_inflow(const PrefillBuffers<Op>& b, const ChunkNumbers& n) {
  for (std::int64_t s = 0; s < n.padded; s += Op::kSummed) {
    const F first = set(n.to_end[s] * n.k_factor[s]);
    const float* u = b.u + s * b.columns;
    float* to = b.u_decayed + s / Op::kSummed * b.columns;
    for (std::int64_t i = 0; i < b.columns; i += kLanes) {
#if HYLA_TARGET_HAS_PAIRS
      if constexpr (Op::kSummed == 2) {
        const F second = set(n.to_end[s + 1] * n.k_factor[s + 1]);
        store_pairs(pack_pairs(mul(first, load(u + i)), mul(second, load(u + b.columns + i))),
                    to + i);
        continue;
      }
#endif
      store(mul(first, load(u + i)), to + i);
    }
  }
}

// One head through the chunk: value columns v0 to v0 + count.
template <class Op>
void run_chunk(const gdn::Problem& p, std::int64_t row, std::int64_t token, std::int64_t head,
               std::int64_t index, std::int64_t v0, std::int64_t count, const PrefillBuffers<Op>& b,
               ChunkNumbers& n) {
  mix_tokens(p, row, token, head, b, n);
  float* state = b.state(index);
  float* pairs = Op::kSummed == 2 ? b.pairs_of(index) : nullptr;
  const float* right = Op::kSummed == 2 ? pairs : state;
  if constexpr (Op::kTiles) {
#if HYLA_TARGET_HAS_PAIRS
    amx::multiply<false>({b.keys, b.width}, 2 * kChunk, {pairs, b.columns}, b.width, b.columns,
                         {b.seen, b.columns});
#endif
  } else {
    for (std::int64_t half = 0; half < 2 * kChunk; half += kChunk) {
      multiply<Op>({b.keys + half * b.width, b.width, 1}, n.padded, right, b.columns, b.width,
                   b.columns, b.seen + half * b.columns, b.columns);
    }
  }
  for (std::int64_t t = 0; t < n.padded; ++t) {
    load_inflow(p, row, token, head, v0, count, t, b, n);
  }
  for (std::int64_t t = 0; t < n.padded; t += kTileRows) {
    for_columns<SolveTile>(b.columns, static_cast<const float*>(b.mix), t, b.u, b.columns);
  }
  float* outputs = b.seen + kChunk * b.columns;
  for (std::int64_t t = 0; t < n.padded; t += kTileRows) {
    for_columns<OutputTile>(b.columns, n, static_cast<const float*>(b.mix + kChunk * kChunk), t,
                            static_cast<const float*>(b.u), outputs, b.columns);
  }
  for (std::int64_t t = 0; t < n.tokens; ++t) {
    store_values(p.out, p.out.offset(row, token + t, head, v0), count, outputs + t * b.columns);
  }
  decay_inflow(b, n);
#if HYLA_TARGET_HAS_PAIRS
  if constexpr (Op::kTiles) {
    update_by_tiles(b, n.from_start[n.padded - 1], state, pairs);
    return;
  }
#endif
  const Left keys = Op::kSummed == 2 ? Left{b.keys_by_token, 1, b.K} : Left{b.keys, 1, b.K};
  for (std::int64_t i = 0; i < b.K; i += kTileRows) {
    for_columns<UpdateState<Op>::template Tile>(
        b.columns, keys, i, static_cast<const float*>(b.u_decayed), n.padded / Op::kSummed,
        n.from_start[n.padded - 1], state, pairs, b.columns);
  }
}

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END
#endif  // HYLA_CPU_GDN_CHUNK_H_
