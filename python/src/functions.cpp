#include "functions.h"

#include <array>
#include <cstring>

#include "operations.h"

namespace nb = nanobind;

namespace hyla::python {
namespace {

constexpr std::size_t kMaxArguments = 48;

struct Shortcut {
  PyObject* function = nullptr;  // kept alive: never deleted
  vectorcallfunc original = nullptr;
  PyObject* (*operation)(PyObject*, PyObject* const*, Py_ssize_t) = nullptr;
  std::size_t count = 0, positional = 0, required = 0;
  std::array<PyObject*, kMaxArguments> names{}, defaults{};  // names are interned
};

std::array<Shortcut, 16> shortcuts;
std::size_t shortcut_count = 0;

// Keywords come mostly in the order of the signature, so the search goes on where it last hit.
bool place(const Shortcut& shortcut, PyObject* name, std::size_t& cursor) {
  for (std::size_t step = 0; step < shortcut.count; ++step) {
    if (shortcut.names[cursor] == name) return true;
    if (++cursor == shortcut.count) cursor = 0;
  }
  return false;
}

PyObject* call(PyObject* function, PyObject* const* arguments, std::size_t flags,
               PyObject* keywords) {
  const Shortcut* shortcut = shortcuts.data();
  while (shortcut->function != function) ++shortcut;
  const auto given = static_cast<std::size_t>(PyVectorcall_NARGS(flags));
  std::array<PyObject*, kMaxArguments> values;
  bool usual = given <= shortcut->positional;
  if (usual) {
    std::memcpy(values.data(), arguments, given * sizeof(PyObject*));
    std::memcpy(values.data() + given, shortcut->defaults.data() + given,
                (shortcut->count - given) * sizeof(PyObject*));
    const std::size_t named =
        keywords == nullptr ? 0 : static_cast<std::size_t>(PyTuple_GET_SIZE(keywords));
    std::size_t cursor = given;
    for (std::size_t i = 0; usual && i < named; ++i) {
      usual = place(*shortcut, PyTuple_GET_ITEM(keywords, static_cast<Py_ssize_t>(i)), cursor) &&
              cursor >= given;
      if (usual) values[cursor] = arguments[given + i];
    }
    for (std::size_t i = given; usual && i < shortcut->required; ++i) usual = values[i] != nullptr;
  }
  // What is not an ordinary call gets its words from the interpreter.
  if (!usual) return shortcut->original(function, arguments, flags, keywords);
  return shortcut->operation(nullptr, values.data(), static_cast<Py_ssize_t>(shortcut->count));
}

const Operation* find(const char* name) {
  for (std::span<const Operation> list :
       {gdn_operations(), layer_operations(), attention_operations()}) {
    for (const Operation& operation : list) {
      if (std::strcmp(operation.name, name) == 0) return &operation;
    }
  }
  return nullptr;
}

}  // namespace

void shorten(nb::object function, const char* name) {
  const Operation* operation = find(name);
  if (operation == nullptr || !PyFunction_Check(function.ptr()) ||
      shortcut_count == shortcuts.size() || operation->names.size() > kMaxArguments) {
    throw nb::value_error("hyla: no such operation");
  }
  Shortcut shortcut;
  shortcut.operation = operation->function;
  shortcut.count = operation->names.size();
  nb::object code = function.attr("__code__");
  shortcut.positional = nb::cast<std::size_t>(code.attr("co_argcount"));
  const auto keyword_only = nb::cast<std::size_t>(code.attr("co_kwonlyargcount"));
  nb::tuple names = code.attr("co_varnames");
  nb::object defaults = function.attr("__defaults__");
  nb::object keyword_defaults = function.attr("__kwdefaults__");
  const std::size_t with_default = defaults.is_none() ? 0 : nb::len(defaults);
  if (shortcut.positional + keyword_only != shortcut.count) {
    throw nb::value_error("hyla: the function has other arguments than the operation");
  }
  for (std::size_t i = 0; i < shortcut.count; ++i) {
    nb::object argument = names[i];
    if (std::strcmp(nb::borrow<nb::str>(argument).c_str(), operation->names[i]) != 0) {
      throw nb::value_error("hyla: the function has other arguments than the operation");
    }
    shortcut.names[i] = argument.inc_ref().ptr();
    nb::object value;
    if (i >= shortcut.positional) {
      if (!keyword_defaults.is_none() &&
          PyDict_Contains(keyword_defaults.ptr(), argument.ptr()) == 1) {
        value = keyword_defaults[argument];
      }
    } else if (i >= shortcut.positional - with_default) {
      value = defaults[i - (shortcut.positional - with_default)];
    }
    shortcut.defaults[i] = value.is_valid() ? value.inc_ref().ptr() : nullptr;
    if (!value.is_valid()) shortcut.required = i + 1;
  }
  shortcut.function = function.inc_ref().ptr();
  auto* object = reinterpret_cast<PyFunctionObject*>(function.ptr());
  shortcut.original = object->vectorcall;
  shortcuts[shortcut_count++] = shortcut;
#if PY_VERSION_HEX >= 0x030C0000  // before, the interpreter does not look at a function's own way
  PyFunction_SetVectorcall(object, call);
#else
  (void)call;
#endif
}

}  // namespace hyla::python
