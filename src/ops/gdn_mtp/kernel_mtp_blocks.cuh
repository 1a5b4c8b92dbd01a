// The block kernel for rows of any number of tokens and every option: the state stays in registers,
// in float32, from block to block. What two blocks need besides the state is made at once, by two
// warps each, while the keys of the next two come.
#pragma once

#include <utility>

#include "arch/grid_dependency.cuh"
#include "ops/gdn_mtp/block_coefficients.cuh"
#include "ops/gdn_mtp/block_norm.cuh"
#include "ops/gdn_mtp/block_state.cuh"
#include "ops/gdn_mtp/block_tokens.cuh"
#include "ops/gdn_mtp/block_update.cuh"

namespace hyla::gdn {

// Tokens `start` and on of a row that a block has.
struct BlockOfRow {
  std::uint32_t start, tokens;

  __device__ __forceinline__ std::uint32_t end() const { return start + tokens; }
};

// What of a row two blocks see. A block is cut where the state that is kept lies, unless it is the
// last: there the coefficients are cut instead.
struct BlockPair {
  static constexpr std::uint32_t kTokens = kMtpBlockTokens;
  static constexpr std::uint32_t kKept = ~0u;  // instead of a commit length: by a block before
  BlockOfRow first, second;                    // the second without tokens if there is none

