#include "ops/gdn_rows/launch_rows.h"

#include <algorithm>

#include "device/launch.h"
#include "ops/gdn_rows/kernel_rows.cuh"

namespace hyla::gdn {
namespace {

constexpr std::int64_t kMaxGridZ = 65535;

template <bool Norm>
auto kernel_for(std::int64_t K) {
  if (K <= 64) return rows<2, Norm>;
  return K <= 128 ? rows<4, Norm> : rows<8, Norm>;
}

}  // namespace

void launch_rows(const MtpProblem& problem, const Context& context) {
  if (problem.sequences.rows == 0) return;
  const MtpArguments arguments{problem, problem.sequences.tokens};
  const auto ctas = static_cast<unsigned>((problem.V + kRowsPerCta - 1) / kRowsPerCta);
  device::LaunchShape shape;
  shape.grid = dim3(ctas, static_cast<unsigned>(problem.heads),
                    static_cast<unsigned>(std::min(problem.sequences.rows, kMaxGridZ)));
  shape.block = dim3(kRowsWarps * 32);
  const bool norm = problem.norm.present();
  if (norm) shape.cluster = ctas;
  device::launch(norm ? kernel_for<true>(problem.K) : kernel_for<false>(problem.K), shape,
                 arguments, context);
}

const char* rows_refuses(const MtpProblem& problem, const Context& context) {
  if (const char* reason = device::refuses_device(context)) return reason;
  return problem.heads > 65535 ? "more than 65535 heads" : nullptr;
}

}  // namespace hyla::gdn
