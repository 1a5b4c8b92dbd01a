#include "errors.h"

#include <hyla/error.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <new>

namespace nb = nanobind;

namespace hyla::python {
namespace {

nb::object error_class(const char* name) { return nb::module_::import_("hyla.errors").attr(name); }

void raise(nb::object error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

void raise_invalid(const InvalidArgument& error, std::span<const Rename> renames) {
  std::string argument = error.argument();
  for (const Rename& rename : renames) {
    if (argument == rename.from) argument = std::string(rename.to);
  }
  raise(error_class("InvalidArgument")(argument, error.expected(), error.got()));
}

void raise_unsupported(const Unsupported& error) {
  nb::list candidates;
  for (const Candidate& c : error.candidates()) {
    candidates.append(nb::make_tuple(c.implementation, c.supported ? "yes" : "no", c.reason));
  }
  raise(error_class("Unsupported")(std::string(error.what()), candidates));
}

}  // namespace

void fail_type(std::string_view argument, std::string_view expected, PyObject* got) {
  const std::string text = std::string(argument) + ": expected " + std::string(expected) +
                           ", got " + (got == Py_None ? "None" : Py_TYPE(got)->tp_name);
  PyErr_SetString(PyExc_TypeError, text.c_str());
  throw nb::python_error();
}

void fail_from_python(std::string_view argument, std::string_view expected) {
  nb::python_error cause;
  const std::string text = nb::str(nb::handle(cause.value())).c_str();
  throw InvalidArgument(std::string(argument), std::string(expected),
                        text.empty() ? "an object that refuses" : text);
}

void set_python_error(std::span<const Rename> renames) noexcept {
  try {
    try {
      throw;
    } catch (nb::python_error& error) {
      error.restore();
    } catch (const InvalidArgument& error) {
      raise_invalid(error, renames);
    } catch (const Unsupported& error) {
      raise_unsupported(error);
    } catch (const WorkspaceTooSmall& error) {
      raise(error_class("WorkspaceTooSmall")(error.required(), error.given()));
    } catch (const DeviceError& error) {
      raise(error_class("DeviceError")(std::string(error.what()), error.cuda_code()));
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  } catch (nb::python_error& error) {  // the translation itself failed
    error.restore();
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "hyla: an unknown error");
  }
}

}  // namespace hyla::python
