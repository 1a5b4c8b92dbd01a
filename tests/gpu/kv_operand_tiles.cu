// The device half of KV operands: their TMA tiles loaded by the copy engine, their rows looked up
// in a kernel, against the memory they describe.
#include <gtest/gtest.h>
#include <hyla/kv_operand_tma.h>
#include <hyla/kv_operands.h>

#include <cstring>
#include <random>
#include <vector>

#include "arch/tma.cuh"
#include "gpu/check.h"

namespace hyla::testing {

using namespace hyla::attention;

struct Box {
  int at[4];
};

constexpr int kMaxBoxBytes = 8192;

// One box after the other into shared memory, and from there to `out`.
__global__ void load_boxes(const __grid_constant__ CUtensorMap map, int rank, const Box* boxes,
                           int count, int bytes, unsigned char* out) {
  __shared__ __align__(1024) unsigned char tile[kMaxBoxBytes];
  __shared__ arch::Mbarrier full;
  if (threadIdx.x == 0) {
    arch::init(full, 1);
    arch::fence_mbarrier_init();
  }
  __syncthreads();
  for (int i = 0; i < count; ++i) {
    if (threadIdx.x == 0) {
      const Box b = boxes[i];
      const std::uint32_t to = arch::shared_address(tile);
      arch::arrive_expecting(full, static_cast<std::uint32_t>(bytes));
      if (rank == 2) arch::load_tile(to, map, arch::Coordinates2{b.at[0], b.at[1]}, full);
      if (rank == 3) {
        arch::load_tile(tile, map, arch::Coordinates3{b.at[0], b.at[1], b.at[2]}, full);
      }
      if (rank == 4) {
        arch::load_tile(to, map, arch::Coordinates4{b.at[0], b.at[1], b.at[2], b.at[3]}, full);
      }
    }
    arch::wait(full, i & 1);
    for (int j = static_cast<int>(threadIdx.x); j < bytes; j += static_cast<int>(blockDim.x)) {
      out[i * bytes + j] = tile[j];
    }
    __syncthreads();
  }
}

template <class Operand, int BN, int Alignment>
__global__ void look_up(Operand operand, int batch, int token, const int* encoded, int count,
                        std::uint32_t* rows, std::int32_t* tma_rows, const void** pointers) {
  const auto tile = operand.template populate<BN, Alignment>(static_cast<std::uint32_t>(batch),
                                                             static_cast<std::uint32_t>(token));
  for (int i = 0; i < BN; ++i) rows[i] = tile.get_row(static_cast<std::uint32_t>(i));
  // A tile of one token, and the second half of its head.
  for (int i = 0; i < BN; ++i) {
    const auto row = static_cast<std::uint32_t>(token + i);
    pointers[i] = operand.template block_paged_ptr<1>(static_cast<std::uint32_t>(batch), row, 1);
    pointers[BN + i] = operand
                           .template block_paged_tile<1>(static_cast<std::uint32_t>(batch), row, 1,
                                                         RowPitchLayout{32}, 8)
                           .data;
  }
  for (int i = 0; i < count; ++i) tma_rows[i] = operand.get_tma_row(encoded[i]);
}

namespace {

class GpuOperand : public Gpu {
 protected:
  void SetUp() override {
    Gpu::SetUp();
    if (IsSkipped()) return;
    std::mt19937 rng(3);
    for (unsigned char& x : bytes_) x = static_cast<unsigned char>(rng());
    memory_ = copy(bytes_);
  }
  void TearDown() override {
    for (void* memory : owned_) cuda::release(memory);
  }

  template <class T>
  T* copy(const std::vector<T>& values) {
    void* memory = cuda::allocate(values.size() * sizeof(T));
    owned_.push_back(memory);
    cuda::upload(memory, values.data(), values.size() * sizeof(T));
    return static_cast<T*>(memory);
  }
  template <class T>
  std::vector<T> back(const void* memory, std::size_t count) {
    std::vector<T> values(count);
    cuda::download(values.data(), memory, count * sizeof(T));
    return values;
  }

