#include "ops/causal_conv1d/launch_conv.h"

#include <algorithm>

#include "device/alignment.h"
#include "device/launch.h"
#include "ops/causal_conv1d/kernel_conv.cuh"

namespace hyla::conv {
namespace {

using Kernel = void (*)(ConvArguments);

constexpr std::int64_t kMaxGrid = 65535;  // of y and z
// CTAs that fill an H200 a few times over: enough to even out rows of different lengths.
constexpr std::int64_t kTargetCtas = 132 * 16 * 4;

template <class Io, int W>
Kernel select(bool wide) {
  return wide ? convolve<Io, W, device::kPerChunk<Io>> : convolve<Io, W, 1>;
}

template <class Io>
Kernel select(std::int64_t W, bool wide) {
  if (W == 2) return select<Io, 2>(wide);
  return W == 3 ? select<Io, 3>(wide) : select<Io, 4>(wide);
}

Kernel select(const Problem& p, bool wide) {
  if (p.x.dtype == DType::kFloat32) return select<float>(p.W, wide);
  if (p.x.dtype == DType::kBFloat16) return select<__nv_bfloat16>(p.W, wide);
  return select<__half>(p.W, wide);
}

bool side_by_side(const core::TokenView& view) {
  core::TokenView tokens = view;
  tokens.head_stride = 0;  // channels are stepped through in whole accesses
  return view.head_stride == 1 &&
         device::aligned(tokens, 16 / static_cast<std::int64_t>(size_of(view.dtype)));
}

// Wide accesses to the windows of `chunk` neighbouring channels.
Windows window_access(const Problem& p, std::int64_t chunk) {
  const WindowPool& pool = p.state;
  const auto size = static_cast<std::int64_t>(size_of(pool.dtype));
  if (!pool.present() || !device::aligned(pool.data, 16) || pool.slot_stride * size % 16 != 0) {
    return Windows::kScattered;
  }
  const bool whole_rows = pool.columns == p.W - 1;  // so that a window begins where a row does
  if (pool.column_stride == 1 && pool.channel_stride == p.W - 1 && whole_rows &&
      chunk * (p.W - 1) * size % 16 == 0) {
    return Windows::kDense;
  }
  if (pool.channel_stride == 1 && pool.column_stride * size % 16 == 0 && chunk * size % 16 == 0) {
    return Windows::kChannels;
  }
  return Windows::kScattered;
}

void run(ConvArguments arguments, const Context& context) {
  const Problem& p = arguments.p;
  if (p.sequences.rows == 0 || p.C == 0) return;
  const std::int64_t chunk = 16 / static_cast<std::int64_t>(size_of(p.x.dtype));
  const bool wide = p.C % chunk == 0 && side_by_side(p.x) && side_by_side(p.out);
  const std::int64_t per_cta = kThreads * (wide ? chunk : 1);
  const std::int64_t blocks = (p.C + per_cta - 1) / per_cta;
  const std::int64_t rows = std::min(p.sequences.rows, kMaxGrid);
  const std::int64_t runs = (p.sequences.tokens + kRun - 1) / kRun;
  const std::int64_t wanted = (kTargetCtas + blocks * rows - 1) / (blocks * rows);
  arguments.windows = wide ? window_access(p, chunk) : Windows::kScattered;
  device::LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(blocks),
           static_cast<unsigned>(std::clamp<std::int64_t>(std::min(runs, wanted), 1, kMaxGrid)),
           static_cast<unsigned>(rows));
  shape.block = dim3(kThreads);
  device::launch(select(p, wide), shape, arguments, context);
}

}  // namespace

const char* conv_refuses(const Problem& p, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  const bool rolling = p.state.present() && !p.window_offsets.present();
  return rolling && p.state.columns > kMaxColumns ? "rolling rows of more than 16 columns"
                                                  : nullptr;
}

void launch_conv(const PrefillProblem& p, const Workspace&, const Context& context) {
  run({p,
       p.sequences.tokens,
       p.has_initial_state,
       p.checkpoint_offsets,
       p.checkpoint_slots,
       {},
       false,
       Windows::kScattered},
      context);
}

void launch_conv(const UpdateProblem& p, const Workspace&, const Context& context) {
  run({p, p.sequences.tokens, {}, {}, {}, p.commit_lengths, true, Windows::kScattered}, context);
}

}  // namespace hyla::conv
