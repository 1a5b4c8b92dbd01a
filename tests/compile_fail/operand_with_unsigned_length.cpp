// expect: KV operand: .*int64_t cache_length.*signed
// lines: 1
#include "complete.h"

struct Operand : Complete {
  std::uint64_t cache_length(std::int64_t) const { return 4; }
};

void call(const hyla::attention::RunParams& params, const Operand& k, const Operand& v) {
  hyla::attention::reference::run(params, k, v, 1);
}
