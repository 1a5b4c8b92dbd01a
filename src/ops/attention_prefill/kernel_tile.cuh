// The prefill kernel: persistent, one CTA an SM. The first warpgroup loads, the others compute; see
// README.md for the schedule and the barriers.
#pragma once

#include "arch/grid_dependency.cuh"
#include "ops/attention_prefill/consumer.cuh"
#include "ops/attention_prefill/own_item.cuh"
#include "ops/attention_prefill/producer.cuh"

namespace hyla::attention {

// byte_loader.cuh has that of Loading::kBytes.
template <Loading kLoading, class Shape, class Element>
struct LoaderOf;
template <class Shape, class Element>
struct LoaderOf<Loading::kBoxes, Shape, Element> {
  template <class Arguments>
  using type = BoxLoader<Shape, Arguments>;
};
template <class Shape, class Element>
struct LoaderOf<Loading::kWidened, Shape, Element> {
  template <class Arguments>
  using type = BoxLoader<Shape, Arguments, true>;
};
template <class Shape, class Element>
struct LoaderOf<Loading::kRows, Shape, Element> {
  template <class Arguments>
  using type = RowLoader<Shape, Arguments>;
};
template <class Shape, class Element, class Keys, class Values, Loading kLoading>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attend_tiles(const __grid_constant__ TileArguments<Keys, Values> a) {
  using Arguments = TileArguments<Keys, Values>;
  using Loader = typename LoaderOf<kLoading, Shape, Element>::template type<Arguments>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<TileShared<Shape>*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < Shape::kSlots; ++i) {
      arch::init(shared.key_ring.full[i], Loader::kArrivals);
      arch::init(shared.key_ring.empty[i], Shape::kConsumers);
      arch::init(shared.value_ring.full[i], Loader::kArrivals);
      arch::init(shared.value_ring.empty[i], Shape::kConsumers);
    }
    arch::init(shared.queries_full, 1);
    arch::init(shared.queries_empty, Shape::kConsumers + Loader::kWarps - 1);
    if constexpr (requires { Loader::init(shared); }) Loader::init(shared);
    arch::fence_mbarrier_init();
  }
  if (a.own_schedule && thread >> 5 == 1) {
    arch::wait_for_previous_grid();
    write_own_item(a, shared, static_cast<int>(blockIdx.x));
  }
  // Rows that no query fills stay zero: a group that does not divide the tile.
  for (int i = thread; i < Shape::kQueryBytes / 16; i += Shape::kThreads) {
    reinterpret_cast<uint4*>(shared.queries)[i] = uint4{};
  }
  arch::fence_async_proxy();
  __syncthreads();
  if (a.most_pieces > 0) arch::let_next_grid_start();  // the kernel that adds up the pieces
  arch::wait_for_previous_grid();

  const int group = static_cast<int>(arch::uniform(threadIdx.x >> 7));
  if (group == 0) {
    arch::give_registers<Shape::kProducerRegisters>();
    produce<Shape, Loader>(a, shared, static_cast<int>(arch::uniform(threadIdx.x >> 5)),
                           thread & 31);
  } else {
    arch::take_registers<Shape::kConsumerRegisters>();
    consume<Shape, Element, kLoading>(a, shared, group - 1);
  }
}

}  // namespace hyla::attention
