#include "cpu/merge.h"

#include <algorithm>

namespace hyla::cpu {

void run_merge(Target target, const attention::MergeProblem& p, const Context& context) {
  const std::int64_t rows = p.tokens * p.heads;
  if (rows == 0) return;
  // Fewer elements than this are not worth waking a thread.
  constexpr std::int64_t kLeastWork = 16 << 10;
  const std::int64_t least =
      std::max<std::int64_t>(1, kLeastWork / std::max<std::int64_t>(1, p.dim));
  const MergeKernels& kernels = merge_kernels(target);
  parallel_ranges(context, rows, least, [&](std::int64_t begin, std::int64_t end) {
    kernels.run(p, {begin, end});
  });
}

}  // namespace hyla::cpu
