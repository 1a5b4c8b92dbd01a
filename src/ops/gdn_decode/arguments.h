// From a DecodeProblem to what the one-token kernels receive, and whether they take it.
#pragma once

#include "ops/gdn_decode/arguments.cuh"

namespace hyla::gdn {

// Null when the problem fits DecodeArguments, otherwise why not.
const char* decode_refuses(const DecodeProblem& problem, const Context& context);

struct HostArguments {
  DecodeArguments device;
  bool usual;  // Options::kUsual applies
};
HostArguments decode_arguments(const DecodeProblem& problem);

}  // namespace hyla::gdn