  std::vector<unsigned char> load(const TmaTileSpec& spec, const std::vector<Box>& boxes) {
    std::size_t bytes = size_of(spec.dtype);
    for (int d = 0; d < spec.rank; ++d) bytes *= spec.box[d];
    std::vector<unsigned char> out(bytes * boxes.size(), 0xa5);
    unsigned char* device = copy(out);
    load_boxes<<<1, 128, 0, static_cast<cudaStream_t>(cuda::stream().handle())>>>(
        encode(spec), spec.rank, copy(boxes), static_cast<int>(boxes.size()),
        static_cast<int>(bytes), device);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    cuda::synchronize();
    return back<unsigned char>(device, out.size());
  }

  // `bytes` at a byte offset of the memory; negative: zeros.
  std::vector<unsigned char> at(std::int64_t offset, std::size_t bytes) const {
    std::vector<unsigned char> result(bytes, 0);
    if (offset >= 0) std::memcpy(result.data(), bytes_.data() + offset, bytes);
    return result;
  }
  // Row `row` of a box of 128-byte rows, the swizzle undone.
  static std::vector<unsigned char> row_of(const std::vector<unsigned char>& loaded,
                                           std::size_t box, std::size_t rows, std::size_t row) {
    std::vector<unsigned char> result(128);
    for (std::size_t piece = 0; piece < 8; ++piece) {
      std::memcpy(result.data() + 16 * piece,
                  loaded.data() + (box * rows + row) * 128 + 16 * (piece ^ (row & 7)), 16);
    }
    return result;
  }

