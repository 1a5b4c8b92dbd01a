// Several tokens a row, few states [.., K, V] in bfloat16: as mtp_block, but the warps of a CTA
// split the lines, too. So every warp waits for its own pieces only, stores them as it got them,
// and needs no keys but those of its lines; what crosses the warps are sums.
#pragma once

#include <type_traits>

#include "arch/grid_dependency.cuh"
#include "ops/gdn_mtp/block_lines.cuh"
#include "ops/gdn_mtp/block_tokens.cuh"

namespace hyla::gdn {

// q, k [.., H, 128]; v, out [.., HV, V]; state [slots, HV, 128, V]; grid (V / 64, HV, B)
template <class P>
__global__ void __launch_bounds__(P::kWarps * 32, P::kCtas)
    mtp_lines(const __grid_constant__ MtpBlockArguments a) {
  constexpr Options O = P::kOptions;
  static_assert(O == Options::kUsual);
  __shared__ LinesShared shared;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(arch::uniform(threadIdx.x >> 5));
  const std::uint32_t row = blockIdx.z, head = blockIdx.y, tokens = a.tokens;
  const int warp_value = static_cast<int>(blockIdx.x) * P::kRows + warp * P::kWarpRows;
  const int value = warp_value + (lane >> 2);
  arch::wait_for_previous_grid();
  arch::let_next_grid_start();
  WarpLines lines(shared, warp, lane);
  std::uint32_t v_words[2], asked_write, asked_commit = 0;
  std::int64_t read;
  OwnKeys<P> keys;
  BlockGates<P> gates;
  // In the order of mtp_block. False: the row is padding.
  const auto ask_all = [&](auto makes) {
    constexpr bool kMakes = decltype(makes)::value;
    std::uint32_t asked_read = 0;
    if constexpr (P::kSlotFirst) {
      asked_read = ask<O>(a.read_slots, row);
      __syncwarp();  // ptxas moves no load across
    }
    if constexpr (kMakes) {
      gates.load_if(true, a, row, 0, tokens, head, lane);
      gates.load_head_if(true, a, head);
      __syncwarp();
    }
    keys.load(a, row, head, tokens, lines.part(), lane);
    load_values<P>(a, row, 0, tokens, head, warp_value, value, lane, v_words);
    __syncwarp();
    if constexpr (!P::kSlotFirst) asked_read = ask<O>(a.read_slots, row);
    asked_write = ask<O>(a.write_slots, row);
    if constexpr (kMakes) asked_commit = ask<O>(a.commit_lengths, row);
    read = a.read_slots.present() ? static_cast<std::int32_t>(asked_read) : std::int64_t{row};
    if (is_null(a, read)) return false;
    lines.start(a, place_in_slot<P>(a, read, head));
    return true;
  };
  // One warp makes the coefficients and asks for what it needs in code of its own; of the CTAs on
  // an SM it falls to different schedulers.
  const bool makes = warp == static_cast<int>(head / 2) % P::kWarps;
  if (!(makes ? ask_all(std::true_type{}) : ask_all(std::false_type{}))) return;
  // Behind a branch: ptxas would wait for the keys before it asks for the state.
  KeyProducts own;
  if (makes) {
    own = keys.multiply(lines.side());
  } else {
    send_products(shared.products, keys.multiply(lines.side()), warp, lane);
  }
  __syncthreads();
  if (makes) {
    gates.make(
        a, [&] { return receive_products(shared.products, own, warp, lane); }, tokens,
        commit_of(a, asked_commit), gates.asked.head_bits(), lane, shared.coefficients);
  }
  const uint4 turned_keys[] = {turned(keys.k[0]), turned(keys.k[1])};
  __syncthreads();  // the coefficients; the state is still on its way
  lines.wait();
  lines.make_dots(keys.k, keys.q);
  lines.read();
  lines.send_dots();
  lines.sync_side();
  float k_dots[2][2], q_dots[2][2], v[2][2];
  lines.receive_k(k_dots);
  ValuePlace<P>::unpack(v_words, v);
  BlockSums sums;
  solve(shared.coefficients, k_dots, v, lane, sums);
  const std::int64_t write = write_slot<O>(a, row, asked_write, read);
  if (write >= 0) lines.share(sums);
  lines.receive_q(q_dots);
  begin_outputs(shared.coefficients, q_dots, lane, sums);
  add_tokens(shared.coefficients, lane, sums);
  if (write >= 0) {
    lines.sync_side();
    lines.update(a, turned_keys, place_in_slot<P>(a, write, head));
  }
  store_outputs<P>(a, row, 0, tokens, head, warp_value, value, lane, sums.o);
}

}  // namespace hyla::gdn
