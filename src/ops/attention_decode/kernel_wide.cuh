// Attention of up to 64 packed query rows of a sequence over long caches: verification of drafts,
// groups of many heads. One warpgroup, wgmma: rows that do not exist cost nothing that a stream of
// keys would notice, and a key or value is read from shared memory once, not once for 8 rows.
//
//     wait K(i) | S = Q K(i)^T  | softmax | wait V(i) | O += P V(i)
//               | copy V(i+n-1) |         |           | copy K(i+n)      n tiles in the ring
#pragma once

#include "arch/grid_dependency.cuh"
#include "arch/tma.cuh"
#include "arch/wgmma_any.cuh"
#include "ops/attention_decode/merge.cuh"
#include "ops/attention_decode/share.cuh"
#include "ops/attention_prefill/softmax.cuh"

namespace hyla::attention::decode {

// Queries [D / 64][64 rows][128 bytes], swizzled; rows and columns that do not exist are zeros.
template <class Shape>
__device__ __forceinline__ void copy_queries(const Arguments& a, const Segment& segment,
                                             unsigned char* to) {
  constexpr int kPieces = Shape::D / 8;  // of 16 bytes
  const bool wide = (reinterpret_cast<std::uintptr_t>(a.q.data) & 15) == 0 &&
                    ((a.q.token_bytes | a.q.head_bytes) & 15) == 0;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * kPieces; i += Shape::kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const QueryRow query = query_row<Shape>(a, segment.first_token, segment.first_head,
                                            segment.first_row, segment.rows, row);
    uint4 x{};
    if (query.token >= 0 && piece * 8 < a.q.dim) {
      const char* from = a.q.data + static_cast<std::int64_t>(query.token) * a.q.token_bytes +
                         static_cast<std::int64_t>(query.head) * a.q.head_bytes + piece * 16;
      if (wide) {
        x = *reinterpret_cast<const uint4*>(from);
      } else {
        const auto* words = reinterpret_cast<const std::uint32_t*>(from);
        x = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
    *reinterpret_cast<uint4*>(to + (piece >> 3) * Shape::kRows * 128 + row * 128 +
                              (((piece ^ row) & 7) << 4)) = x;
  }
}

// A thread's two rows, 8 apart.
struct RowPair {
  VisibleKeys upper, lower;
  int all_first, all_end;  // keys that every row sees
};

template <class Shape>
__device__ __forceinline__ RowPair sees(const Arguments& a, const Segment& segment, int row) {
  const auto keys = [&](int r) {
    return a.sight.keys(segment.position + a.q.by_group(segment.first_row + r), segment.keys);
  };
  const auto visible = [&](int r) {
    if (r >= segment.rows) return VisibleKeys{0, 0};
    const Sight::Range range = keys(r);
    return VisibleKeys{range.begin,
                       static_cast<unsigned>(max(min(range.end, segment.end) - range.begin, 0))};
  };
  return {visible(row), visible(row + 8), keys(segment.rows - 1).begin,
          min(keys(0).end, segment.end)};
}

// Writes a segment's rows by way of shared memory, some columns at a time. The stage may be where
// the queries were.
template <class Shape>
__device__ __forceinline__ void write_rows(const Arguments& a, const Segment& segment,
                                           const float (&o)[Shape::D / 2], const SoftmaxRow& upper,
                                           const SoftmaxRow& lower, float factor, float* stage,
                                           float2* sums, int first, int quad_lane) {
  constexpr int kColumns = Shape::kStageColumns, kPitch = kColumns + 4, kQuads = kColumns / 4;
  const float upper_sum = quad_sum(upper.sum), lower_sum = quad_sum(lower.sum);
  if (quad_lane == 0) {
    sums[first] = make_float2(upper.maximum * factor, upper_sum);
    sums[first + 8] = make_float2(lower.maximum * factor, lower_sum);
  }
#pragma unroll
  for (int pass = 0; pass < Shape::D / kColumns; ++pass) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int e = 4 * (pass * (kColumns / 8) + j);
      float* to = stage + first * kPitch + 8 * j + 2 * quad_lane;
      *reinterpret_cast<float2*>(to) = make_float2(o[e], o[e + 1]);
      *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(o[e + 2], o[e + 3]);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < segment.rows * kQuads; i += Shape::kThreads) {
      const int row = i / kQuads, column = i % kQuads * 4;
      const float4 y = *reinterpret_cast<const float4*>(stage + row * kPitch + column);
      float x[4] = {y.x, y.y, y.z, y.w};
      write_row<Shape>(a, segment, row, {sums[row].x, sums[row].y}, pass * kColumns + column, x);
    }
  }
  __syncthreads();
}

template <class Shape>
struct WideProducts {
  using Stored = typename Shape::Stored;

