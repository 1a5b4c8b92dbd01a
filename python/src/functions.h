// Python functions with a short way into C++.
#pragma once

#include <nanobind/nanobind.h>

namespace hyla::python {

// `function` is one of the package's: its parameters are the arguments of the operation `name`, and
// its body passes them on. Calls then skip the body, where the interpreter allows it (Python 3.12);
// its code stays what tracers, signatures and documentation see. With `cache_types` the function has
// a parameter `cache` of one of these types, whose attributes are arguments of the operation.
void shorten(nanobind::object function, const char* name, nanobind::tuple cache_types);

}  // namespace hyla::python
