// C++ exceptions as the Python classes of hyla/errors.py.
#pragma once

#include <Python.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace hyla::python {

// How the C++ interface and the Python interface call the same argument.
struct Rename {
  std::string_view from;
  std::string_view to;
};

// Throws nb::python_error with TypeError: "argument: expected ..., got int".
[[noreturn]] void fail_type(std::string_view argument, std::string_view expected, PyObject* got);

// The Python error that is set becomes InvalidArgument about `argument`, with its text.
[[noreturn]] void fail_from_python(std::string_view argument, std::string_view expected);

// Inside a catch block: sets the Python error for the exception in flight.
void set_python_error(std::span<const Rename> renames) noexcept;

}  // namespace hyla::python
