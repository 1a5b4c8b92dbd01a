// Python objects as TensorViews, without a copy.
#include <hyla/dlpack.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <string>

#include "call.h"

namespace nb = nanobind;

namespace hyla::python {
namespace {

constexpr const char* kTensor = "a tensor (torch, numpy, jax, cupy or any DLPack object)";

DLDevice dl_device(Device device) {
  DLDevice result;
  result.device_type = device.kind == Device::Kind::kCpu ? kDLCPU : kDLCUDA;
  result.device_id = device.index;
  return result;
}

// Native formats of the buffer protocol; numpy names float16 "e".
DType dtype_of_format(const char* format, Py_ssize_t size) {
  if (format == nullptr) return DType::kUInt8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;  // little-endian machines only
  if (*format == '\0' || format[1] != '\0') return DType::kNone;
  switch (*format) {
    case 'f':
      return DType::kFloat32;
    case 'e':
      return DType::kFloat16;
    case '?':
      return DType::kBool;
    case 'b':
      return DType::kInt8;
    case 'B':
      return DType::kUInt8;
    case 'i':
    case 'l':
    case 'q':
      return size == 4 ? DType::kInt32 : DType::kInt64;
    case 'I':
    case 'L':
      return size == 4 ? DType::kUInt32 : DType::kNone;
    default:
      return DType::kNone;
  }
}

// What hyla::from_dlpack does, for the tensors that calls are made of; it gets all others, and the
// errors.
void fill(const DLTensor& tensor, const char* name, TensorView& view) {
  constexpr auto key = [](unsigned code, unsigned bits) { return code << 8 | bits; };
  switch (key(tensor.dtype.code, tensor.dtype.bits)) {
    case key(4, 16):
      view.dtype = DType::kBFloat16;
      break;
    case key(2, 32):
      view.dtype = DType::kFloat32;
      break;
    case key(2, 16):
      view.dtype = DType::kFloat16;
      break;
    case key(0, 32):
      view.dtype = DType::kInt32;
      break;
    case key(0, 64):
      view.dtype = DType::kInt64;
      break;
    default:
      view = from_dlpack(tensor, name);
      return;
  }
  const bool usual = tensor.dtype.lanes == 1 && tensor.ndim >= 0 &&
                     tensor.ndim <= TensorView::kMaxRank && tensor.strides != nullptr &&
                     (tensor.device.device_type == kDLCPU || tensor.device.device_type == kDLCUDA);
  if (!usual) {
    view = from_dlpack(tensor, name);
    return;
  }
  view.device =
      tensor.device.device_type == kDLCPU ? Device::cpu() : Device::cuda(tensor.device.device_id);
  view.rank = tensor.ndim;
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = tensor.shape[d];
    view.strides[d] = tensor.strides[d];
  }
  if (tensor.data != nullptr) view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
}

[[noreturn]] void fail(const char* name, std::string expected, std::string got) {
  throw InvalidArgument(name, std::move(expected), std::move(got));
}

// A capsule's tensor. One whose fields are all zero stands for none in C, and for nothing here.
TensorView described_as(const DLTensor& tensor, Device announced, const char* name) {
  const TensorView view = from_dlpack(tensor, name);
  if (!view.present()) fail(name, "a tensor", "a DLPack capsule that describes none");
  if (view.device != announced) {
    fail(name, "a tensor on " + name_of(announced) + ", as its __dlpack_device__ says",
         "one on " + name_of(view.device));
  }
  return view;
}

[[noreturn]] void fail_read_only(const char* name, const char* what) {
  fail(name, "a tensor that can be written, because it is updated in place", what);
}

}  // namespace

void Call::tensor(std::size_t i, Access access, TensorView& view) {
  PyObject* object = arguments_[i];
  const char* name = names_[i];
  const Producer& producer = producer_of(object);
  switch (producer.source) {
    case Source::kExchange:
      exchange(name, object, producer, view);
      return;
    case Source::kNumpy:
      settle(object, producer, Device::cpu());
      view = numpy(name, object, access);
      return;
    case Source::kProtocol:
      view = protocol(name, object, producer, access);
      return;
    case Source::kTraced:
      throw Traced();
    case Source::kNone:
      break;
  }
  fail_type(name, kTensor, object);
}

