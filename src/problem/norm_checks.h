#pragma once

#include <hyla/norm.h>

#include <string_view>

namespace hyla::norm {

void check_activation(std::string_view argument, Activation gate);

}  // namespace hyla::norm
