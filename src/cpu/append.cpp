#include "cpu/append.h"

#include <algorithm>

namespace hyla::cpu {
namespace {
// Fewer numbers than this are not worth waking a thread: about 2 us.
constexpr std::int64_t kLeastNumbers = 32 << 10;
}  // namespace

void run_append(Target target, const attention::AppendProblem& p, const Context& context) {
  const AppendKernels& kernels = append_kernels(target);
  std::int64_t tokens = 0;
  for (std::int64_t row = 0; row < p.sequences.rows; ++row) tokens += p.sequences.length(row);
  if (tokens == 0) return;
  const std::int64_t numbers = std::max<std::int64_t>(1, p.heads * (p.head_dim + p.value_dim));
  const std::int64_t least = (kLeastNumbers + numbers - 1) / numbers;
  parallel_ranges(context, tokens, least,
                  [&](std::int64_t begin, std::int64_t end) { kernels.run(p, begin, end); });
}

}  // namespace hyla::cpu