  static __device__ __forceinline__ BlockOfRow block(std::uint32_t length, std::uint32_t commit,
                                                     std::uint32_t start) {
    const bool cut = start + kTokens < length && start <= commit && commit < start + kTokens;
    return {start, cut ? commit - start : min(kTokens, length - start)};
  }
  // The commit length as the block behind this one sees it.
  static __device__ __forceinline__ std::uint32_t behind(const BlockOfRow& block,
                                                         std::uint32_t commit) {
    return commit <= block.end() ? kKept : commit;
  }
  __device__ __forceinline__ BlockPair(std::uint32_t length, std::uint32_t commit,
                                       std::uint32_t start)
      : first(block(length, commit, start)),
        second(block(length, behind(first, commit), first.end())) {}
  __device__ __forceinline__ BlockOfRow operator[](int i) const { return i == 0 ? first : second; }
};

// q, k [.., H, 128]; v, out [.., HV, V]; state [slots, HV, V, 128] or [slots, HV, 128, V];
// grid (V / kRows, HV, B), rounded up, as clusters (V / kRows) with the fused norm
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32, P::kCtas)
    mtp_blocks(const __grid_constant__ MtpBlockArguments a) {
  using State = typename P::State;
  using Transfer = BlockTransfer<P>;
  constexpr Options O = P::kOptions;
  static_assert(O == Options::kAny && P::kWarps == 2 * P::kBlocks);
  static_assert(!P::kKeysInState ||
                sizeof(typename MtpBlockShared<P>::Keys) <= sizeof(MtpBlockShared<P>::state));
  __shared__ MtpBlockShared<P> shared;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  const int warp = static_cast<int>(arch::uniform(threadIdx.x >> 5));
  const std::uint32_t row = blockIdx.z, head = blockIdx.y;
  const int warp_value = static_cast<int>(blockIdx.x) * P::kRows + warp * P::kWarpRows;
  // What is made of it is made again where it is needed: registers are scarce.
  const auto lane_again = [&] { return arch::opaque(lane); };
  const auto value_of = [&](int this_lane) {
    return warp_value + Transfer::first_row(this_lane >> 2);
  };
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  Transfer transfer(shared, warp, lane);
  // The slot comes with the tokens' place.
  AskedRow asked_row;
  asked_row.ask(a, row);
  BlockSpan span;
  find_tokens<O>(a, row, asked_row, span);
  const std::int64_t read = read_slot(a, row, asked_row.slot);
  if (is_null(a, read)) return;
  // In uniform registers, as the compiler knows only so.
  const std::uint32_t begin = arch::uniform(span.begin), length = arch::uniform(span.length);
  std::uint32_t commit = arch::uniform(span.commit);
  const auto keys_of = [&](int pair) {
    if constexpr (P::kKeysInState) {
      return pair == 0 ? shared.keys : reinterpret_cast<BlockKeys<P>*>(shared.state);
    } else {
      return pair == 0 ? shared.keys : shared.other_keys;
    }
  };
  // Warps 2 i and 2 i + 1 prepare block i of a pair.
  const int prepared = warp >> 1;
  const bool makes = (warp & 1) == 0;
  BlockPair blocks(length, commit, 0);
  BlockGates<P> gates;
  std::uint32_t v_words[2];
  const auto load_gates = [&](const BlockPair& of) {
    const BlockOfRow own = of[prepared];
    gates.load_if(makes, a, row, begin + own.start, own.tokens, head, lane);
  };
  const auto load_block_values = [&](const BlockOfRow& block) {
    const int same = lane_again();
    load_values<P>(a, row, begin + block.start, block.tokens, head, warp_value, value_of(same),
                   same, v_words);
  };
  const auto start_block_keys = [&](const BlockOfRow& block, BlockKeys<P>& to) {
    start_keys<P>(a, row, head, begin + block.start, block.tokens, thread, to);
  };
  // Keys, gates and values before the state, as in rows of one block.
  KeyChunks<P> first_keys;
  const auto load_first_gates = [&] {
    load_gates(blocks);
    gates.load_head_if(makes, a, head);
  };
  if constexpr (P::kGatesFirst) {
    load_first_gates();
    __syncwarp();  // ptxas moves no load across
  }
  first_keys.load(a, row, head, begin, blocks.first.tokens, thread);
  if constexpr (!P::kGatesFirst) load_first_gates();
  if (blocks.first.end() < length) start_block_keys(blocks.second, shared.keys[1]);
  load_block_values(blocks.first);
  __syncwarp();
  transfer.start(a, place_in_slot<P>(a, read, head));
  // It is kept where it takes no registers.
  if (thread == 0) shared.write = write_slot<O>(a, row, 0, read);
  first_keys.share(thread, shared.keys[0]);

  StepRows rows[P::kSteps];
  for (unsigned count = 0;; ++count) {
    const bool loaded = count > 0;  // the state, to registers
    const int i = static_cast<int>(count & 1), pair = static_cast<int>(count >> 1 & 1);
    const BlockOfRow block = blocks[i];
    const BlockKeys<P>& keys = keys_of(pair)[i];
    const MtpCoefficients& coefficients = shared.coefficients[i];
    if (i == 0) {
      if (loaded) {
        arch::wait_copies<0>();
      } else {
        arch::wait_copies<Transfer::kCopyGroups>();
      }
      __syncthreads();
      const BlockOfRow own = blocks[prepared];
      const BlockKeys<P>& own_keys = keys_of(pair)[prepared];
      const std::uint32_t own_commit =
          prepared == 0 ? commit : BlockPair::behind(blocks.first, commit);
      if (prepared == 0 || blocks.first.end() < length) {
        if (makes) {
          // Later blocks find it where it takes no registers.
          HeadBits& of_head = shared.head[prepared];
          const HeadBits head_bits = loaded ? of_head : gates.asked.head_bits();
          if (!loaded && lane == 0) of_head = head_bits;
          gates.make(
              a,
              [&] {
                return multiply_keys<typename P::Io, P::kSteps>(
                    [&](int which, int j) { return key_words<P>(own_keys, which, j, lane); });
              },
              own.tokens, min(own.tokens, own_commit - own.start), head_bits, lane,
              shared.coefficients[prepared]);
        } else {
#pragma unroll
          for (int j = 0; j < P::kSteps; ++j) {
            shared.turned[prepared][j][lane] = turned(key_words<P>(own_keys, 0, j, lane));
          }
        }
      }
    }
    BlockDots<P> dots;
    const auto one_step = [&](auto step) {
      constexpr int j = decltype(step)::value;
      if (!loaded) {
        transfer.template wait<j>(a);
        rows[j] = transfer.read(j);
      }
      dots.template add<true>(keys, rows[j], j, lane);
    };
    [&]<int... j>(std::integer_sequence<int, j...>) {
      (one_step(std::integral_constant<int, j>{}), ...);
    }
    (std::make_integer_sequence<int, P::kSteps>{});
    float v[2][2];
    ValuePlace<P>::unpack(v_words, v);
    const bool last = block.end() == length, reaches = commit <= block.end();
    commit = BlockPair::behind(block, commit);
    // What comes next is asked for.
    if (i == 0) {
      __syncthreads();  // the coefficients are there, and all have the state
      if (!last) {
        load_block_values(blocks.second);
        if (blocks.second.end() < length) {
          const BlockPair next(length, BlockPair::behind(blocks.second, commit),
                               blocks.second.end());
          BlockKeys<P>* const to = keys_of(pair ^ 1);
          start_block_keys(next.first, to[0]);
          if (next.first.end() < length) start_block_keys(next.second, to[1]);
          load_gates(next);
        }
      }
    } else if (!last) {
      blocks = BlockPair(length, commit, block.end());
      load_block_values(blocks.first);
    }
    BlockSums sums;
    solve<P>(shared, coefficients, dots, v, warp, lane, sums);
    add_tokens(coefficients, lane, sums);
    const int same = lane_again();
    if (a.norm.present()) {
      normalise<P>(a, shared, row, begin + block.start, static_cast<int>(block.tokens),
                   static_cast<int>(head), value_of(same), owns_rows<P>(a, warp_value), warp, same,
                   sums);
    }
    store_outputs<P>(a, row, begin + block.start, block.tokens, head, warp_value, value_of(same),
                     same, sums.o);
    const std::int64_t write = shared.write;
    const bool keeps = reaches && write >= 0;
    State* const to = place_in_slot<P>(a, write, head);
    const BlockUpdate<typename P::Io> update(coefficients, sums, lane);
#pragma unroll
    for (int j = 0; j < P::kSteps; ++j) {
      update.apply(shared.turned[i][j][lane], rows[j]);
      if (keeps) transfer.write(a, j, rows[j], to);
    }
    if (keeps) transfer.finish(a, to);
    if (last) break;
  }
}

}  // namespace hyla::gdn
