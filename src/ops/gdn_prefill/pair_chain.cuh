// K above 128 when all multiprocessors are busy: two warpgroups with 64 value rows by 256 keys each
// share keys, queries, T' and P. Each makes its outputs itself, from registers, a quarter of the
// keys at a time; the products of one fill the gaps of the other. That takes less traffic of shared
// memory a value row than wide_chain.cuh, and longer a chunk.
#pragma once

#include "ops/gdn_prefill/wide_chain.cuh"

namespace hyla::gdn {

template <class Io>
struct alignas(1024) PairShared {
  Io out[2][2][kTile];
  Io keys[2][kWideTiles][kTile];
  Io queries[2][kWideTiles][kTile];
  struct Rest {
    Io values[2][kTile];
    Io prepared[2][kTile];  // T', P
  } rest[2];
  Factors factors[2];
  arch::Mbarrier keys_full[2], keys_empty[2], queries_full[2], queries_empty[2];
  arch::Mbarrier rest_full[2], rest_empty[2];
};
static_assert(sizeof(PairShared<std::uint16_t>) <= 232448);

template <class Io>
__device__ __forceinline__ void init_barriers(PairShared<Io>& s) {
  for (int i = 0; i < 2; ++i) {
    arch::init(s.keys_full[i], 1);
    arch::init(s.keys_empty[i], 8);
    arch::init(s.queries_full[i], 1);
    arch::init(s.queries_empty[i], 8);
    arch::init(s.rest_full[i], 1);
    arch::init(s.rest_empty[i], 8);
  }
  arch::fence_mbarrier_init();
}

// All chunks of a task, by one thread.
template <class Io>
__device__ __forceinline__ void feed(PairShared<Io>& s, const FusedArguments& a,
                                     const SerialTask& task) {
  constexpr std::uint32_t kRestBytes = 4 * kTileBytes + static_cast<std::uint32_t>(sizeof(Factors));
  const auto* records = static_cast<const Record<Io>*>(a.records);
  ChunkInfo info;
  set_head(a, task.head, info);
  const int chunks = task.chunks();
  for (int n = 0; n < chunks; ++n) {
    const int token = task.begin + n * kChunk, stage = n & 1;
    wait_place(s.keys_empty, n);
    load_wide_tiles(s.keys[stage], a.maps.k, info.k_head, token, s.keys_full[stage]);
    wait_place(s.queries_empty, n);
    load_wide_tiles(s.queries[stage], a.maps.q, info.q_head, token, s.queries_full[stage]);
    wait_place(s.rest_empty, n);
    arch::Mbarrier& full = s.rest_full[stage];
    auto& rest = s.rest[stage];
    arch::arrive_expecting(full, kRestBytes);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      arch::load_tile(rest.values[block], a.maps.v, {(task.block + block) * 64, info.v_head, token},
                      full);
    }
    const Record<Io>& record =
        records[static_cast<std::int64_t>(task.slot + n) * a.p.heads + task.head];
    arch::load_bulk(rest.prepared, record.inverse, 2 * kTileBytes, full);
    arch::load_bulk(&s.factors[stage], &record.factors, sizeof(Factors), full);
  }
}

template <class Io>
class PairChain : public OutTiles<Io> {
 public:
  __device__ __forceinline__ PairChain(PairShared<Io>& shared, int first_block, int own_block)
      : OutTiles<Io>(shared.out[own_block], first_block + own_block, 1 + own_block),
        s(shared),
        block_number(own_block) {
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = 0;
  }

  // First key of the thread's fragment.
  __device__ __forceinline__ int column() const { return 2 * (this->thread() & 3); }

