// What a chunk of a head needs from the chunks' own data, kept in memory between two kernels: T', P
// and the factors, as they lie in shared memory.
#pragma once

#include "ops/gdn_prefill/chunk.cuh"
#include "ops/gdn_prefill/fused_arguments.cuh"

namespace hyla::gdn {

template <class Io>
struct alignas(1024) Record {
  Io inverse[kTile];  // T'
  Io scores[kTile];   // P
  Factors factors;
};
inline constexpr std::int64_t kRecordBytes = sizeof(Record<std::uint16_t>);
static_assert(sizeof(Factors) % 16 == 0);  // for bulk copies

// Chunks of sequences back to back are numbered without a sum over lengths: those of row r start at
// begin / 64 + r, because a sequence of n tokens back to back with the next has at most n / 64 + 1
// chunks in front of it. Some numbers stay unused. Sequences by starts and lengths lie in any
// order, so theirs are summed up first (kernel_slots.cuh); they need no more.
HYLA_HOST_DEVICE constexpr std::int64_t chunk_slots(std::int64_t rows, std::int64_t tokens) {
  return tokens / kChunk + rows;
}
inline std::size_t record_bytes(std::int64_t rows, std::int64_t heads, std::int64_t tokens) {
  return static_cast<std::size_t>(chunk_slots(rows, tokens) * heads * kRecordBytes);
}

// Of the numbers of rows' first chunks, where they are summed up.
inline std::size_t row_slot_bytes(std::int64_t rows) {
  return static_cast<std::size_t>((rows * std::int64_t{sizeof(int)} + 255) / 256 * 256);
}

__device__ __forceinline__ int first_chunk_slot(int row, int begin) { return begin / kChunk + row; }

}  // namespace hyla::gdn
