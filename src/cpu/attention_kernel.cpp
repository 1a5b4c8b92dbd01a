#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/attention.h"

#undef HYLA_TARGET_SOURCE
#define HYLA_TARGET_SOURCE "cpu/attention_kernel.cpp"
#include "cpu/foreach_target.h"
// After it, in this order.
#include "cpu/attention_amx.h"
#include "cpu/attention_amx_block.h"
#include "cpu/attention_block.h"
#include "cpu/attention_stream.h"

HYLA_TARGET_BEGIN
namespace hyla::cpu::HYLA_TARGET_NAMESPACE {

// bfloat16 queries meet keys and values rounded to bfloat16, as on matrix units; others float32.
bool takes_pairs(const attention::RunProblem& p) {
  return HYLA_TARGET_HAS_PAIRS != 0 && p.queries.q.dtype == DType::kBFloat16;
}

constexpr int kWide = kLanes < 8 ? kLanes : 8;

template <class Op, int kColumns>
void stream_tile(const attention::RunProblem& p, const AttentionTile& tile,
                 const AttentionTile* next, float* scratch, float* partials) {
  if constexpr (Op::kSummed == 2 && kColumns == 8) {
    using Near = Stream<Op, kColumns, true>;
    if (drops_crowds() && Near::takes_as_they_lie(p)) {
      return Near(p, tile, next, scratch).run(partials);
    }
  }
  Stream<Op, kColumns>(p, tile, next, scratch).run(partials);
}

template <class Op>
void run_tile_of(const attention::RunProblem& p, const AttentionTile& tile,
                 const AttentionTile* next, float* scratch, float* partials) {
  if (!tile.streamed()) return Block<Op>(p, tile, scratch).run(partials);
  if (tile.count <= 4 || kLanes == 4) return stream_tile<Op, 4>(p, tile, next, scratch, partials);
  if (tile.count <= 8 || kLanes == 8)
    return stream_tile<Op, kWide>(p, tile, next, scratch, partials);
  return stream_tile<Op, kLanes>(p, tile, next, scratch, partials);
}

template <class Op>
std::int64_t scratch_of(const attention::Queries& q, std::int64_t heads) {
  return std::max({Block<Op>::scratch_floats(q), Stream<Op, kWide>::scratch_floats(q, heads),
                   Stream<Op, kLanes>::scratch_floats(q, heads)});
}

std::int64_t columns_of_block(const attention::RunProblem& p, std::int64_t columns) {
  if (columns < kLongRow) return kBlockColumns;
#if HYLA_TARGET_HAS_PAIRS
  if (takes_pairs(p)) return most_columns<Pairs>();
#endif
  static_cast<void>(p);
  return most_columns<Singles>();
}

std::int64_t attention_scratch(const attention::RunProblem& p, std::int64_t heads) {
#if HYLA_TARGET_HAS_PAIRS
  if (takes_pairs(p)) return scratch_of<Pairs>(p.queries, heads);
#endif
  return scratch_of<Singles>(p.queries, heads);
}

void run_tile(const attention::RunProblem& p, const AttentionTile& tile, const AttentionTile* next,
              float* scratch, float* partials) {
#if HYLA_TARGET_HAS_PAIRS
  if (takes_pairs(p)) return run_tile_of<Pairs>(p, tile, next, scratch, partials);
#endif
  run_tile_of<Singles>(p, tile, next, scratch, partials);
}

void join_tiles(const attention::RunProblem& p, const AttentionTile& tile, float* partials) {
  join_parts(p, tile, partials);
}

extern const AttentionKernels kAttentionKernels;
const AttentionKernels kAttentionKernels = {columns_of_block, attention_scratch, run_tile,
                                            join_tiles};

#if HYLA_TARGET_HAS_PAIRS
std::int64_t columns_of_amx_block(const attention::RunProblem&, std::int64_t columns) {
  return AmxBlock::columns_of_block(columns);
}

std::int64_t amx_attention_scratch(const attention::RunProblem& p, std::int64_t heads) {
  const attention::Queries& q = p.queries;
  return std::max({AmxBlock::scratch_floats(q), AmxStream<16>::scratch_floats(q, heads),
                   scratch_of<Pairs>(q, heads)});
}

bool streams_by_amx(const attention::RunProblem& p, const AttentionTile& tile,
                    const AttentionTile* next, float* scratch, float* partials) {
  using Few = AmxStream<8>;
  using Many = AmxStream<16>;
  if (!Few::takes(p)) return false;
  if (tile.count <= 8) {
    const amx::Scope tiles(Few::kTiles);
    return Few(p, tile, next, scratch).run(partials);
  }
  const amx::Scope tiles(Many::kTiles);
  return Many(p, tile, next, scratch).run(partials);
}

void run_amx_tile(const attention::RunProblem& p, const AttentionTile& tile,
                  const AttentionTile* next, float* scratch, float* partials) {
  if (tile.streamed() && streams_by_amx(p, tile, next, scratch, partials)) return;
  if (tile.streamed()) return run_tile_of<Pairs>(p, tile, next, scratch, partials);
  const amx::Scope tiles;
  AmxBlock(p, tile, scratch).run(partials);
}

extern const AttentionKernels kAmxAttentionKernels;
const AttentionKernels kAmxAttentionKernels = {columns_of_amx_block, amx_attention_scratch,
                                               run_amx_tile, join_tiles};
#endif

}  // namespace hyla::cpu::HYLA_TARGET_NAMESPACE
HYLA_TARGET_END

#if HYLA_TARGET_ONCE
namespace hyla::cpu {
const AttentionKernels& attention_kernels(Target target) {
#if defined(__x86_64__)
  if (target == Target::kAmx) return avx512_bf16::kAmxAttentionKernels;
#endif
  return HYLA_TARGET_SELECT(kAttentionKernels);
}
}  // namespace hyla::cpu
#endif
