// Launching the prefill kernel over any pair of key and value rows.
#pragma once

#include <hyla/attention_queries.h>

#include <algorithm>

#include "device/alignment.h"
#include "device/launch.h"
#include "device/tensor_map.h"
#include "ops/attention/padded_dim.h"
#include "ops/attention_prefill/kernel_combine.cuh"
#include "ops/attention_prefill/kernel_tile.cuh"

namespace hyla::attention {

// How the copy engine sees keys or values: a matrix of virtual rows for each head, (64, rows,
// chunks, groups, heads). Whole chunks of 64 elements fold into a dimension of their own, and so do
// two groups of eight rows where rows come in aligned sixteens, so that a box loads 8 or 16 rows of
// any width into the memory layout of a tile. Other widths have the dimensions (dim, rows, 1, 1,
// heads) and take a box a chunk; the extent of the first clips the last chunk.
struct RowsTensor {
  device::TiledTensor tensor;  // rank 0: the copy engine cannot see them, or there are none
  BoxShape box;

  bool present() const { return tensor.rank != 0; }
};

struct RowsMatrix {
  const void* data;
  DType dtype;
  std::int64_t rows, row_stride, heads, head_stride, dim;  // strides in elements
  bool sixteens;  // sixteen tokens that start at a multiple of sixteen lie together, inside
};

// kernel_dim: of the kernel, whose tiles are that wide whatever the rows are: keys and values may
// differ, and a box that brought less would leave its barrier waiting.
inline RowsTensor rows_tensor(const RowsMatrix& m, int kernel_dim) {
  constexpr std::int64_t kMostRows = 0x7fffff00;  // coordinates are int32
  if (m.rows < 1 || m.rows > kMostRows || m.row_stride < 1) return {};
  const bool folded = m.dim % 64 == 0;
  const int chunks = kernel_dim / 64;
  const int groups = folded && m.sixteens ? 2 : 1;
  RowsTensor result;
  result.box = {8 * groups, folded ? 1 : chunks};
  device::TiledTensor& t = result.tensor;
  t.data = m.data;
  t.dtype = m.dtype;
  t.rank = 5;
  const std::int64_t shape[5] = {folded ? 64 : m.dim, m.rows, folded ? m.dim / 64 : 1, groups,
                                 m.heads};
  // The stride of a single head says nothing.
  const std::int64_t strides[4] = {m.row_stride, 64, 8 * m.row_stride,
                                   m.heads > 1 ? m.head_stride : 64};
  const int tile[5] = {64, 8, folded ? chunks : 1, groups, 1};
  std::copy(shape, shape + 5, t.shape);
  std::copy(strides, strides + 4, t.strides);
  std::copy(tile, tile + 5, t.tile);
  return device::refuses_tiles(t) == nullptr ? result : RowsTensor{};
}

inline device::TiledTensor query_tensor(const Queries& queries, int tokens_per_tile) {
  const std::int64_t group = queries.query_heads / queries.kv_heads;
  const std::int64_t token = queries.q.strides[0], head = queries.q.strides[1];
  device::TiledTensor t;
  t.data = queries.q.data;
  t.dtype = queries.q.dtype;
  t.rank = 4;
  const std::int64_t shape[4] = {queries.head_dim, group, queries.q.shape[0], queries.kv_heads};
  const std::int64_t strides[3] = {queries.query_heads > 1 ? head : 64,
                                   queries.q.shape[0] > 1 ? token : 64,
                                   queries.query_heads > 1 ? group * head : 64};
  const int tile[4] = {64, static_cast<int>(group), tokens_per_tile, 1};
  std::copy(shape, shape + 4, t.shape);
  std::copy(strides, strides + 3, t.strides);
  std::copy(tile, tile + 4, t.tile);
  return t;
}

// Null when the kernel takes these queries, whatever their keys and values are.
inline const char* tile_refuses(const Queries& queries) {
  const std::int64_t dim = std::max(queries.head_dim, queries.value_dim);
  const std::int64_t group = queries.query_heads / queries.kv_heads;
  const TensorView& out = queries.out;
  if (queries.q.dtype != DType::kBFloat16 && queries.q.dtype != DType::kFloat16) {
    return "takes bfloat16 and float16";
  }
  if (dim > 256) return "takes head dims up to 256";
  if (group > 128) return "more than 128 query heads share a KV head";
  if (!(queries.scale > 0)) return "takes a scale above 0";
  if (queries.rows > (1 << 24) || queries.q.shape[0] > (1 << 28)) return "too many tokens or rows";
  if (device::refuses_tiles(query_tensor(queries, 1)) != nullptr ||
      !device::aligned(out.data, 16) || (out.shape[0] > 1 && out.strides[0] % 8 != 0) ||
      (out.shape[1] > 1 && out.strides[1] % 8 != 0)) {
    return "q or out that is not aligned to 16 bytes";
  }
  return nullptr;
}

struct TileLaunch {
  std::int64_t more_than = 0;
  void* workspace = nullptr;  // Schedule::bytes, and where there is room pieces_bytes
  std::size_t bytes = 0;
  int processors = 0;
  std::int64_t most_keys = 0;  // of a row, as far as the host knows
};

// Pieces of items begin in the workspace behind the schedule.
inline std::int64_t schedule_room(std::int64_t rows) {
  return (Schedule::bytes(rows) + 255) / 256 * 256;
}
inline std::int64_t pieces_bytes(std::int64_t dim, int processors) {
  const int padded = padded_dim(dim);
  return Partials::bytes(processors, padded == 256 ? 128 : 192, padded);
}

// How many pieces items may be cut into; 0 where that could bring nothing.
template <class Shape>
int most_pieces(const Queries& q, const TileLaunch& launch, int tokens_per_tile,
                const Context& context) {
  static_assert(Shape::kRows == (Shape::kDim == 256 ? 128 : 192));
  const std::int64_t needed =
      schedule_room(q.rows) + Partials::bytes(launch.processors, Shape::kRows, Shape::kDim);
  const bool whole_rows = q.mask.window == 0 && q.mask.chunk == 0;
  // Where short rows are left to others there are some.
  const bool all = launch.more_than == 0;
  const std::int64_t tokens = q.q.shape[0] - (all ? 0 : q.rows - 1);
  const std::int64_t tiles =
      std::max((tokens + tokens_per_tile - 1) / tokens_per_tile, all ? q.rows : 0);
  const bool many = 2 * tiles * q.kv_heads > launch.processors;
  if (context.batch_invariant || !whole_rows || many ||
      launch.most_keys < 2 * kLeastPieceTiles * Shape::kKeys ||
      static_cast<std::int64_t>(launch.bytes) < needed) {
    return 0;
  }
  return launch.processors;
}

struct Nothing {
  void operator()() const {}
};

// between: launches what needs the schedule and what the kernel needs.
template <class Element, int Dim, Loading kLoading, class Keys, class Values,
          class Between = Nothing>
void launch_shape(const Queries& q, const TileLaunch& launch, TileArguments<Keys, Values> arguments,
                  const Context& context, const Between& between = {}) {
  using Shape = PrefillShape<Dim, kLoading>;
  arguments.tokens_per_tile = Shape::kRows / arguments.group;
  arguments.tile_keys = Shape::kKeys;
  arguments.most_pieces = most_pieces<Shape>(q, launch, arguments.tokens_per_tile, context);
  const std::int64_t slots = arguments.most_pieces;
  // Enough for every row's last tile to be a partial one.
  const auto items_of = [&](int tokens_per_tile) {
    return q.kv_heads * (q.q.shape[0] / tokens_per_tile + std::min(q.rows, q.q.shape[0]));
  };
  // Few items that are not cut: a warpgroup each, for as many multiprocessors more.
  if (const int tokens = kGroupRows / arguments.group; slots == 0 && !context.batch_invariant &&
                                                       tokens > 0 &&
                                                       items_of(tokens) <= launch.processors) {
    arguments.tokens_per_tile = tokens;
  }
  arguments.query_map = device::tensor_map(query_tensor(q, arguments.tokens_per_tile));
  if (slots > 0) {
    char* memory = static_cast<char*>(launch.workspace) + schedule_room(q.rows);
    arguments.partials.values = reinterpret_cast<float*>(memory);
    arguments.partials.rows =
        reinterpret_cast<float2*>(memory + slots * Shape::kRows * Shape::kDim * 4);
  }
  const std::int64_t whole = items_of(arguments.tokens_per_tile), items = std::max(slots, whole);
  constexpr bool kFindsRegions = requires { arguments.keys.regions; };
  arguments.own_schedule = !kFindsRegions && q.rows <= kMostOwnRows && whole <= launch.processors;
  device::LaunchShape shape;
  if (!arguments.own_schedule) {
    ScheduleArguments<Keys> schedule{arguments, arguments.keys};
    device::launch(&schedule_rows<Keys>, {dim3(1), dim3(kScheduleThreads)}, schedule, context);
    between();
    shape.programmatic = true;  // behind our own grids
  }
  shape.grid = dim3(static_cast<unsigned>(std::min<std::int64_t>(items, launch.processors)));
  shape.block = dim3(Shape::kThreads);
  using Loader =
      typename LoaderOf<kLoading, Shape, Element>::template type<TileArguments<Keys, Values>>;
  shape.shared_bytes = sizeof(TileShared<Shape>) + Loader::kSharedBytes;
  static_assert(sizeof(TileShared<Shape>) + Loader::kSharedBytes <= 227 << 10);
  device::launch(&attend_tiles<Shape, Element, Keys, Values, kLoading>, shape, arguments, context);
  if (slots == 0) return;
  shape.programmatic = true;
  shape.grid = dim3(static_cast<unsigned>(slots), kCombineSlices);
  shape.block = dim3(32 * kCombineWarps);
  shape.shared_bytes = 0;
  device::launch(&combine_pieces<Shape, Element, TileArguments<Keys, Values>>, shape, arguments,
                 context);
}

// Everything that does not depend on the kernel's shape.
template <class Keys, class Values>
TileArguments<Keys, Values> tile_arguments(const Queries& q, const Keys& keys, const Values& values,
                                           const TileLaunch& launch) {
  constexpr double kLog2E = 1.4426950408889634;
  TileArguments<Keys, Values> a{};
  a.keys = keys;
  a.values = values;
  a.mask = q.mask;
  a.cu_seqlens = q.cu_seqlens;
  a.starts = q.starts;
  a.lengths = q.lengths;
  a.schedule = Schedule::in(launch.workspace, q.rows);
  a.more_than = launch.more_than;
  a.total = static_cast<int>(q.q.shape[0]);
  a.out = q.out.data;
  a.out_token_stride = q.out.strides[0];
  a.out_head_stride = q.out.strides[1];
  if (q.lse.present()) {
    a.lse = static_cast<float*>(q.lse.data);
    a.lse_token_stride = q.lse.strides[0];
    a.lse_head_stride = q.lse.strides[1];
  }
  if (q.sinks.present()) {
    a.sinks = q.sinks.data;
    a.sinks_dtype = q.sinks.dtype;
    a.sinks_stride = q.sinks.strides[0];
  }
  const bool capped = q.softcap > 0;
  a.factor = static_cast<float>((capped ? q.softcap : q.scale) * kLog2E);
  a.squeeze = capped ? static_cast<float>(2 * kLog2E * q.scale / q.softcap) : 0.0f;
  a.group = static_cast<int>(q.query_heads / q.kv_heads);
  a.kv_heads = static_cast<int>(q.kv_heads);
  a.value_dim = static_cast<int>(q.value_dim);
  a.key_bytes = static_cast<int>(2 * q.head_dim);
  a.value_bytes = static_cast<int>(2 * q.value_dim);
  return a;
}

template <class Element, int Dim, class Keys, class Values>
void launch_tile(const Queries& q, const Keys& keys, const RowsTensor& key_tensor,
                 const Values& values, const RowsTensor& value_tensor, const TileLaunch& launch,
                 const Context& context) {
  TileArguments<Keys, Values> a = tile_arguments(q, keys, values, launch);
  if constexpr (Keys::kHasGroups && Values::kHasGroups) {
    if (key_tensor.present() && value_tensor.present()) {
      a.key_map = device::tensor_map(key_tensor.tensor);
      a.key_boxes = key_tensor.box;
      a.value_map = device::tensor_map(value_tensor.tensor);
      a.value_boxes = value_tensor.box;
      launch_shape<Element, Dim, Loading::kBoxes>(q, launch, a, context);
      return;
    }
  }
  launch_shape<Element, Dim, Loading::kRows>(q, launch, a, context);
}

}  // namespace hyla::attention
