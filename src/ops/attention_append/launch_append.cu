#include "ops/attention_append/launch_append.h"

#include <algorithm>

#include "device/launch.h"
#include "ops/attention_append/kernel_heads.cuh"
#include "ops/attention_append/rows_arguments.h"

namespace hyla::attention {
namespace {

using appending::RowsArguments, appending::Scales;

std::int64_t tiles(const AppendProblem& problem) {
  const std::int64_t tokens = problem.k.shape[0];
  return tokens / appending::kTileTokens + std::min(problem.sequences.rows, tokens);
}

// Halves of different shapes go one after the other. `ctas`: wanted for a multiprocessor; `warps`:
// of a half.
template <class Kernel, class Warps>
void launch(Kernel kernel, int ctas, const AppendProblem& problem, const Context& context,
            Warps warps) {
  RowsArguments arguments = appending::rows_arguments(
      problem, std::int64_t{device::multiprocessors(context)} * ctas * appending::kRowWarps);
  device::LaunchShape shape;
  shape.block = dim3(32 * appending::kRowWarps);
  const auto start = [&] {
    const int count = warps(arguments.halves[0]), of_cta = appending::kRowWarps;
    shape.grid = dim3(static_cast<unsigned>((count + of_cta - 1) / of_cta));
    device::launch(kernel, shape, arguments, context);
  };
  start();
  if (arguments.paired || problem.value_dim == 0) return;
  arguments.halves[0] = arguments.halves[1];
  start();
}

// False where it is not for the kernels for few tokens.
template <class Kernel>
bool launch_few(Kernel kernel, const AppendProblem& problem, const Context& context) {
  if (problem.k.shape[0] > appending::kFewTokens) return false;
  const RowsArguments arguments = appending::rows_arguments(problem, 1);
  const int threads = appending::few_threads(problem, arguments);
  if (threads == 0) return false;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(arguments.tokens));
  shape.block = dim3(static_cast<unsigned>(threads));
  device::launch(kernel, shape, arguments, context);
  return true;
}

template <class In, class Out, Scales kScales>
bool convert_few(const AppendProblem& problem, const Context& context) {
  using appending::FewSlot, appending::FewTarget;
  return problem.slots.present()
             ? launch_few(appending::convert_few<In, Out, kScales, FewSlot>, problem, context)
             : launch_few(appending::convert_few<In, Out, kScales, FewTarget>, problem, context);
}

void launch_copying(const AppendProblem& problem, const Context& context) {
  if (launch_few(problem.slots.present() ? appending::copy_few<appending::FewSlot>
                                         : appending::copy_few<appending::FewTarget>,
                 problem, context)) {
    return;
  }
  constexpr int kShare = 32 * appending::kLines;
  launch(appending::copy_rows, 1, problem, context,
         [](const appending::Half& of) { return (of.total + kShare - 1) / kShare; });
}

template <class In, class Out, bool kTurned, Scales kScales, int kHeads = 2>
void launch_conversion(const AppendProblem& problem, const Context& context) {
  const int tokens = static_cast<int>(problem.k.shape[0]);
  constexpr int kCtas =
      appending::kConvertCtas<Out, kTurned, kScales> * appending::kConvertRounds<kTurned>;
  launch(appending::convert_rows<In, Out, kTurned, kScales, kHeads>, kCtas, problem, context,
         [&](const appending::Half& of) {
           return (tokens + of.tokens_of_warp - 1) / of.tokens_of_warp;
         });
}

// False where it is not for the kernel for whole heads.
template <class In, class Out>
bool launch_whole(const AppendProblem& problem, const Context& context) {
  if (!appending::has_whole_heads(problem)) return false;
  const std::int64_t pairs = problem.heads / 2;
  const std::int64_t warps =
      std::int64_t{device::multiprocessors(context)} * appending::kWholeCtas * appending::kRowWarps;
  const RowsArguments arguments =
      appending::rows_arguments(problem, std::max<std::int64_t>(warps / pairs, 1));
  const int of_cta = appending::kRowWarps * arguments.halves[0].tokens_of_warp;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>((arguments.tokens + of_cta - 1) / of_cta),
                    static_cast<unsigned>(pairs));
  shape.block = dim3(32 * appending::kRowWarps);
  if (problem.head_dim == 256) {
    device::launch(appending::convert_whole<In, Out, 16>, shape, arguments, context);
  } else {
    device::launch(appending::convert_whole<In, Out, 8>, shape, arguments, context);
  }
  return true;
}

template <class In, class Out, Scales kScales>
void launch_unturned(const AppendProblem& problem, const Context& context) {
  if (problem.heads == 1) {
    launch_conversion<In, Out, false, kScales, 1>(problem, context);
  } else {
    launch_conversion<In, Out, false, kScales>(problem, context);
  }
}

template <class In, class Out>
void launch_quantising(const AppendProblem& problem, const Context& context) {
  const CacheView& cache = problem.cache;
  if (problem.given_scales || !cache.quantised()) {
    if (convert_few<In, Out, Scales::kGiven>(problem, context)) return;
    if (problem.cos.present()) {
      launch_conversion<In, Out, true, Scales::kGiven>(problem, context);
    } else {
      launch_unturned<In, Out, Scales::kGiven>(problem, context);
    }
    return;
  }
  if (convert_few<In, Out, Scales::kAny>(problem, context)) return;
  if (!appending::one_scale_a_head(cache.k_scales) ||
      (problem.value_dim > 0 && !appending::one_scale_a_head(cache.v_scales))) {
    launch_conversion<In, Out, true, Scales::kAny>(problem, context);
  } else if (problem.cos.present()) {
    if (launch_whole<In, Out>(problem, context)) return;
    launch_conversion<In, Out, true, Scales::kHead>(problem, context);
  } else {
    launch_unturned<In, Out, Scales::kHead>(problem, context);
  }
}

template <class In>
void launch_converting(const AppendProblem& problem, const Context& context) {
  switch (problem.cache.k.dtype) {
    case DType::kFloat8E4M3:
      return launch_quantising<In, __nv_fp8_e4m3>(problem, context);
    case DType::kInt8:
      return launch_quantising<In, std::int8_t>(problem, context);
    default:
      if (convert_few<In, In, Scales::kAny>(problem, context)) return;
      return launch_conversion<In, In, true, Scales::kAny>(problem, context);
  }
}

}  // namespace

const char* append_refuses(const AppendProblem& problem, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  return tiles(problem) > INT32_MAX ? "more than 2^35 tokens" : nullptr;
}

const char* append_rows_refuses(const AppendProblem& problem, const Context& context) {
  if (const char* reason = append_refuses(problem, context)) return reason;
  return appending::rows_refuses(problem);
}

void launch_append(const AppendProblem& problem, const Workspace&, const Context& context) {
  const std::int64_t count = tiles(problem);
  if (count == 0) return;
  device::LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(count));
  shape.block = dim3(appending::kThreads);
  device::launch(appending::append_heads, shape, appending::Arguments(problem), context);
}

void launch_append_rows(const AppendProblem& problem, const Workspace&, const Context& context) {
  if (problem.k.shape[0] == 0 || problem.sequences.rows == 0) return;
  if (appending::as_is(problem)) {
    launch_copying(problem, context);
  } else if (problem.k.dtype == DType::kBFloat16) {
    launch_converting<__nv_bfloat16>(problem, context);
  } else {
    launch_converting<__half>(problem, context);
  }
}

}  // namespace hyla::attention
