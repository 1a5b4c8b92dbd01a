#include "producer.h"

#include <nanobind/nanobind.h>

#include <array>
#include <cstring>

namespace nb = nanobind;

namespace hyla::python {
namespace {

// An attribute of a loaded module; null where the module is not loaded. Never imports.
nb::object loaded(const char* module, const char* attribute) {
  PyObject* modules = PyImport_GetModuleDict();  // borrowed
  PyObject* found = PyDict_GetItemString(modules, module);
  if (found == nullptr) return {};
  return nb::getattr(nb::handle(found), attribute, nb::object());
}

const ExchangeApi* exchange_api(nb::handle type) {
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::object());
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api"))
    return nullptr;
  auto* api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api != nullptr && api->version.major != kPackMajor) api = api->older;
  return api;
}

// A subclass that overrides __torch_dispatch__ may have no memory behind it.
bool traced(nb::handle type) {
  nb::object tensor = loaded("torch", "Tensor");
  if (!tensor.is_valid() || type.is(tensor)) return false;
  const int inherits = PyObject_IsSubclass(type.ptr(), tensor.ptr());
  if (inherits <= 0) {
    PyErr_Clear();
    return false;
  }
  return !nb::getattr(type, "__torch_dispatch__", nb::none())
              .is(nb::getattr(tensor, "__torch_dispatch__", nb::none()));
}

Producer classify(PyTypeObject* type) {
  Producer result{.type = type};
  const nb::handle handle(reinterpret_cast<PyObject*>(type));
  if (traced(handle)) {
    result.source = Source::kTraced;
  } else if (const ExchangeApi* api = exchange_api(handle)) {
    result.source = Source::kExchange;
    result.api = api;
    result.gradients = nb::hasattr(handle, "requires_grad");
  } else if (nb::object array = loaded("numpy", "ndarray");
             array.is_valid() &&
             PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(array.ptr()))) {
    result.source = Source::kNumpy;
  } else if (nb::hasattr(handle, "__dlpack__") || nb::hasattr(handle, "__cuda_array_interface__")) {
    result.source = Source::kProtocol;
    result.immutable = std::strncmp(type->tp_name, "jax", 3) == 0;
  }
  return result;
}

}  // namespace

bool grad_enabled() {
  static PyObject* const ask =
      nb::module_::import_("torch").attr("is_grad_enabled").inc_ref().ptr();
  PyObject* answer = PyObject_CallNoArgs(ask);
  if (answer == nullptr) throw nb::python_error();
  const bool enabled = answer == Py_True;
  Py_DECREF(answer);
  return enabled;
}

const Producer& producer_of(PyObject* object) {
  // Guarded by the GIL. A cached type is kept alive: its address must not become another type's.
  static std::array<Producer, 16> cache;
  static std::size_t count = 0;
  PyTypeObject* type = Py_TYPE(object);
  for (std::size_t i = 0; i < count; ++i) {
    if (cache[i].type == type) return cache[i];
  }
  static thread_local Producer found;
  found = classify(type);
  if (found.source != Source::kNone && found.source != Source::kTraced && count < cache.size()) {
    Py_INCREF(type);
    cache[count] = found;
    return cache[count++];
  }
  return found;
}

}  // namespace hyla::python
