// Several tokens a row through the tensor cores, all in one block of up to 8: the state is read
// once, both dots of all tokens with it are matrix products, what the tokens do to each other is a
// small triangular system, and the update is a matrix product again.
//
// q and k in 16 bits are exact tf32 operands; a float32 state is split into two of them, so nothing
// is lost but the last bits of float32. README.md has the math and the drawing.
#pragma once

#include <utility>

#include "arch/grid_dependency.cuh"
#include "ops/gdn_mtp/block_coefficients.cuh"
#include "ops/gdn_mtp/block_state.cuh"
#include "ops/gdn_mtp/block_tokens.cuh"
#include "ops/gdn_mtp/block_update.cuh"

namespace hyla::gdn {

// q, k [.., H, 128]; v, out [.., HV, V]; state [slots, HV, V, 128] or [slots, HV, 128, V];
// grid (V / kRows, HV, B)
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32, P::kCtas)
    mtp_block(const __grid_constant__ MtpBlockArguments a) {
  using State = typename P::State;
  using Transfer = BlockTransfer<P>;
  constexpr Options O = P::kOptions;
  static_assert(O == Options::kUsual);
  __shared__ MtpBlockShared<P> shared;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(arch::uniform(threadIdx.x >> 5));
  const std::uint32_t row = blockIdx.z, head = blockIdx.y, tokens = a.tokens;
  const int warp_value = static_cast<int>(blockIdx.x) * P::kRows + warp * P::kWarpRows;
  const int value = warp_value + Transfer::first_row(lane >> 2);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  Transfer transfer(shared, warp, lane);
  // Keys, gates and values before the state: what is made of them must be ready when it comes,
  // which fills the memory's queues.
  std::uint32_t v_words[2], asked_write;
  std::int64_t read;
  const MtpCoefficients& coefficients = shared.coefficients[0];
  // Role 0 makes the coefficients, 1 and 2 hand on the keys. False: the row is padding.
  const auto prepare = [&](int role) {
    BlockGates<P> gates;
    KeyFragments<P> keys;
    std::uint32_t asked_read = 0;
    if constexpr (P::kSlotFirst) {
      asked_read = ask<O>(a.read_slots, row);
      __syncwarp();  // ptxas moves no load across
    }
    const auto load_gates = [&] {
      gates.load_if(role == 0, a, row, 0, tokens, head, lane);
      gates.load_head_if(role == 0, a, head);
    };
    if constexpr (P::kGatesFirst) {
      load_gates();
      __syncwarp();
    }
    keys.load(a, row, head, tokens, role, lane);
    if constexpr (!P::kGatesFirst) load_gates();
    load_values<P>(a, row, 0, tokens, head, warp_value, value, lane, v_words);
    __syncwarp();
    if constexpr (!P::kSlotFirst) asked_read = ask<O>(a.read_slots, row);
    asked_write = ask<O>(a.write_slots, row);
    const std::uint32_t asked_commit = ask<O>(a.commit_lengths, row);
    read = a.read_slots.present() ? static_cast<std::int32_t>(asked_read) : std::int64_t{row};
    if (is_null(a, read)) return false;
    transfer.start(a, place_in_slot<P>(a, read, head));
    if (role == 0) {
      gates.make(
          a,
          [&] {
            return multiply_keys<typename P::Io, P::kSteps>(
                [&](int which, int j) { return which == 0 ? keys.k[j] : keys.q[j]; });
          },
          tokens, commit_of(a, asked_commit), gates.asked.head_bits(), lane,
          shared.coefficients[0]);
    } else {
      keys.share(shared, role, lane);
    }
    return true;
  };
  bool works;
  if constexpr (P::kRolesApart) {
    // Each role in code of its own has fewer instructions to get through before it asks for its
    // rows. The same role of the CTAs on an SM falls to different schedulers.
    const int role = (warp + static_cast<int>(head / 2)) % P::kWarps;
    if (role == 0) {
      works = prepare(0);
    } else if (role <= KeyFragments<P>::kSharers) {
      __builtin_assume(role >= 1 && role <= KeyFragments<P>::kSharers);
      works = prepare(role);
    } else {
      works = prepare(P::kWarps - 1);
    }
  } else {
    works = prepare(warp);
  }
  if (!works) return;  // the whole head leaves
  __syncthreads();
  StepRows rows[P::kSteps];
  PackedStep<State> packed[P::kSteps];
  BlockDots<P> dots;
  const auto one_step = [&](auto step) {
    constexpr int j = decltype(step)::value;
    transfer.template wait<j>(a);
    if constexpr (P::kSame) {
      packed[j] = transfer.read_packed(j);
      dots.add(shared.keys[0], packed[j], j, lane);
    } else {
      rows[j] = transfer.read(j);
      dots.template add<sizeof(State) == 4>(shared.keys[0], rows[j], j, lane);
    }
  };
  [&]<int... j>(std::integer_sequence<int, j...>) {
    (one_step(std::integral_constant<int, j>{}), ...);
  }
  (std::make_integer_sequence<int, P::kSteps>{});
  float v[2][2];
  ValuePlace<P>::unpack(v_words, v);
  BlockSums sums;
  solve<P>(shared, coefficients, dots, v, warp, lane, sums);
  const auto put_out = [&] {
    add_tokens(coefficients, lane, sums);
    store_outputs<P>(a, row, 0, tokens, head, warp_value, value, lane, sums.o);
  };
  const std::int64_t write = write_slot<O>(a, row, asked_write, read);
  if (write < 0) {
    put_out();
    return;
  }
  // The state first, which is the most to be stored.
  State* const to = place_in_slot<P>(a, write, head);
  const BlockUpdate<typename P::Io> update(coefficients, sums, lane);
#pragma unroll
  for (int j = 0; j < P::kSteps; ++j) {
    if constexpr (P::kReadsTwice) rows[j] = transfer.read(j);
    if constexpr (P::kKeepsPacked) rows[j] = packed[j].unpack();
    update.apply(shared.turned[0][j][lane], rows[j]);
    transfer.write(a, j, rows[j], to);
  }
  transfer.finish(a, to);
  put_out();
}

}  // namespace hyla::gdn
