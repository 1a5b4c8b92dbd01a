// One call from Python: the arguments by name, the tensors borrowed for its duration, the device
// and stream they ask for, and the outputs that the caller left to hyla.
#pragma once

#include <Python.h>
#include <hyla/context.h>
#include <hyla/error.h>
#include <hyla/thread_pool.h>
#include <hyla/workspace.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "errors.h"
#include "producer.h"

namespace hyla::python {

// Thrown for a tensor that only torch's own dispatcher can handle.
struct Traced {};

// As `impl=`: the call runs that many times and returns the nanoseconds of one, without Python.
struct Repeat {
  std::int64_t count;
};

class Call {
 public:
  Call(const char* operation, std::span<const char* const> names, PyObject* const* arguments);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const char* operation() const { return operation_; }
  std::span<const char* const> names() const { return names_; }
  PyObject* argument(std::size_t i) const { return arguments_[i]; }
  bool given(std::size_t i) const { return arguments_[i] != Py_None; }

  enum class Access { kRead, kWrite };
  // `view` is as it was default-constructed.
  void tensor(std::size_t i, Access access, TensorView& view);  // None: TypeError
  void optional_tensor(std::size_t i, Access access, TensorView& view) {
    if (given(i)) tensor(i, access, view);
  }
  bool flag(std::size_t i) const;
  std::int64_t integer(std::size_t i) const;
  double number(std::size_t i) const;
  std::optional<double> optional_number(std::size_t i) const;
  const char* text(std::size_t i) const;  // None: null
  struct Choice {
    const char* text;
    int value;
  };
  int choice(std::size_t i, std::initializer_list<Choice> choices) const;

  // The output of the call: the given tensor, or a new one in the framework of the first tensor.
  void output(std::size_t i, DType dtype, std::span<const std::int64_t> shape, bool zero,
              TensorView& view);
  // The given buffer, or a new one of that many bytes.
  Workspace workspace(std::size_t i, std::size_t bytes);

  void set_stream(std::size_t i);  // before the first tensor
  void set_implementation(std::size_t i);
  const char* implementation() const { return implementation_; }
  bool explains() const { return explains_; }
  std::int64_t repeats() const { return repeats_; }  // 0: an ordinary call
  Context& context() { return context_; }

  void rename(std::string_view from, std::string_view to);
  std::span<const Rename> renames() const { return {renames_.data(), rename_count_}; }

  PyObject* result();  // a new reference

 private:
  void exchange(const char* name, PyObject* object, const Producer& producer, TensorView& view);
  TensorView numpy(const char* name, PyObject* object, Access access);
  TensorView protocol(const char* name, PyObject* object, const Producer& producer, Access access);
  TensorView described(const char* name, PyObject* object, const char* how, Access access);
  void refuse_gradient(const char* name, PyObject* object);
  void settle(PyObject* object, const Producer& producer, Device device);
  void hold(PyObject* object);
  TensorView allocate(const char* name, DType dtype, std::span<const std::int64_t> shape, bool zero,
                      PyObject** object);

  const char* operation_;
  std::span<const char* const> names_;
  PyObject* const* arguments_;
  Context context_{};
  std::shared_ptr<ThreadPool> pool_;  // of the context
  const char* implementation_ = nullptr;
  std::int64_t repeats_ = 0;
  bool explains_ = false, settled_ = false, explicit_stream_ = false;
  void* stream_handle_ = nullptr;
  std::optional<bool> gradients_{};
  PyObject* first_ = nullptr;  // borrowed from the caller
  Producer framework_{};
  PyObject* result_ = nullptr;  // owned when `allocated_`
  bool allocated_ = false;
  void* scratch_ = nullptr;
  std::array<Rename, 12> renames_{};
  std::size_t rename_count_ = 0;
  std::vector<Py_buffer> buffers_;
  std::vector<PyObject*> held_;
};

// Objects of the package that a call needs.
PyObject* explain_token();  // borrowed: `impl=` of hyla.explain

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() { PyEval_RestoreThread(state_); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace hyla::python
