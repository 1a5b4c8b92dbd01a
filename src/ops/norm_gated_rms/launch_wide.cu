#include "device/alignment.h"
#include "device/launch.h"
#include "ops/norm_gated_rms/kernel_wide.cuh"
#include "ops/norm_gated_rms/launch_gated_rms.h"

namespace hyla::norm {
namespace {

struct Launch {
  void (*kernel)(WideArguments);
  int vectors;  // of a CTA
};

template <class Io, int Lanes, int Chunks>
Launch launch_of() {
  using P = WidePolicy<Io, Lanes, Chunks>;
  return {gated_rms_wide<P>, P::kVectors};
}

template <class Io>
Launch select(std::int64_t chunks) {
  if (chunks <= 8) return launch_of<Io, 8, 1>();
  if (chunks <= 16) return launch_of<Io, 16, 1>();
  return chunks <= 32 ? launch_of<Io, 32, 1>() : launch_of<Io, 32, 2>();
}

constexpr std::int64_t kMaxChunks = 64;

std::int64_t chunk_of(const GatedRmsProblem& p) {
  return 16 / static_cast<std::int64_t>(size_of(p.x.dtype));
}

Launch select(const GatedRmsProblem& p) {
  const std::int64_t chunks = p.D / chunk_of(p);
  if (p.x.dtype == DType::kFloat32) return select<float>(chunks);
  return p.x.dtype == DType::kBFloat16 ? select<__nv_bfloat16>(chunks) : select<__half>(chunks);
}

}  // namespace

const char* wide_refuses(const GatedRmsProblem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  if (p.gate.z.dtype != p.x.dtype || p.out.dtype != p.x.dtype) {
    return "takes x, z and out of one dtype";
  }
  const std::int64_t chunk = chunk_of(p);
  if (p.D % chunk != 0 || p.D / chunk > kMaxChunks) return "takes D of 1 to 64 16-byte chunks";
  if (!device::aligned(p.x, chunk) || !device::aligned(p.gate.z, chunk) ||
      !device::aligned(p.out, chunk)) {
    return "vectors that are not aligned to 16 bytes";
  }
  constexpr std::int64_t kMaxVectors = (std::int64_t{1} << 31) - kWideThreads;
  return p.heads > 0 && p.tokens > kMaxVectors / p.heads ? "2^31 vectors or more" : nullptr;
}

void launch_wide(const GatedRmsProblem& p, const Workspace&, const Context& context) {
  const std::int64_t vectors = p.tokens * p.heads;
  if (vectors == 0 || p.D == 0) return;
  const Launch launch = select(p);
  // Four weights of two bytes are not 16.
  const bool whole = p.x.dtype != DType::kFloat32 || p.gate.weight.dtype == DType::kFloat32;
  const WideArguments arguments{
      p, whole && p.gate.weight.stride == 1 && device::aligned(p.gate.weight.data, 16)};
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((vectors + launch.vectors - 1) / launch.vectors));
  shape.block = dim3(kWideThreads);
  device::launch(launch.kernel, shape, arguments, context);
}

}  // namespace hyla::norm
