// The functions of the module: positional arguments only, in the order of `names`.
#pragma once

#include <Python.h>

#include <span>

namespace hyla::python {

struct Operation {
  const char* name;
  PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t);
  std::span<const char* const> names;
};

std::span<const Operation> gdn_operations();
std::span<const Operation> layer_operations();
std::span<const Operation> attention_operations();

}  // namespace hyla::python
