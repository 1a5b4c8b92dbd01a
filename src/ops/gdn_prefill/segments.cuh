// Parts of a sequence that different CTAs work on at once.
//
// Without transfers: part 1 first walks over the chunks of part 0 for the state only, which is
// faster than with outputs, so both end together. The bits are those of one walk.
//
// With transfers: what a segment makes of its initial state S is M S + N, with N the state it
// reaches from zero and M what it makes of the identity. All N and M are found at once, then the
// states between the segments one after another, then the outputs of all segments at once. Where a
// segment forgets its initial state, M is zero, and N is found from its last chunks alone. Where it
// does not, it may be cut into pieces, each with an M and an N of its own.
#pragma once

#include "ops/gdn_prefill/chunk_info.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

// A chunk for the state only takes this many hundredths of one with outputs.
inline constexpr int kStateOnlyPercent = 75;

// First chunk of a part of several; of part `parts`: the number of chunks.
__device__ __forceinline__ int first_chunk(const FusedArguments& a, int chunks, int part,
                                           int parts) {
  if (part == 0 || part >= parts) return part == 0 ? 0 : chunks;
  if (!a.transfers)
    return min(chunks, (chunks * 100 + 199 - kStateOnlyPercent) / (200 - kStateOnlyPercent));
  const int pieces = parts * a.cuts, size = (chunks + pieces - 1) / pieces * a.cuts;
  return min(chunks, part * size);
}
__device__ __forceinline__ int first_chunk(const FusedArguments& a, int chunks, int part) {
  return first_chunk(a, chunks, part, a.parts);
}
// Of a piece, with transfers: pieces are numbered over all parts.
__device__ __forceinline__ int first_of_piece(const FusedArguments& a, int chunks, int piece) {
  const int pieces = a.parts * a.cuts, size = (chunks + pieces - 1) / pieces;
  return min(chunks, piece * size);
}
// Those that a part follows: what comes after the last of them nobody starts from.
HYLA_HOST_DEVICE inline int pieces_followed(const FusedArguments& a) {
  return (a.parts - 1) * a.cuts;
}

// The norm of what a chunk makes of a state is at most its decay where 0 <= beta |k|^2 <= 2 for all
// of its tokens: I - beta k k^T has no eigenvalue beyond 1 then. `prepare` notes log2 of this bound
// in factors.decay[2], and kNeverForgets where a token does not hold to it. A state of which less
// than 2^-280 is left leaves less than the smallest normal float32, whatever finite numbers it had:
// 2^-280 2^128 128 < 2^-126.
inline constexpr float kForgottenLog2 = 280.0f, kNeverForgets = 1e9f;
// beta |k|^2 is rounded: up to 2.0001 counts as 2, and 64 tokens of it as a growth of 2^0.01.
inline constexpr float kMostErased = 2.0001f, kErasedLog2 = 0.01f;

inline constexpr int kStateElements = 128 * 128;

// N of piece s, later the state after it, and M of piece s: [V, K] float32, of every head of every
// sequence.
__device__ __forceinline__ float* segment_state(const FusedArguments& a, int task, int s) {
  return a.states + (static_cast<std::int64_t>(task) * pieces_followed(a) + s) * 2 * kStateElements;
}
__device__ __forceinline__ float* segment_matrix(const FusedArguments& a, int task, int s) {
  return segment_state(a, task, s) + kStateElements;
}

// Not zero: M of piece s is, and is not there.
__device__ __forceinline__ int* segment_forgets(const FusedArguments& a, int task, int s) {
  const std::int64_t states = static_cast<std::int64_t>(a.tasks) * pieces_followed(a);
  auto* flags = reinterpret_cast<int*>(a.states + states * 2 * kStateElements);
  return flags + static_cast<std::int64_t>(task) * pieces_followed(a) + s;
}

// One of them as a pool of one slot and one head.
__device__ __forceinline__ PoolView as_pool(float* state) {
  PoolView pool;
  pool.data = state;
  pool.dtype = DType::kFloat32;
  pool.slots = 1;
  pool.v_stride = 128;
  pool.k_stride = 1;
  return pool;
}

}  // namespace hyla::gdn
