"""The slow paths to and from array libraries, for what DLPack's C exchange API does not reach.

Called from C++ with objects that have already been recognised; nothing here imports a framework
that is not loaded.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from . import _core

_DLPACK_VERSION = (1, 0)
_CUDA_DEVICES = (2, 13)  # CUDA, CUDA managed
_CPU_DEVICES = (1, 3)  # CPU, CUDA host

_TYPESTR = {
    "f4": "float32",
    "f2": "float16",
    "i4": "int32",
    "i8": "int64",
    "u4": "uint32",
    "i1": "int8",
    "u1": "uint8",
    "b1": "bool",
}
_EXTENSION_DTYPES = {"bfloat16": "bfloat16", "float8_e4m3fn": "float8_e4m3"}


def _module(name: str) -> Any:
    return sys.modules.get(name)


def _top(obj: Any) -> str:
    return type(obj).__module__.partition(".")[0]


def device(obj: Any) -> int:
    """The CUDA device of an object with __dlpack__, or -1 for the CPU."""
    kind, index = obj.__dlpack_device__()
    if int(kind) in _CPU_DEVICES:
        return -1
    if int(kind) in _CUDA_DEVICES:
        return int(index)
    raise ValueError(f"a tensor on DLPack device type {int(kind)}")


def export(obj: Any, stream: int, cuda: int) -> Any:
    """A DLPack capsule of the object's own memory, ready on the stream."""
    if hasattr(obj, "block_until_ready"):
        obj.block_until_ready()
    keywords: dict[str, Any] = {}
    if cuda:
        keywords["stream"] = stream or 1  # 1 is DLPack's word for the legacy default stream
    try:
        return obj.__dlpack__(max_version=_DLPACK_VERSION, copy=False, **keywords)
    except TypeError:
        return obj.__dlpack__(**keywords)


def _facts(
    interface: dict[str, Any], dtype: str, item: int, where: int
) -> tuple[int, bool, tuple[int, ...], tuple[int, ...], int, int]:
    shape = tuple(interface["shape"])
    address, read_only = interface["data"]
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(item * math.prod(shape[d + 1 :]) for d in range(len(shape)))
    if any(size > 1 and step % item for size, step in zip(shape, strides)):
        raise ValueError(f"strides {tuple(strides)} in bytes for elements of {item} bytes")
    steps = tuple(step // item for step in strides)
    return int(address or 0), bool(read_only), shape, steps, _core.dtypes[dtype], where


def array_interface(obj: Any) -> tuple[int, bool, tuple[int, ...], tuple[int, ...], int, int]:
    """numpy arrays of dtypes that numpy itself does not have (ml_dtypes)."""
    dtype = _EXTENSION_DTYPES.get(obj.dtype.name)
    if dtype is None or not obj.dtype.isnative:
        raise ValueError(str(obj.dtype))
    return _facts(obj.__array_interface__, dtype, obj.dtype.itemsize, -1)


def cuda_array_interface(obj: Any) -> tuple[int, bool, tuple[int, ...], tuple[int, ...], int, int]:
    """Objects that have nothing but __cuda_array_interface__, such as numba's."""
    interface = obj.__cuda_array_interface__
    typestr = interface["typestr"]
    dtype = _TYPESTR.get(typestr[1:])
    if dtype is None or typestr[0] == ">":
        raise ValueError(typestr)
    where = getattr(getattr(obj, "device", None), "id", 0)
    return _facts(interface, dtype, int(typestr[2:]), where)


def current_stream(obj: Any) -> int:
    """The stream that an object's own library would use now; 0 is the legacy default stream."""
    if _top(obj) == "cupy":
        return int(_module("cupy").cuda.get_current_stream().ptr)
    stream = getattr(obj, "__cuda_array_interface__", {}).get("stream")
    return 0 if stream in (None, 1) else int(stream)


def stream_handle(obj: Any) -> int:
    """The address in a stream object: torch, cupy, or anything with __cuda_stream__."""
    if isinstance(obj, bool):
        raise TypeError("stream: expected a CUDA stream or its address, got bool")
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(obj, name, None)
        if value is not None:
            return int(value)
    if hasattr(obj, "__cuda_stream__"):
        protocol = obj.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    if hasattr(obj, "__index__"):
        return int(obj.__index__())
    raise TypeError(
        f"stream: expected a CUDA stream or its address, got {type(obj).__name__}"
    )


def _numpy_dtype(name: str) -> Any:
    numpy = _module("numpy")
    if name in ("bfloat16", "float8_e4m3"):
        import ml_dtypes

        return getattr(ml_dtypes, {"float8_e4m3": "float8_e4m3fn"}.get(name, name))
    return getattr(numpy, "bool_" if name == "bool" else name)


def allocate(first: Any, shape: tuple[int, ...], dtype: str, zero: bool) -> Any:
    """Memory that hyla may write, for an output in the framework of `first`."""
    top = _top(first)
    if top == "cupy":
        cupy = _module("cupy")
        with first.device:
            return (cupy.zeros if zero else cupy.empty)(shape, dtype)
    numpy = _module("numpy")
    on_cpu = numpy is not None and (
        isinstance(first, numpy.ndarray) or (top in ("jax", "jaxlib") and device(first) < 0)
    )
    if not on_cpu:
        raise TypeError(f"out: expected a tensor, since hyla cannot make one like a {top} array")
    return (numpy.zeros if zero else numpy.empty)(shape, _numpy_dtype(dtype))


def finish(first: Any, made: Any) -> Any:
    """The written memory as an array of the framework of `first`."""
    if _top(first) in ("jax", "jaxlib"):
        return _module("jax").numpy.asarray(made)
    return made
