#include "cpu_times.h"

#include <algorithm>

#include "testing/limits.h"
#include "testing/threads_of.h"
#include "testing/turns.h"
#include "testing/work.h"

namespace hyla::tool {
namespace {

using testing::Limit;
using testing::Operation;
using testing::ProblemSpec;

// A call takes at least the time of its memory traffic and at least that of its arithmetic.
std::vector<Limit> limits_of(const ProblemSpec& spec) {
  const testing::Work work = testing::work_of(spec);
  const Context on = testing::on_threads_of(spec);
  // From one place to another, and little arithmetic on the way.
  if (spec.operation == Operation::kConvPrefill) return {testing::copying(work.bytes, on)};
  const bool reads = spec.operation == Operation::kAttentionDecode;
  const bool products = reads || spec.operation == Operation::kGdnPrefill ||
                        spec.operation == Operation::kAttentionPrefill;
  return {reads ? testing::reading(work.bytes, on) : testing::streaming(work.bytes, on),
          products ? testing::matrix_products(work.flops, on, spec.io)
                   : testing::multiply_adds(work.flops, on)};
}

}  // namespace

std::optional<Beside> beside(const ProblemSpec& spec, bool tiny) {
  if (tiny) return Beside{"ordinary", spec};
  Beside other{"", spec};
  other.spec.impl.clear();
  if (spec.operation == Operation::kGdnDecode && spec.state != DType::kFloat32) {
    other.name = "f32";
    other.spec.state = DType::kFloat32;
    return other;
  }
  if (spec.operation == Operation::kGdnMtp && spec.mode != testing::Mode::kAll &&
      spec.lens.empty()) {
    other.name = "decode";
    other.spec.operation = Operation::kGdnDecode;
    other.spec.mode = testing::defaults(Operation::kGdnDecode).mode;
    other.spec.t = 1;
    return other;
  }
  return std::nullopt;
}

CpuTimes cpu_times(const ProblemSpec& spec, const testing::Call& call, const std::string& impl,
                   const testing::Call* other, double seconds) {
  const std::vector<Limit> limits = limits_of(spec);
  std::vector<std::function<void()>> work = {testing::Repeat(call, impl)};
  for (const Limit& limit : limits) work.push_back(limit.run);
  if (other != nullptr) work.push_back(testing::Repeat(*other, ""));
  const testing::Turns turns = testing::time_in_turn(work, seconds);
  CpuTimes times;
  times.us = turns.median_us(0);
  times.best_us = turns.best_us(0);
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const double us = turns.median_us(1 + i) * limits[i].scale;
    if (us <= times.limit_us) continue;
    times.limit_us = us;
    times.ratio = turns.ratio(0, 1 + i) / limits[i].scale;
  }
  if (other != nullptr) {
    times.beside_us = turns.median_us(work.size() - 1);
    times.beside_ratio = turns.ratio(0, work.size() - 1);
  }
  return times;
}

}  // namespace hyla::tool
