#include "functions.h"

#include <array>
#include <cstring>
#include <span>
#include <string_view>

#include "operations.h"

namespace nb = nanobind;

namespace hyla::python {
namespace {

constexpr std::size_t kMaxArguments = 48;

// Where an argument of the operation comes from: a parameter of the function, or an attribute of it.
struct Origin {
  std::size_t parameter = 0;
  PyObject* attribute = nullptr;  // interned
};

struct Shortcut {
  PyObject* function = nullptr;  // kept alive: never deleted
  vectorcallfunc original = nullptr;
  const Operation* operation = nullptr;
  std::size_t count = 0, positional = 0, required = 0;
  std::array<PyObject*, kMaxArguments> names{}, defaults{};  // names are interned
  // For functions that take a cache apart; others have none of these.
  std::size_t cache = 0;
  std::array<PyTypeObject*, 3> cache_types{};  // kept alive; null: no more
  std::array<Origin, kMaxArguments> origins{};
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

// The operation's arguments out of the function's. Attributes are owned until the call is over.
PyObject* call_apart(const Shortcut& shortcut, PyObject* const* values) {
  const std::size_t count = shortcut.operation->names.size();
  std::array<PyObject*, kMaxArguments> arguments, owned;
  std::size_t owned_count = 0;
  bool good = true;
  for (std::size_t i = 0; good && i < count; ++i) {
    const Origin& origin = shortcut.origins[i];
    arguments[i] = values[origin.parameter];
    if (origin.attribute == nullptr) continue;
    arguments[i] = owned[owned_count] = PyObject_GetAttr(arguments[i], origin.attribute);
    good = arguments[i] != nullptr;
    owned_count += good ? 1 : 0;
  }
  PyObject* result = nullptr;
  if (good) {
    result =
        shortcut.operation->function(nullptr, arguments.data(), static_cast<Py_ssize_t>(count));
  }
  while (owned_count > 0) Py_DECREF(owned[--owned_count]);
  return result;
}

bool is_cache(const Shortcut& shortcut, PyObject* object) {
  const PyTypeObject* type = Py_TYPE(object);
  for (const PyTypeObject* known : shortcut.cache_types) {
    if (type == known) return true;
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
  const bool apart = shortcut->cache_types[0] != nullptr;
  if (usual && apart) usual = is_cache(*shortcut, values[shortcut->cache]);
  // What is not an ordinary call gets its words from the interpreter.
  if (!usual) return shortcut->original(function, arguments, flags, keywords);
  if (apart) return call_apart(*shortcut, values.data());
  return shortcut->operation->function(nullptr, values.data(),
                                       static_cast<Py_ssize_t>(shortcut->count));
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

constexpr const char* kOthers = "hyla: the function has other arguments than the operation";

std::size_t parameter(const Shortcut& shortcut, std::string_view name) {
  for (std::size_t i = 0; i < shortcut.count; ++i) {
    if (name == nb::borrow<nb::str>(shortcut.names[i]).c_str()) return i;
  }
  throw nb::value_error(kOthers);
}

void read_signature(nb::object function, Shortcut& shortcut) {
  nb::object code = function.attr("__code__");
  shortcut.positional = nb::cast<std::size_t>(code.attr("co_argcount"));
  shortcut.count = shortcut.positional + nb::cast<std::size_t>(code.attr("co_kwonlyargcount"));
  if (shortcut.count > kMaxArguments) throw nb::value_error(kOthers);
  nb::tuple names = code.attr("co_varnames");
  nb::object defaults = function.attr("__defaults__");
  nb::object keyword_defaults = function.attr("__kwdefaults__");
  const std::size_t with_default = defaults.is_none() ? 0 : nb::len(defaults);
  for (std::size_t i = 0; i < shortcut.count; ++i) {
    nb::object argument = names[i];
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
}

// "cache.k" is the attribute k of the parameter cache.
void take_apart(Shortcut& shortcut, nb::tuple types) {
  if (nb::len(types) > shortcut.cache_types.size()) throw nb::value_error(kOthers);
  shortcut.cache = parameter(shortcut, "cache");
  for (std::size_t i = 0; i < shortcut.operation->names.size(); ++i) {
    const std::string_view name = shortcut.operation->names[i];
    constexpr std::string_view kPrefix = "cache.";
    Origin& origin = shortcut.origins[i];
    if (name.starts_with(kPrefix)) {
      origin = {shortcut.cache, PyUnicode_InternFromString(name.data() + kPrefix.size())};
    } else {
      origin.parameter = parameter(shortcut, name);
    }
  }
  for (std::size_t i = 0; i < nb::len(types); ++i) {
    nb::object type = types[i];
    shortcut.cache_types[i] = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());
  }
}

}  // namespace

void shorten(nb::object function, const char* name, nb::tuple cache_types) {
  const Operation* operation = find(name);
  if (operation == nullptr || !PyFunction_Check(function.ptr()) ||
      shortcut_count == shortcuts.size() || operation->names.size() > kMaxArguments) {
    throw nb::value_error("hyla: no such operation");
  }
  Shortcut shortcut;
  shortcut.operation = operation;
  read_signature(function, shortcut);
  if (nb::len(cache_types) == 0) {
    bool same = shortcut.count == operation->names.size();
    for (std::size_t i = 0; same && i < shortcut.count; ++i) {
      same = parameter(shortcut, operation->names[i]) == i;
    }
    if (!same) throw nb::value_error(kOthers);
  } else {
    take_apart(shortcut, cache_types);
  }
  shortcut.function = function.inc_ref().ptr();
  auto* object = reinterpret_cast<PyFunctionObject*>(function.ptr());
  shortcut.original = object->vectorcall;
  shortcuts[shortcut_count++] = shortcut;
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(object, call);
#else  // the interpreter itself does not look at it before 3.12, partial objects and the like do
  object->vectorcall = call;
#endif
}

}  // namespace hyla::python
