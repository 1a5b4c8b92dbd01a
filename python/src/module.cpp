// hyla._core: the operations as functions of positional arguments, and what the machine has.
#include <hyla/backend.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "arguments.h"
#include "functions.h"
#include "operations.h"
#include "threads.h"

namespace nb = nanobind;

namespace hyla::python {

PyObject* explanation(const std::vector<Candidate>& candidates) {
  nb::list result;
  for (const Candidate& c : candidates) {
    result.append(nb::make_tuple(c.implementation, c.supported ? "yes" : "no", c.reason));
  }
  return result.release().ptr();
}

PyObject* redirect(const Call& call) {
  try {
    nb::object target = nb::module_::import_("hyla._torch").attr("redirect");
    nb::list arguments;
    for (std::size_t i = 0; i < call.names().size(); ++i) {
      arguments.append(nb::handle(call.argument(i)));
    }
    return target(call.operation(), nb::tuple(arguments)).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
}

bool count_is(const char* operation, std::size_t wanted, Py_ssize_t given) {
  if (static_cast<Py_ssize_t>(wanted) == given) return true;
  PyErr_Format(PyExc_TypeError, "%s: expected %zu arguments, got %zd", operation, wanted, given);
  return false;
}

namespace {

void add_operations(nb::module_& module, std::span<const Operation> operations, nb::dict& names) {
  // CPython keeps the address of a method definition.
  static std::vector<PyMethodDef> definitions = [] {
    std::vector<PyMethodDef> room;
    room.reserve(16);
    return room;
  }();
  for (const Operation& operation : operations) {
    definitions.push_back(
        {operation.name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(operation.function)),
         METH_FASTCALL, nullptr});
    nb::object name = nb::str("hyla._core");
    PyObject* function = PyCFunction_NewEx(&definitions.back(), nullptr, name.ptr());
    if (function == nullptr) throw nb::python_error();
    module.attr(operation.name) = nb::steal(function);
    nb::list list;
    for (const char* argument : operation.names) list.append(argument);
    names[operation.name] = nb::tuple(list);
  }
}

nb::list device_list() {
  nb::list result;
  for (const DeviceInfo& info : devices()) {
    nb::dict entry;
    entry["device"] = name_of(info.device);
    entry["name"] = info.name;
    entry["compute_capability"] = info.compute_capability;
    entry["multiprocessors"] = info.multiprocessors;
    entry["memory_bytes"] = info.memory_bytes;
    result.append(entry);
  }
  return result;
}

// Nanoseconds that the exchange API alone takes for these tensors and the stream of the first.
double measure_exchange(nb::tuple tensors, std::int64_t count) {
  const ExchangeApi* api = producer_of(tensors[0].ptr()).api;
  if (api == nullptr || api->tensor_from_object == nullptr) {
    throw nb::type_error("tensors: expected tensors with DLPack's C exchange API");
  }
  DLTensor tensor{};
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < count; ++i) {
    for (Py_ssize_t t = 0; t < PyTuple_GET_SIZE(tensors.ptr()); ++t) {
      if (api->tensor_from_object(PyTuple_GET_ITEM(tensors.ptr(), t), &tensor) != 0) {
        throw nb::python_error();
      }
    }
    void* stream = nullptr;
    if (tensor.device.device_type == kDLCUDA &&
        api->current_stream(kDLCUDA, tensor.device.device_id, &stream) != 0) {
      throw nb::python_error();
    }
  }
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  return time.count() / static_cast<double>(count);
}

std::size_t prefill_workspace(std::int64_t max_sequences, std::int64_t max_tokens,
                              std::int64_t query_heads, std::int64_t key_heads,
                              std::int64_t value_heads, std::int64_t key_dim,
                              std::int64_t value_dim, int io, int cuda_device) {
  return gdn::prefill_workspace_bytes(
      {max_sequences, max_tokens, query_heads, key_heads, value_heads, key_dim, value_dim,
       static_cast<DType>(io), cuda_device < 0 ? Device::cpu() : Device::cuda(cuda_device)});
}

std::size_t run_workspace(std::int64_t max_sequences, std::int64_t max_tokens,
                          std::int64_t max_kv_length, std::int64_t query_heads,
                          std::int64_t kv_heads, std::int64_t head_dim, std::int64_t value_dim,
                          int io, int cuda_device, int cache) {
  return attention::run_workspace_bytes(
      {max_sequences, max_tokens, max_kv_length, query_heads, kv_heads, head_dim, value_dim,
       static_cast<DType>(io), cuda_device < 0 ? Device::cpu() : Device::cuda(cuda_device),
       static_cast<DType>(cache)});
}

}  // namespace
}  // namespace hyla::python

NB_MODULE(_core, m) {
  using namespace hyla::python;
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const hyla::Error&) {
      set_python_error({});
    }
  });
  nb::dict names;
  add_operations(m, gdn_operations(), names);
  add_operations(m, layer_operations(), names);
  add_operations(m, attention_operations(), names);
  m.attr("arguments") = names;
  m.attr("EXPLAIN") = nb::borrow(explain_token());
  nb::class_<Repeat>(m, "Repeat").def(nb::init<std::int64_t>());
  m.attr("package_version") = HYLA_PYTHON_VERSION;
  m.def("measure_exchange", &measure_exchange);
  m.def("shorten", &shorten);
  m.def("version", &hyla::version);
  m.def("built_with_cuda", &hyla::built_with_cuda);
  m.def("devices", &device_list);
  m.def("operations", &hyla::operations);
  m.def("implementations",
        [](const std::string& operation) { return hyla::implementations(operation); });
  m.def("prefill_workspace_bytes", &prefill_workspace);
  m.def("run_workspace_bytes", &run_workspace);
  m.def("set_num_threads", &set_threads);
  m.def("get_num_threads", &thread_count);
  m.def("has_thread_pool", &has_pool);
  m.attr("most_pool_threads") = hyla::ThreadPool::kMostThreads;
  nb::dict dtypes;
  for (int i = 1; i <= static_cast<int>(hyla::DType::kBool); ++i) {
    dtypes[hyla::name_of(static_cast<hyla::DType>(i))] = i;
  }
  m.attr("dtypes") = dtypes;
}
