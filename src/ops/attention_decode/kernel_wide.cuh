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

// A segment's queries, on their way to [D / 64][rows][128 bytes], swizzled; rows and columns that
// do not exist are zeros. One group of copies.
template <class Shape>
__device__ __forceinline__ void copy_queries(const Arguments& a, const Segment& segment,
                                             std::uint32_t to) {
  constexpr int kOfRow = Shape::D / 8, kRowsAtOnce = Shape::kThreads / kOfRow;
  const bool wide = (reinterpret_cast<std::uintptr_t>(a.q.data) & 15) == 0 &&
                    ((a.q.token_bytes | a.q.head_bytes) & 15) == 0;
  const int piece = static_cast<int>(threadIdx.x) % kOfRow;
  const int first = static_cast<int>(threadIdx.x) / kOfRow;
  to += (piece >> 3) * Shape::kRows * 128;
#pragma unroll 2
  for (int row = first; row < Shape::kRows; row += kRowsAtOnce) {
    const QueryRow query = query_row<Shape>(a, segment.first_token, segment.first_head,
                                            segment.first_row, segment.rows, row);
    const bool there = query.token >= 0 && piece * 8 < a.q.dim;
    const char* from = a.q.data;
    if (there) {
      from += static_cast<std::int64_t>(query.token) * a.q.token_bytes +
              static_cast<std::int64_t>(query.head) * a.q.head_bytes + piece * 16;
    }
    const std::uint32_t at = to + row * 128 + (((piece ^ row) & 7) << 4);
    if (wide) {
      arch::copy_16(at, from, there ? 16 : 0);
    } else {
#pragma unroll
      for (int i = 0; i < 16; i += 4) copy_4(at + i, from + (there ? i : 0), there ? 4 : 0);
    }
  }
  arch::commit_copies();
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

// Columns 8 * i + 2 * quad_lane and the next of one row, of which the thread has one of two.
template <class Shape, class Element>
__device__ __forceinline__ void write_half(const Output& out, std::int64_t at, float factor,
                                           const float (&o)[Shape::D / 2], int half,
                                           int quad_lane) {
  Element* to = static_cast<Element*>(out.data) + at;
#pragma unroll
  for (int i = 0; i < Shape::D / 8; ++i) {
    const int column = 8 * i + 2 * quad_lane;
    const float x[2] = {factor * (half ? o[4 * i + 2] : o[4 * i]),
                        factor * (half ? o[4 * i + 3] : o[4 * i + 1])};
    if (column >= out.dim) break;
    if (out.wide) {
      device::Pack<Element, 2> pack;
      pack.pack(x);
      pack.store(to + column);
    } else {
      to[column] = device::from_float<Element>(x[0]);
      to[column + 1] = device::from_float<Element>(x[1]);
    }
  }
}

// A row that the thread has a quarter of.
template <class Shape>
__device__ __forceinline__ void write_row_of(const Arguments& a, const Segment& segment,
                                             const Softmax& softmax, const float (&o)[Shape::D / 2],
                                             int row, int half, int quad_lane) {
  if (row >= segment.rows) return;
  if (segment.piece >= 0) {
    const std::int64_t at = static_cast<std::int64_t>(segment.piece) * Shape::kRows + row;
    auto* to = reinterpret_cast<float2*>(a.pieces.values + at * Shape::D) + quad_lane;
#pragma unroll
    for (int i = 0; i < Shape::D / 8; ++i) {
      __stcg(to + 4 * i,
             half ? make_float2(o[4 * i + 2], o[4 * i + 3]) : make_float2(o[4 * i], o[4 * i + 1]));
    }
    if (quad_lane == 0) __stcg(a.pieces.sums + at, make_float2(softmax.top, softmax.sum));
    return;
  }
  const Output& out = a.out;
  const QueryRow query = query_row<Shape>(a, segment.first_token, segment.first_head,
                                          segment.first_row, segment.rows, row);
  const Finish with = finish(out, query.head, softmax);
  const std::int64_t at = query.token * out.token_stride + query.head * out.head_stride;
  if (out.dtype == DType::kFloat32) {
    write_half<Shape, float>(out, at, with.factor, o, half, quad_lane);
  } else if (out.dtype == DType::kBFloat16) {
    write_half<Shape, __nv_bfloat16>(out, at, with.factor, o, half, quad_lane);
  } else {
    write_half<Shape, __half>(out, at, with.factor, o, half, quad_lane);
  }
  if (quad_lane == 0 && out.lse != nullptr) {
    out.lse[query.token * out.lse_token_stride + query.head * out.lse_head_stride] = with.lse;
  }
}

template <class Shape>
__device__ __forceinline__ void write_rows(const Arguments& a, const Segment& segment,
                                           const float (&o)[Shape::D / 2], const SoftmaxRow& upper,
                                           const SoftmaxRow& lower, float factor, int first,
                                           int quad_lane) {
  const Softmax above{upper.maximum * factor, quad_sum(upper.sum)};
  const Softmax below{lower.maximum * factor, quad_sum(lower.sum)};
  write_row_of<Shape>(a, segment, above, o, first, 0, quad_lane);
  write_row_of<Shape>(a, segment, below, o, first + 8, 1, quad_lane);
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
                                            Ring<Shape>& ring, unsigned char* queries,
                                            bool complete, const List& rest) {
  using Products = WideProducts<Shape>;
  constexpr int kSlots = Shape::kSlots;
  const int lane = static_cast<int>(threadIdx.x) & 31, quad_lane = lane & 3;
  const int first = static_cast<int>(threadIdx.x >> 5) * 16 + (lane >> 2);
  const bool capped = a.softcap > 0;
  const float factor = capped ? a.softcap : a.scale;
  const float squeeze = capped ? 2 * kLog2E * a.scale / a.softcap : 0.0f;
  const arch::WgmmaDescriptor query_operand =
      arch::strided_descriptor(arch::shared_address(queries), 1024);
  int slot = 0, at = 0;
  const std::uint32_t query_area = arch::shared_address(queries);
#pragma unroll 1
  for (int filled = 0; filled < kSlots - 1; filled += 2) {
    if (!complete && (ring.exhausted() || filled >= kSlots - 3)) {
      rest();
      ring.open(list.count);
      complete = true;
    }
    ring.issue_keys(filled);
    if (filled == 0) copy_queries<Shape>(a, list.segments[0], query_area);
    if (filled + 1 < kSlots - 1) ring.issue_values(filled + 1);
  }
#pragma unroll 1
  while (true) {
    const Segment& segment = list.segments[at];
    const RowPair rows = sees<Shape>(a, segment, first);
    SoftmaxRow upper, lower;
    float o[Shape::D / 2] = {}, s[Shape::kTileKeys / 2];
    const int end = segment.end;
    const bool any = (first & ~15) < segment.rows;  // has the warp a row?
    std::uint32_t p[Shape::kTileKeys / 4] = {};
#pragma unroll 1
    for (int key = segment.begin; key < end; key += Shape::kTileKeys) {
      arch::wait_copies<kSlots - 2>();
      arch::fence_async_proxy();
      __syncthreads();  // keys are there; the values before have been read
      arch::wgmma_fence();
      Products::scores(s, query_operand,
                       arch::strided_descriptor(ring.tile(slot), Shape::kGroupBytes));
      arch::wgmma_commit();
      ring.issue_values(slot == 0 ? kSlots - 1 : slot - 1);
      arch::wgmma_wait<0>();
      if (any) {
        if (capped) squeeze_logits(s, squeeze);
        if (key < rows.all_first || key + Shape::kTileKeys > rows.all_end) {
          hide_columns(s, rows.upper, rows.lower, key + 2 * quad_lane);
        }
        exponentiate(s, upper, lower, factor);
        rescale(o, upper, lower);
#pragma unroll
        for (int i = 0; i < Shape::kTileKeys / 4; ++i) {
          p[i] = packed<typename Shape::Stored>(s[2 * i], s[2 * i + 1]);
        }
      }
      arch::wait_copies<kSlots - 2>();
      arch::fence_async_proxy();
      __syncthreads();  // values are there; the keys have been read
      arch::wgmma_fence();
      Products::values(o, p,
                       arch::strided_descriptor(ring.tile(slot + 1), Shape::kGroupBytes, 1024));
      arch::wgmma_commit();
      // Nobody reads this segment's queries any more.
      if (key + Shape::kTileKeys >= end && at + 1 < list.count) {
        copy_queries<Shape>(a, list.segments[at + 1], query_area);
      }
      ring.issue_keys(slot);
      arch::wgmma_wait<0>();
      slot = slot + 2 == kSlots ? 0 : slot + 2;
    }
    write_rows<Shape>(a, segment, o, upper, lower, factor, first, quad_lane);
    if (++at == list.count) return;
    if (segment.begin < end) {
      arch::wait_copies<1>();  // for the queries, behind which one tile was asked for
    } else {
      arch::wait_copies<0>();
      copy_queries<Shape>(a, list.segments[at], query_area);
      arch::wait_copies<0>();
    }
  }
}

// Grid: two CTAs an SM.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kCtas)
    attention_wide(const __grid_constant__ typename Shape::Given a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ WorkList<Shape> list;
  arch::let_next_grid_start();
  fetch_ahead<Shape>(a);
  arch::wait_for_previous_grid();
  const int warp = __shfl_sync(device::kFullWarp, static_cast<int>(threadIdx.x) >> 5, 0);
  const std::uint32_t tiles = arch::shared_address(memory) + Shape::kQueryBytes;
  run_share<Shape>(a, list, tiles, 0, {0, 0, warp},
                   [&](Ring<Shape>& ring, bool complete, const auto& rest) {
                     stream_wide<Shape>(a, list, ring, memory, complete, rest);
                   });
}

}  // namespace hyla::attention::decode
