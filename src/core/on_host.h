// Whether the host may look into the tensors of a call.
#pragma once

#include <hyla/context.h>

namespace hyla::core {

inline bool on_host(const Context& context) { return context.device.kind == Device::Kind::kCpu; }

}  // namespace hyla::core