  // Chunk n of the task. O of the chunk before leaves first.
  __device__ __forceinline__ void chunk(int n, const OutTarget& target) {
    const int stage = n & 1;
    const std::uint32_t keys = arch::uniform(arch::shared_address(s.keys[stage]));
    const std::uint32_t queries = arch::uniform(arch::shared_address(s.queries[stage]));
    float x[32], o[32];  // X, then U; O
    wait_stage(s.keys_full, n);
    wait_stage(s.queries_full, n);
    if (n > 0) this->leave(n - 1, n - 1, out, target);
    multiply_quarter<0>(x, o, keys, queries);
    multiply_quarter<1>(x, o, keys, queries);
    multiply_quarter<2>(x, o, keys, queries);
    multiply_quarter<3>(x, o, keys, queries);
    release(s.queries_empty[stage]);
    wait_stage(s.rest_full, n);
    const Factors& factors = s.factors[stage];

    std::uint32_t w[16];
    make_w<Io>(
        w, x,
        arch::shared_address(s.rest[stage].values[block_number]) + token_block(this->thread()),
        factors, column());
    multiply_tokens<Io>(x, w, arch::uniform(arch::shared_address(s.rest[stage].prepared[0])),
                        false);
    scale(S[0], factors.decay[0]);
    scale(S[1], factors.decay[0]);
    arch::wgmma_wait<0>();
    arch::pin(x);

    std::uint32_t u[16];
    if (factors.decay[1] == 0.0f) [[unlikely]] {
      pack_decayed<Io>(u, x, factors, column());
      update(u, keys);
      arch::wgmma_wait<0>();
      arch::pin(S[0]);
      arch::pin(S[1]);
      pack_tokens<Io>(u, x);
    } else {
      pack_tokens<Io>(u, x);
      update(u, keys);
    }
    scale_queries(o, factors, column());
    multiply_tokens<Io>(o, u, arch::uniform(arch::shared_address(s.rest[stage].prepared[1])), true);
    arch::wgmma_wait<1>();
    arch::pin(S[0]);
    arch::pin(S[1]);
    release(s.keys_empty[stage]);
    arch::wgmma_wait<0>();
    arch::pin(o);
    pack_tokens<Io>(out, o);
    release(s.rest_empty[stage]);
  }

  // The last chunk of a task, of `rows` tokens.
  __device__ __forceinline__ void store_last_out(int n, int c, int rows, const OutTarget& target) {
    this->leave_last(n, c, rows, out, target);
  }

  float S[2][64];  // halves of the keys

 private:
  // X (+)= 64 keys of S^T times the transpose of the same columns of K, O the same of Q
  template <int Quarter>
  __device__ __forceinline__ void multiply_quarter(float (&x)[32], float (&o)[32],
                                                   std::uint32_t keys, std::uint32_t queries) {
    const arch::WgmmaDescriptor k = arch::descriptor(keys + Quarter * kTileBytes);
    const arch::WgmmaDescriptor q = arch::descriptor(queries + Quarter * kTileBytes);
    const float* from = &S[Quarter / 2][Quarter % 2 * 32];
    std::uint32_t left[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) left[i] = pack<Io>(from[2 * i], from[2 * i + 1]);
    arch::pin(left);
    arch::pin(x);
    arch::pin(o);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      arch::wgmma_rs<Io, 64>(x, left + 4 * i, k + 2 * i, Quarter > 0 || i > 0);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      arch::wgmma_rs<Io, 64>(o, left + 4 * i, q + 2 * i, Quarter > 0 || i > 0);
    }
    arch::wgmma_commit();
    arch::wgmma_wait<0>();
    arch::pin(x);
    arch::pin(o);
  }

  // S += tokens K
  __device__ __forceinline__ void update(std::uint32_t (&tokens)[16], std::uint32_t address) {
    const arch::WgmmaDescriptor first = arch::descriptor(address, kTileBytes);
    const arch::WgmmaDescriptor second = first + (2 * kTileBytes >> 4);
    arch::pin(tokens);
    arch::pin(S[0]);
    arch::pin(S[1]);
    arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      arch::wgmma_rs<Io, 128, true>(S[0], tokens + 4 * i, first + 128 * i, true);
      arch::wgmma_rs<Io, 128, true>(S[1], tokens + 4 * i, second + 128 * i, true);
    }
    arch::wgmma_commit();
  }

  PairShared<Io>& s;
  const int block_number;  // of the two
  std::uint32_t out[16];   // O of the chunk before
};

}  // namespace hyla::gdn
