// The implementations of gdn.decode, best first, and the public entry points over them.
#include <hyla/backend.h>

#include "core/table.h"
#include "ops/tables.h"
#include "problem/gdn_decode.h"
#include "reference/gdn.h"

namespace hyla {
namespace {

using Problem = gdn::DecodeProblem;

constexpr core::Implementation<Problem> kTable[] = {
    {"reference", Device::Kind::kCpu, nullptr, nullptr, reference::decode},
};
constexpr std::span<const core::Implementation<Problem>> table() { return kTable; }

}  // namespace

namespace ops {
std::vector<std::string> gdn_decode_implementations() { return core::names(table()); }
}  // namespace ops

std::vector<Candidate> explain(const gdn::DecodeParams& params, const Context& context) {
  return core::explain(table(), gdn::validate(params, context), context);
}

void gdn::decode(const DecodeParams& params, const Context& context) {
  core::dispatch("gdn.decode", table(), validate(params, context), params.impl, {}, context);
}

}  // namespace hyla