  std::vector<unsigned char> bytes_ = std::vector<unsigned char>(1 << 18);
  unsigned char* memory_ = nullptr;
  std::vector<void*> owned_;
};

// Pages of 16 in a pool with K and V and three layers, tokens or heads first; head dim 72 is one
// chunk of 64 and a clipped one.
TEST_F(GpuOperand, PagedTilesInBothLayouts) {
  constexpr std::int64_t kPages = 5, kSize = 16, kHeads = 2, kDim = 72;
  using Operand = PagedOperand<bfloat16, 16>;
  const std::vector<std::int32_t> table = {3, 1, 1 << 30, 4, 0, -1}, lengths = {32, 20};
  for (const bool heads_first : {false, true}) {
    const std::int64_t page_rows = 2 * 3 * kSize * kHeads;
    TensorView pool = TensorView::dense(memory_, DType::kBFloat16,
                                        {kPages, 2, 3, kSize, kHeads, kDim}, Device::cuda(0));
    if (heads_first) {
      pool = TensorView::dense(memory_, DType::kBFloat16, {kPages, 2, 3, kHeads, kSize, kDim},
                               Device::cuda(0));
    }
    TensorView pages = pool.select(1, 1).select(1, 2);  // values of layer 2
    if (heads_first) pages = pages.swap(1, 2);
    const Operand operand =
        Operand::from(pages, TensorView(table.data(), {2, 3}), TensorView(lengths.data(), {2}));
    const auto tile = operand.create_tma_tile<TensorMapSwizzle::k128B, 16, 72>(Context{});
    const auto offset = [&](std::int64_t page, std::int64_t token, std::int64_t head) {
      const std::int64_t inner = heads_first ? head * kSize + token : token * kHeads + head;
      return ((page * page_rows + (1 * 3 + 2) * kSize * kHeads) + inner) * kDim * 2;
    };
    std::vector<Box> boxes;
    std::vector<std::int64_t> page_of = {3, 1, -1};
    for (int c = 0; c < 3; ++c) {  // the third entry of row 0 points nowhere
      const auto rows = operand.populate<16, 16>(0, static_cast<std::uint32_t>(16 * c)).rows[0];
      for (int chunk = 0; chunk < 2; ++chunk) {
        boxes.push_back({{64 * chunk, 1, static_cast<int>(rows), 0}});
      }
    }
    const std::vector<unsigned char> loaded = load(tile.spec, boxes);
    for (std::size_t b = 0; b < boxes.size(); ++b) {
      const std::size_t chunk = b % 2;
      for (std::int64_t r = 0; r < kSize; ++r) {
        const std::int64_t page = page_of[b / 2];
        std::vector<unsigned char> expected(128, 0);
        if (page >= 0) {
          const std::size_t width = chunk == 0 ? 128 : (kDim - 64) * 2;
          const auto values =
              at(offset(page, r, 1) + static_cast<std::int64_t>(chunk) * 128, width);
          std::copy(values.begin(), values.end(), expected.begin());
        }
        EXPECT_EQ(row_of(loaded, b, kSize, static_cast<std::size_t>(r)), expected)
            << "heads first " << heads_first << ", box " << b << ", row " << r;
      }
    }
  }
}

// Rows behind the count are zeros, whatever follows in memory.
TEST_F(GpuOperand, RaggedTile) {
  constexpr std::int64_t kTotal = 40, kHeads = 2, kDim = 64;
  const std::vector<std::int32_t> offsets = {0, 13, 40};
  const auto operand = RaggedOperand<bfloat16>::from(
      TensorView::dense(memory_, DType::kBFloat16, {kTotal, kHeads, kDim}, Device::cuda(0)),
      TensorView(offsets.data(), {3}));
  const auto tile = operand.create_ragged_tma_tile<TensorMapSwizzle::k128B, 16, 64>(Context{});
  std::vector<Box> boxes;
  const std::vector<std::int64_t> starts = {0, 13, 24, 39}, counts = {13, 16, 3, 1};
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const auto c = tile.coordinates(0, starts[i], counts[i], 1);
    boxes.push_back({{static_cast<int>(c.at[0]), static_cast<int>(c.at[1]),
                      static_cast<int>(c.at[2]), static_cast<int>(c.at[3])}});
  }
  const std::vector<unsigned char> loaded = load(tile.spec, boxes);
  for (std::size_t b = 0; b < boxes.size(); ++b) {
    for (std::int64_t r = 0; r < 16; ++r) {
      const std::int64_t row = starts[b] + r;
      EXPECT_EQ(row_of(loaded, b, 16, static_cast<std::size_t>(r)),
                at(r < counts[b] ? (row * kHeads + 1) * kDim * 2 : -1, 128))
          << "box " << b << ", row " << r;
    }
  }
}

// Hopper has no gather4 instruction: four loads of one row each through the same map.
TEST_F(GpuOperand, GatheredRowsAndRope) {
  constexpr std::int64_t kPages = 6, kSize = 8, kDim = 640;  // 512 bytes of content, 64 bfloat16
  using Operand = PagedOperand<float8_e4m3, 8>;
  const std::vector<std::int32_t> table = {5, 2}, lengths = {16};
  const auto operand = Operand::from(
      TensorView::dense(memory_, DType::kFloat8E4M3, {kPages, kSize, 1, kDim}, Device::cuda(0)),
      TensorView(table.data(), {1, 2}), TensorView(lengths.data(), {1}));
  const std::vector<int> encoded = {5 * 8 + 3, 0, 2 * 8 + 7, -1};
  const auto content = operand.create_gather4_tma_tile<512, 640>(Context{});
  const auto rope =
      operand.create_rope_gather4_tma_tile<320, 512, TensorMapSwizzle::k128B>(Context{});
  const auto tile = operand.create_rope_tma_tile<TensorMapSwizzle::k128B, 8, 64, 512>(Context{});
  std::vector<Box> halves, rows;
  for (int e : encoded) {
    rows.push_back({{0, operand.get_tma_row(e), 0, 0}});
    // A box is at most 256 elements wide, the content has two.
    halves.push_back({{0, operand.get_tma_row(e), 0, 0}});
    halves.push_back({{256, operand.get_tma_row(e), 0, 0}});
  }
  TmaTileSpec half = content.spec;
  half.box[0] = 256;
  const auto contents = load(half, halves), ropes = load(rope.spec, rows);
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    const std::int64_t row = encoded[i] * kDim;
    EXPECT_EQ(
        std::vector<unsigned char>(contents.begin() + static_cast<std::ptrdiff_t>(512 * i),
                                   contents.begin() + static_cast<std::ptrdiff_t>(512 * i + 512)),
        at(encoded[i] < 0 ? -1 : row, 512));
    EXPECT_EQ(row_of(ropes, i, 1, 0), at(encoded[i] < 0 ? -1 : row + 512, 128));
  }
  const auto second = static_cast<int>(operand.row_idx(0, 8));
  const auto tiles = load(tile.spec, {Box{{0, 0, second, 0}}});
  for (std::int64_t r = 0; r < kSize; ++r) {
    EXPECT_EQ(row_of(tiles, 0, 8, static_cast<std::size_t>(r)), at((2 * 8 + r) * kDim + 512, 128));
  }
}