// Asked once a call: parameters of a model require gradients, and serve under torch.no_grad().
void Call::refuse_gradient(const char* name, PyObject* object) {
  if (!gradients_.has_value()) gradients_ = grad_enabled();
  if (!*gradients_) return;
  static PyObject* const attribute = PyUnicode_InternFromString("requires_grad");
  nb::object required = nb::steal(PyObject_GetAttr(object, attribute));
  if (!required.is_valid()) throw nb::python_error();
  if (required.ptr() != Py_True) return;
  fail(name,
       "a tensor that needs no gradient, because hyla computes none (use torch.no_grad() or "
       ".detach())",
       "one with requires_grad=True");
}

// The device of a call is that of its first tensor; the operation refuses the others by name.
void Call::settle(PyObject* object, const Producer& producer, Device device) {
  if (settled_) return;
  settled_ = true;
  first_ = object;
  framework_ = producer;
  context_.device = device;
  if (device.kind == Device::Kind::kCpu) {
    if (explicit_stream_) fail("stream", "none, because the tensors are on the CPU", "a stream");
    return;
  }
  if (!explicit_stream_) {
    if (producer.api != nullptr) {
      if (producer.api->current_stream(kDLCUDA, device.index, &stream_handle_) != 0) {
        throw nb::python_error();
      }
    } else {
      nb::object current = nb::module_::import_("hyla._frameworks").attr("current_stream");
      stream_handle_ =
          reinterpret_cast<void*>(nb::cast<std::uintptr_t>(current(nb::handle(object))));
    }
  }
  context_.stream = Stream::cuda(stream_handle_);
}

void Call::set_stream(std::size_t i) {
  PyObject* object = arguments_[i];
  if (object == Py_None) return;
  explicit_stream_ = true;
  nb::object handle = nb::borrow(object);
  if (!PyLong_CheckExact(object)) {
    nb::object convert = nb::module_::import_("hyla._frameworks").attr("stream_handle");
    handle = convert(nb::handle(object));
  }
  stream_handle_ = PyLong_AsVoidPtr(handle.ptr());
  if (stream_handle_ == nullptr && PyErr_Occurred()) {
    fail_from_python(names_[i], "the address of a CUDA stream");
  }
}

void Call::exchange(const char* name, PyObject* object, const Producer& producer,
                    TensorView& view) {
  if (producer.gradients) refuse_gradient(name, object);
  if (producer.api->tensor_from_object != nullptr) {
    DLTensor tensor;
    if (producer.api->tensor_from_object(object, &tensor) != 0) {
      fail_from_python(name, "a tensor with memory that DLPack can describe");
    }
    fill(tensor, name, view);
  } else {
    ManagedTensor* managed = nullptr;
    if (producer.api->managed_from_object(object, &managed) != 0) {
      fail_from_python(name, "a tensor with memory that DLPack can describe");
    }
    hold(PyCapsule_New(managed, nullptr, [](PyObject* capsule) {
      auto* owned = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, nullptr));
      if (owned->deleter != nullptr) owned->deleter(owned);
    }));
    fill(managed->tensor, name, view);
  }
  settle(object, producer, view.device);
}

