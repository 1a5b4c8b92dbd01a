#include "call.h"

#include <nanobind/nanobind.h>

#include <cstdlib>

#include "threads.h"

namespace nb = nanobind;

namespace hyla::python {

PyObject* explain_token() {
  static PyObject* token = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  return token;
}

Call::Call(const char* operation, std::span<const char* const> names, PyObject* const* arguments)
    : operation_(operation), names_(names), arguments_(arguments) {
  pool_ = put_threads(context_);
  rename("context.stream", "stream");
  rename("context.device", "device");
  rename("context.threads", "threads");
}

Call::~Call() {
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
  for (PyObject* object : held_) Py_DECREF(object);
  if (allocated_) Py_XDECREF(result_);
  std::free(scratch_);
}

void Call::rename(std::string_view from, std::string_view to) {
  if (rename_count_ < renames_.size()) renames_[rename_count_++] = {from, to};
}

void Call::hold(PyObject* object) { held_.push_back(object); }

bool Call::flag(std::size_t i) const {
  if (arguments_[i] == Py_True) return true;
  if (arguments_[i] == Py_False) return false;
  fail_type(names_[i], "True or False", arguments_[i]);
}

std::int64_t Call::integer(std::size_t i) const {
  if (PyLong_CheckExact(arguments_[i])) {
    const long long value = PyLong_AsLongLong(arguments_[i]);
    if (value != -1 || !PyErr_Occurred()) return value;
    PyErr_Clear();
  }
  if (PyBool_Check(arguments_[i]) || !PyIndex_Check(arguments_[i])) {
    fail_type(names_[i], "an int", arguments_[i]);
  }
  nb::object value = nb::steal(PyNumber_Index(arguments_[i]));
  if (!value.is_valid()) {
    PyErr_Clear();
    fail_type(names_[i], "an int", arguments_[i]);
  }
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow != 0) throw InvalidArgument(names_[i], "an int of 64 bits", "a larger one");
  return result;
}

double Call::number(std::size_t i) const {
  PyObject* object = arguments_[i];
  if (PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
  const bool numeric = PyFloat_Check(object) || (PyLong_Check(object) && !PyBool_Check(object)) ||
                       PyObject_HasAttrString(object, "__float__");
  if (!numeric || PyBool_Check(object)) fail_type(names_[i], "a number", object);
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    fail_type(names_[i], "a number", object);
  }
  return value;
}

std::optional<double> Call::optional_number(std::size_t i) const {
  if (!given(i)) return std::nullopt;
  return number(i);
}

const char* Call::text(std::size_t i) const {
  if (!given(i)) return nullptr;
  if (!PyUnicode_Check(arguments_[i])) fail_type(names_[i], "a str", arguments_[i]);
  const char* value = PyUnicode_AsUTF8(arguments_[i]);
  if (value == nullptr) throw nb::python_error();
  return value;
}

int Call::choice(std::size_t i, std::initializer_list<Choice> choices) const {
  if (!PyUnicode_Check(arguments_[i])) fail_type(names_[i], "a str", arguments_[i]);
  std::string known;
  for (const Choice& choice : choices) {
    if (PyUnicode_CompareWithASCIIString(arguments_[i], choice.text) == 0) return choice.value;
  }
  for (const Choice& choice : choices) {
    known.append(known.empty() ? "'" : " or '").append(choice.text).append("'");
  }
  throw InvalidArgument(names_[i], known, std::string("'").append(text(i)).append("'"));
}

void Call::set_implementation(std::size_t i) {
  if (!given(i)) return;
  if (arguments_[i] == explain_token()) {
    explains_ = true;
  } else if (const Repeat* repeat = nullptr; nb::try_cast(nb::handle(arguments_[i]), repeat)) {
    repeats_ = repeat->count;
  } else {
    implementation_ = text(i);
  }
}

PyObject* Call::result() {
  if (!allocated_) {
    if (result_ == nullptr) Py_RETURN_NONE;
    Py_INCREF(result_);
    return result_;
  }
  PyObject* made = result_;
  result_ = nullptr;
  if (framework_.source == Source::kExchange) return made;
  // numpy memory that becomes, for example, a jax array
  nb::object finish = nb::module_::import_("hyla._frameworks").attr("finish");
  return finish(nb::handle(first_), nb::steal(made)).release().ptr();
}

}  // namespace hyla::python