  static __device__ __forceinline__ void scores(float (&s)[Shape::kTileKeys / 2],
                                                arch::WgmmaDescriptor queries,
                                                arch::WgmmaDescriptor keys) {
#pragma unroll
    for (int c = 0; c < Shape::D / 64; ++c) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        arch::Wgmma<Stored, Shape::kTileKeys>::ss(s,
                                                  queries + (c * Shape::kRows * 128 + k * 32) / 16,
                                                  keys + (c * 1024 + k * 32) / 16, (c | k) != 0);
      }
    }
  }
  static __device__ __forceinline__ void values(float (&o)[Shape::D / 2],
                                                const std::uint32_t (&p)[Shape::kTileKeys / 4],
                                                arch::WgmmaDescriptor from) {
#pragma unroll
    for (int k = 0; k < Shape::kTileKeys / 16; ++k) {
      arch::Wgmma<Stored, Shape::D>::template rs<true>(
          o, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3],
          from + k * 2 * Shape::kGroupBytes / 16, true);
    }
  }
};

template <class Shape, class List>
__device__ __forceinline__ void stream_wide(const Arguments& a, WorkList<Shape>& list,
                                            Ring<Shape>& ring, unsigned char* queries, float2* sums,
                                            bool complete, const List& rest) {
  using Products = WideProducts<Shape>;
  constexpr int kTiles = Shape::kSlots / 2;  // that the ring holds, of keys and of values
  const int lane = static_cast<int>(threadIdx.x) & 31, quad_lane = lane & 3;
  const int first = static_cast<int>(threadIdx.x >> 5) * 16 + (lane >> 2);
  const bool capped = a.softcap > 0;
  const float factor = capped ? a.softcap : a.scale;
  const float squeeze = capped ? 2 * kLog2E * a.scale / a.softcap : 0.0f;
  const arch::WgmmaDescriptor query_operand =
      arch::strided_descriptor(arch::shared_address(queries), 1024);
  int slot = 0, at = 0;
  copy_queries<Shape>(a, list.segments[0], queries);
#pragma unroll 1
  for (int filled = 0; filled < kTiles; ++filled) {
    if (!complete && (ring.exhausted() || filled == kTiles - 1)) {
      rest();
      ring.open(list.count);
      complete = true;
    }
    if (filled > 0) ring.issue_values(2 * filled - 1);
    ring.issue_keys(2 * filled);
  }
#pragma unroll 1
  while (true) {
    const Segment& segment = list.segments[at];
    const RowPair rows = sees<Shape>(a, segment, first);
    SoftmaxRow upper, lower;
    float o[Shape::D / 2] = {}, s[Shape::kTileKeys / 2];
    const int end = segment.end;
#pragma unroll 1
    for (int key = segment.begin; key < end; key += Shape::kTileKeys) {
      arch::wait_copies<Shape::kSlots - 2>();
      arch::fence_async_proxy();
      __syncthreads();  // keys are there; the values before have been read
      arch::wgmma_fence();
      Products::scores(s, query_operand,
                       arch::strided_descriptor(ring.tile(slot), Shape::kGroupBytes));
      arch::wgmma_commit();
      ring.issue_values(slot == 0 ? Shape::kSlots - 1 : slot - 1);
      arch::wgmma_wait<0>();
      if (capped) squeeze_logits(s, squeeze);
      if (key < rows.all_first || key + Shape::kTileKeys > rows.all_end) {
        hide_columns(s, rows.upper, rows.lower, key + 2 * quad_lane);
      }
      exponentiate(s, upper, lower, factor);
      rescale(o, upper, lower);
      std::uint32_t p[Shape::kTileKeys / 4];
#pragma unroll
      for (int i = 0; i < Shape::kTileKeys / 4; ++i) {
        p[i] = packed<typename Shape::Stored>(s[2 * i], s[2 * i + 1]);
      }
      arch::wait_copies<Shape::kSlots - 2>();
      arch::fence_async_proxy();
      __syncthreads();  // values are there; the keys have been read
      arch::wgmma_fence();
      Products::values(o, p,
                       arch::strided_descriptor(ring.tile(slot + 1), Shape::kGroupBytes, 1024));
      arch::wgmma_commit();
      ring.issue_keys(slot);
      arch::wgmma_wait<0>();
      slot = slot + 2 == Shape::kSlots ? 0 : slot + 2;
    }
    write_rows<Shape>(a, segment, o, upper, lower, factor, reinterpret_cast<float*>(queries), sums,
                      first, quad_lane);
    if (++at == list.count) return;
    copy_queries<Shape>(a, list.segments[at], queries);
  }
}

// Grid: two CTAs an SM.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtas)
    attention_wide(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ WorkList<Shape> list;
  __shared__ float2 sums[Shape::kRows];
  arch::let_next_grid_start();
  arch::wait_for_previous_grid();
  const int warp = __shfl_sync(device::kFullWarp, static_cast<int>(threadIdx.x) >> 5, 0);
  const std::uint32_t tiles = arch::shared_address(memory) + Shape::kQueryBytes;
  run_share<Shape>(a, list, tiles, 0, {0, 0, warp},
                   [&](Ring<Shape>& ring, bool complete, const auto& rest) {
                     stream_wide<Shape>(a, list, ring, memory, sums, complete, rest);
                   });
}

}  // namespace hyla::attention::decode