// [P, H, S, 1] scales: consecutive tokens of a head are neighbours.
TEST_F(GpuOperand, ScaleTile) {
  constexpr std::int64_t kPages = 4, kSize = 16, kHeads = 2, kDim = 32;
  using Operand = PagedOperand<std::int8_t, 16, float>;
  const auto table = copy(std::vector<std::int32_t>{2, 0});
  const auto lengths = copy(std::vector<std::int32_t>{20});
  std::vector<float> scales(kPages * kHeads * kSize);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i) + 0.5f;
  float* device = copy(scales);
  // Tokens of a page lie behind each other for all pages of a head.
  TensorView view =
      TensorView::dense(device, DType::kFloat32, {kHeads, kPages, kSize, 1}, Device::cuda(0));
  view = view.swap(0, 1).swap(1, 2);  // [P, S, H, 1]
  const auto operand = Operand::from(
      TensorView::dense(memory_, DType::kInt8, {kPages, kSize, kHeads, kDim}, Device::cuda(0)),
      TensorView(table, {1, 2}), TensorView(lengths, {1}), view);
  const auto tile = operand.create_scale_tma_tile<16>(Context{});
  const auto loaded = load(tile.spec, {Box{{2 * 16, 1, 0, 0}}, Box{{0, 0, 0, 0}}});
  std::vector<float> got(32);
  std::memcpy(got.data(), loaded.data(), 128);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(got[i], scales[kPages * kSize + 2 * 16 + i]);
    EXPECT_EQ(got[16 + i], scales[i]);
  }
}

// Sub-pages, addresses and encoded indices in a kernel are those of the host.
TEST_F(GpuOperand, LookUpsInAKernel) {
  constexpr std::int64_t kPages = 5, kSize = 16, kHeads = 2, kDim = 16;
  using Operand = PagedOperand<bfloat16, 16>;
  const std::vector<std::int32_t> entries = {3, 1, 1 << 30, 4, 0, -1}, lengths = {40, 40};
  const TensorView pages =
      TensorView::dense(memory_, DType::kBFloat16, {kPages, kSize, kHeads, kDim}, Device::cuda(0));
  const Operand host =
      Operand::from(pages, TensorView(entries.data(), {2, 3}), TensorView(lengths.data(), {2}));
  const Operand operand =
      Operand::from(pages, TensorView(copy(entries), {2, 3}), TensorView(copy(lengths), {2}));
  const std::vector<int> encoded = {0, 17, 79, 80, -1};
  auto* rows = copy(std::vector<std::uint32_t>(48));
  auto* tma_rows = copy(std::vector<std::int32_t>(encoded.size()));
  auto* pointers = copy(std::vector<const void*>(96));
  for (int batch = 0; batch < 2; ++batch) {
    look_up<Operand, 48, 16><<<1, 1, 0, static_cast<cudaStream_t>(cuda::stream().handle())>>>(
        operand, batch, 0, copy(encoded), static_cast<int>(encoded.size()), rows, tma_rows,
        pointers);
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    cuda::synchronize();
    const auto got_rows = back<std::uint32_t>(rows, 48);
    const auto got_pointers = back<const void*>(pointers, 96);
    for (std::uint32_t t = 0; t < 48; ++t) {
      const auto b = static_cast<std::uint32_t>(batch);
      EXPECT_EQ(got_rows[t], host.row_idx(b, t)) << "batch " << batch << ", token " << t;
      EXPECT_EQ(got_pointers[t], host.block_paged_ptr<1>(b, t, 1));
      EXPECT_EQ(got_pointers[48 + t],
                host.block_paged_tile<1>(b, t, 1, RowPitchLayout{32}, 8).data);
    }
    const auto got_tma = back<std::int32_t>(tma_rows, encoded.size());
    for (std::size_t i = 0; i < encoded.size(); ++i) {
      EXPECT_EQ(got_tma[i], host.get_tma_row(encoded[i]));
    }
  }
}

}  // namespace
}  // namespace hyla::testing
