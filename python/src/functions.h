// Python functions with a short way into C++.
#pragma once

#include <nanobind/nanobind.h>

namespace hyla::python {

// `function` is one of the package's: its parameters are the arguments of the operation `name`, and
// its body passes them on. Calls then skip the body, where the interpreter allows it (Python 3.12);
// its code stays what tracers, signatures and documentation see.
void shorten(nanobind::object function, const char* name);

}  // namespace hyla::python
