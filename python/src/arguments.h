// Arguments by name, checked by the compiler: `in.read("q")` of a name that the list lacks does not
// compile.
#pragma once

#include <hyla/backend.h>

#include <chrono>

#include "call.h"

namespace hyla::python {

template <const auto& kNames>
class Arguments {
 public:
  static constexpr std::size_t kCount = kNames.size();
  struct Key {
    consteval Key(const char* name) : index(find(name)) {}
    std::size_t index;
  };

  Arguments(const char* operation, PyObject* const* arguments)
      : call(operation, kNames, arguments) {}

  // Views are filled where they are needed: a copy of one that was just written stalls.
  void read(Key key, TensorView& view) { call.tensor(key.index, Call::Access::kRead, view); }
  void write(Key key, TensorView& view) { call.tensor(key.index, Call::Access::kWrite, view); }
  void maybe_read(Key key, TensorView& view) {
    call.optional_tensor(key.index, Call::Access::kRead, view);
  }
  void maybe_write(Key key, TensorView& view) {
    call.optional_tensor(key.index, Call::Access::kWrite, view);
  }
  bool given(Key key) const { return call.given(key.index); }
  bool flag(Key key) const { return call.flag(key.index); }
  std::int64_t integer(Key key) const { return call.integer(key.index); }
  double number(Key key) const { return call.number(key.index); }
  std::optional<double> maybe_number(Key key) const { return call.optional_number(key.index); }
  template <class Enum>
  Enum choice(Key key, std::initializer_list<Call::Choice> choices) const {
    return static_cast<Enum>(call.choice(key.index, choices));
  }
  void output(TensorView& view, Key key, const TensorView& like, bool zero) {
    output(view, key, like.dtype, {like.shape, static_cast<std::size_t>(like.rank)}, zero);
  }
  void output(TensorView& view, Key key, DType dtype, std::span<const std::int64_t> shape,
              bool zero) {
    call.output(key.index, dtype, shape, zero, view);
  }
  // The given buffer, or a new one of as many bytes as `needed` says.
  template <class Needed>
  Workspace workspace(Key key, Needed&& needed) {
    return call.workspace(key.index, given(key) ? 0 : needed());
  }
  // Arguments that every operation has.
  void options() {
    call.set_stream(Key("stream").index);
    call.set_implementation(Key("impl").index);
  }

  Call call;

 private:
  static consteval std::size_t find(std::string_view name) {
    for (std::size_t i = 0; i < kNames.size(); ++i) {
      if (name == kNames[i]) return i;
    }
    throw "no such argument";
  }
};

PyObject* explanation(const std::vector<Candidate>& candidates);
// Hands the call over to torch's dispatcher: hyla._torch.redirect(operation, arguments).
PyObject* redirect(const Call& call);
bool count_is(const char* operation, std::size_t wanted, Py_ssize_t given);

// What all operations do around `body`, which turns arguments into a result.
template <const auto& kNames, class Body>
PyObject* operation(const char* name, PyObject* const* arguments, Py_ssize_t count, Body&& body) {
  if (!count_is(name, kNames.size(), count)) return nullptr;
  Arguments<kNames> in(name, arguments);
  try {
    in.options();
    return body(in);
  } catch (const Traced&) {
    return redirect(in.call);
  } catch (...) {
    set_python_error(in.call.renames());
    return nullptr;
  }
}

// Runs or explains checked parameters.
template <class Params, class Run>
PyObject* perform(Call& call, Params& params, Run&& run) {
  params.impl = call.implementation();
  if (call.explains()) return explanation(explain(params, call.context()));
  if (call.repeats() > 0) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < call.repeats(); ++i) run(params, call.context());
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    return PyFloat_FromDouble(time.count() / static_cast<double>(call.repeats()));
  }
  {
    GilReleased released;
    run(params, call.context());
  }
  return call.result();
}

}  // namespace hyla::python