TensorView Call::numpy(const char* name, PyObject* object, Access access) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(object, &buffer, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();  // dtypes that numpy itself does not have, such as bfloat16
    return described(name, object, "array_interface", access);
  }
  buffers_.push_back(buffer);
  TensorView view;
  view.dtype = dtype_of_format(buffer.format, buffer.itemsize);
  if (view.dtype == DType::kNone) {
    fail(name, a_known_dtype(), nb::str(nb::object(nb::handle(object).attr("dtype"))).c_str());
  }
  if (access == Access::kWrite && buffer.readonly) fail_read_only(name, "a read-only numpy array");
  if (buffer.ndim > TensorView::kMaxRank) {
    fail(name, "0 to 6 dimensions", std::to_string(buffer.ndim));
  }
  view.data = buffer.buf;
  view.rank = buffer.ndim;
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = buffer.shape[d];
    if (buffer.shape[d] > 1 && buffer.strides[d] % buffer.itemsize != 0) {
      fail(name, "strides that are multiples of the element size",
           std::to_string(buffer.strides[d]) + " bytes for elements of " +
               std::to_string(buffer.itemsize));
    }
    view.strides[d] = buffer.strides[d] / buffer.itemsize;
  }
  return view;
}

TensorView Call::protocol(const char* name, PyObject* object, const Producer& producer,
                          Access access) {
  if (access == Access::kWrite && producer.immutable) {
    fail_read_only(name, "a jax array, which never changes; give a numpy array or a torch tensor");
  }
  const nb::handle handle(object);
  if (!nb::hasattr(handle, "__dlpack__"))
    return described(name, object, "cuda_array_interface", access);
  nb::object export_ = nb::module_::import_("hyla._frameworks").attr("export");
  nb::object ask = nb::module_::import_("hyla._frameworks").attr("device");
  nb::object device = nb::steal(PyObject_CallOneArg(ask.ptr(), object));
  if (!device.is_valid()) fail_from_python(name, "a tensor on a CPU or a CUDA device");
  const int index = nb::cast<int>(device);
  const Device announced = index < 0 ? Device::cpu() : Device::cuda(index);
  settle(object, producer, announced);
  PyObject* capsule = PyObject_CallFunction(export_.ptr(), "OKi", object,
                                            reinterpret_cast<unsigned long long>(stream_handle_),
                                            index < 0 ? 0 : 1);
  if (capsule == nullptr) fail_from_python(name, "a tensor with memory that DLPack can describe");
  hold(capsule);  // borrowed: its own destructor frees what was exported
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    auto* managed =
        static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major != kPackMajor) fail(name, "DLPack version 1", "another version");
    if (access == Access::kWrite) {
      if (managed->flags & kPackReadOnly) fail_read_only(name, "a read-only one");
      if (managed->flags & kPackCopied) fail_read_only(name, "one that exports a copy of itself");
    }
    return described_as(managed->tensor, announced, name);
  }
  if (PyCapsule_IsValid(capsule, "dltensor")) {
    auto* managed = static_cast<LegacyManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
    return described_as(managed->tensor, announced, name);
  }
  fail(name, "a DLPack capsule from __dlpack__", "another object");
}

// hyla._frameworks.describe: (address, read only, shape, strides or None, dtype name, CUDA device
// or -1).
TensorView Call::described(const char* name, PyObject* object, const char* how, Access access) {
  nb::object describe = nb::module_::import_("hyla._frameworks").attr(how);
  PyObject* raw = PyObject_CallFunctionObjArgs(describe.ptr(), object, nullptr);
  if (raw == nullptr) fail_from_python(name, a_known_dtype().c_str());
  nb::tuple facts = nb::steal<nb::tuple>(raw);
  if (access == Access::kWrite && nb::cast<bool>(facts[1])) fail_read_only(name, "a read-only one");
  TensorView view;
  view.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(facts[0]));
  view.dtype = static_cast<DType>(nb::cast<int>(facts[4]));
  const int index = nb::cast<int>(facts[5]);
  view.device = index < 0 ? Device::cpu() : Device::cuda(index);
  nb::tuple shape = nb::cast<nb::tuple>(facts[2]);
  nb::tuple strides = nb::cast<nb::tuple>(facts[3]);
  if (shape.size() > TensorView::kMaxRank) {
    fail(name, "0 to 6 dimensions", std::to_string(shape.size()));
  }
  view.rank = static_cast<int>(shape.size());
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = nb::cast<std::int64_t>(shape[d]);
    view.strides[d] = nb::cast<std::int64_t>(strides[d]);
  }
  settle(object, producer_of(object), view.device);
  return view;
}

