#include "ops/attention_merge/launch_merge.h"

#include <algorithm>

#include "device/alignment.h"
#include "device/launch.h"
#include "ops/attention_merge/kernel_any.cuh"
#include "ops/attention_merge/kernel_wide.cuh"

namespace hyla::attention {
namespace {

struct Launch {
  void (*kernel)(MergeProblem) = nullptr;
  int rows = 0;  // of a CTA
};

template <class In, class Out, int Lanes, int Chunks>
Launch launch_of() {
  using P = MergePolicy<In, Out, Lanes, Chunks>;
  return {merge_wide<P>, P::kRows};
}

constexpr std::int64_t kMaxChunks = 128;

template <class In, class Out>
Launch select(std::int64_t chunks) {
  if (chunks <= 8) return launch_of<In, Out, 8, 1>();
  if (chunks <= 16) return launch_of<In, Out, 16, 1>();
  if (chunks <= 32) return launch_of<In, Out, 32, 1>();
  return chunks <= 64 ? launch_of<In, Out, 32, 2>() : launch_of<In, Out, 32, 4>();
}

std::int64_t chunk_of(const MergeProblem& p) {
  return 16 / static_cast<std::int64_t>(size_of(p.a.dtype));
}

Launch select(const MergeProblem& p) {
  const std::int64_t chunks = p.dim / chunk_of(p);
  const DType in = p.a.dtype, out = p.out.dtype;
  if (in == DType::kFloat32) {
    if (out == DType::kBFloat16) return select<float, __nv_bfloat16>(chunks);
    return out == DType::kFloat16 ? select<float, __half>(chunks) : select<float, float>(chunks);
  }
  return in == DType::kBFloat16 ? select<__nv_bfloat16, __nv_bfloat16>(chunks)
                                : select<__half, __half>(chunks);
}

}  // namespace

const char* merge_wide_refuses(const MergeProblem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (p.out.dtype != p.a.dtype && p.a.dtype != DType::kFloat32) {
    return "takes out of the dtype of a and b, or these in float32";
  }
  const std::int64_t chunk = chunk_of(p);
  if (p.dim % chunk != 0 || p.dim / chunk > kMaxChunks)
    return "takes DV of 1 to 128 16-byte chunks";
  if (!device::aligned(p.a, chunk) || !device::aligned(p.b, chunk) ||
      !device::aligned(p.out, chunk)) {
    return "rows that are not aligned to 16 bytes";
  }
  constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - kMergeThreads;
  return p.heads > 0 && p.tokens > kMaxRows / p.heads ? "2^31 rows or more" : nullptr;
}

void launch_merge_wide(const MergeProblem& p, const Workspace&, const Context& context) {
  const std::int64_t rows = p.tokens * p.heads;
  if (rows == 0) return;
  const Launch launch = select(p);
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((rows + launch.rows - 1) / launch.rows));
  shape.block = dim3(kMergeThreads);
  device::launch(launch.kernel, shape, p, context);
}

const char* merge_any_refuses(const MergeProblem&, const Context& context) {
  return device::refuses_device(context);
}

void launch_merge_any(const MergeProblem& p, const Workspace&, const Context& context) {
  const std::int64_t rows = p.tokens * p.heads;
  if (rows == 0) return;
  constexpr std::int64_t kMaxCtas = 1 << 20;
  device::LaunchShape shape;
  const std::int64_t ctas = (rows + kMergeWarps - 1) / kMergeWarps;
  shape.grid = dim3(static_cast<unsigned>(std::min(kMaxCtas, ctas)));
  shape.block = dim3(kMergeWarps * 32);
  device::launch(merge_any, shape, p, context);
}

}  // namespace hyla::attention
