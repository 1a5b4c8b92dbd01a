// Which tokens and states a row of a batch has, for the kernels over steps of 16 tokens.
#pragma once

#include <type_traits>

#include "ops/gdn_prefill/step_arguments.cuh"

namespace hyla::gdn {

// Usual: the indices that there are are plain ones, so that slots have 32 bits.
template <bool Usual>
struct StepTask {
  using Slot = std::conditional_t<Usual, std::int32_t, std::int64_t>;
  int begin, length;
  Slot read, write;  // kNullSlot for none
  bool from_pool;
};

template <class Slot>
__device__ __forceinline__ Slot checked_slot(const StepArguments& a, Slot slot,
                                             std::int64_t limit) {
  const bool inside = slot >= a.first_slot && slot >= 0 && slot < limit;
  return inside ? slot : static_cast<Slot>(core::kNullSlot);
}

template <bool Usual>
__device__ __forceinline__ StepTask<Usual> find_step_task(const StepArguments& a, int row) {
  using Slot = typename StepTask<Usual>::Slot;
  StepTask<Usual> task;
  std::int64_t begin, length;
  if constexpr (Usual) {
    const PlainIndices& x = a.indices;
    const auto i = static_cast<std::int64_t>(row);
    const std::int32_t* offsets = x.cu_seqlens + i * x.cu_stride;
    const int first = offsets[0], end = offsets[x.cu_stride];
    const int read = x.read[i * x.read_stride], write = x.write[i * x.write_stride];
    const bool from_pool = x.starts[i * x.starts_stride] != 0;
    begin = first, length = static_cast<std::int64_t>(end) - first;
    task.read = x.has_read ? read : row;
    task.write = x.has_write ? write : task.read;
    task.from_pool = a.initial.present() && (!x.has_starts || from_pool);
  } else {
    const PrefillProblem& p = a.p;
    begin = p.sequences.begin(row), length = p.sequences.length(row);
    task.read = p.slots.raw_read(row), task.write = p.slots.raw_write(row);
    task.from_pool = p.starts_from_pool(row);
  }
  begin = max(std::int64_t{0}, min(begin, a.tokens));
  task.begin = static_cast<int>(begin);
  task.length = static_cast<int>(max(std::int64_t{0}, min(length, a.tokens - begin)));
  if (a.checks_read) task.read = checked_slot(a, task.read, a.read_limit);
  task.write = a.final.present() ? checked_slot(a, task.write, a.write_limit)
                                 : static_cast<Slot>(core::kNullSlot);
  return task;
}

}  // namespace hyla::gdn
