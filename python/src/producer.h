// Which way the objects of a Python type hand over their memory. Decided once a type.
#pragma once

#include <Python.h>

#include "dlpack_exchange.h"

namespace hyla::python {

enum class Source {
  kNone,      // not a tensor
  kExchange,  // DLPack's C exchange API: torch
  kTraced,    // a torch tensor without memory of its own (fake, functional, subclass)
  kNumpy,     // the buffer protocol
  kProtocol,  // __dlpack__, else __cuda_array_interface__: jax, cupy, numba
};

struct Producer {
  PyTypeObject* type = nullptr;
  Source source = Source::kNone;
  const ExchangeApi* api = nullptr;  // kExchange
  bool gradients = false;            // torch: tensors may require one
  bool immutable = false;            // jax: its arrays never change
};

// Valid until the next call in this thread.
const Producer& producer_of(PyObject* object);

// torch.is_grad_enabled(), for a process that has torch loaded.
bool grad_enabled();

}  // namespace hyla::python