void Call::output(std::size_t i, DType dtype, std::span<const std::int64_t> shape, bool zero,
                  TensorView& view) {
  if (given(i)) {
    tensor(i, Access::kWrite, view);
    result_ = arguments_[i];
    return;
  }
  PyObject* object = nullptr;
  view = allocate(names_[i], dtype, shape, zero, &object);
  result_ = object;
  allocated_ = true;
}

TensorView Call::allocate(const char* name, DType dtype, std::span<const std::int64_t> shape,
                          bool zero, PyObject** object) {
  // A framework orders its memory by its own stream: it clears and reuses it there.
  if (explicit_stream_ && context_.device.kind == Device::Kind::kCuda) {
    fail(name, "a tensor, because stream is given", "none");
  }
  if (framework_.source != Source::kExchange) {
    nb::object make = nb::module_::import_("hyla._frameworks").attr("allocate");
    nb::list sizes;
    for (std::int64_t size : shape) sizes.append(size);
    nb::object made = make(nb::handle(first_), nb::tuple(sizes), name_of(dtype), zero);
    *object = made.release().ptr();
    const Producer& producer = producer_of(*object);
    return producer.source == Source::kNumpy ? numpy(name, *object, Access::kWrite)
                                             : protocol(name, *object, producer, Access::kWrite);
  }
  TensorView prototype;
  prototype.dtype = dtype;
  prototype.device = context_.device;
  prototype.rank = static_cast<int>(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) prototype.shape[d] = shape[d];
  DLTensor wanted = to_dlpack(prototype);
  wanted.device = dl_device(context_.device);
  wanted.strides = nullptr;
  ManagedTensor* managed = nullptr;
  std::string error;
  const auto set_error = [](void* context, const char*, const char* message) {
    *static_cast<std::string*>(context) = message;
  };
  if (framework_.api->allocate(&wanted, &managed, &error, set_error) != 0) {
    PyErr_Clear();
    throw DeviceError(std::string(name) + ": no memory for " + describe(prototype) + ": " + error,
                      0);
  }
  const TensorView view = from_dlpack(managed->tensor, name);
  void* made = nullptr;
  if (framework_.api->object_from_managed(managed, &made) != 0) throw nb::python_error();
  *object = static_cast<PyObject*>(made);
  if (zero && view.numel() > 0) {
    if (view.device.kind == Device::Kind::kCpu) {
      std::memset(view.data, 0, static_cast<std::size_t>(view.numel()) * size_of(dtype));
    } else {
      nb::object done = nb::steal(PyObject_CallMethod(*object, "zero_", nullptr));
      if (!done.is_valid()) {
        Py_CLEAR(*object);
        throw nb::python_error();
      }
    }
  }
  return view;
}

Workspace Call::workspace(std::size_t i, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  if (given(i)) {
    TensorView view;
    tensor(i, Access::kWrite, view);
    std::int64_t dense = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
      if (view.shape[d] > 1 && view.strides[d] != dense) {
        fail(names_[i], "a contiguous tensor", describe(view));
      }
      dense *= view.shape[d];
    }
    return {view.data, static_cast<std::size_t>(view.numel()) * size_of(view.dtype), view.device};
  }
  if (bytes == 0) return {};
  if (context_.device.kind == Device::Kind::kCpu) {
    scratch_ = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (scratch_ == nullptr) throw std::bad_alloc();
    return {scratch_, bytes, context_.device};
  }
  PyObject* object = nullptr;
  const std::int64_t size = static_cast<std::int64_t>(bytes + kAlignment);
  const TensorView view = allocate(names_[i], DType::kUInt8, {&size, 1}, false, &object);
  hold(object);
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const std::uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  return {reinterpret_cast<void*>(aligned), bytes, view.device};
}

}  // namespace hyla::python
