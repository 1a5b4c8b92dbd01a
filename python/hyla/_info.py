"""Questions about hyla itself: who would run a call, what the machine has, how much scratch memory."""

from __future__ import annotations

from typing import Any, Callable, cast

from . import _core, attention, conv, gdn, norm
from .errors import InvalidArgument

__all__ = ["explain", "info", "workspace_bytes", "set_num_threads", "get_num_threads"]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "gdn.decode": gdn.decode,
    "gdn.mtp": gdn.mtp,
    "gdn.prefill": gdn.prefill,
    "gdn.recurrence": gdn.recurrence,
    "conv.prefill": conv.prefill,
    "conv.update": conv.update,
    "norm.gated_rms": norm.gated_rms,
    "attention.run": attention.run,
    "attention.append": attention.append,
    "attention.merge": attention.merge,
}


def _function(operation: str) -> Callable[..., Any]:
    if not isinstance(operation, str):
        raise TypeError(f"operation: expected a str, got {type(operation).__name__}")
    if operation not in _FUNCTIONS:
        raise InvalidArgument("operation", "one of " + ", ".join(_FUNCTIONS), repr(operation))
    return _FUNCTIONS[operation]


def explain(operation: str, *args: Any, **kwargs: Any) -> list[tuple[str, str, str]]:
    """What every implementation says about a call: (name, "yes" or "no", reason), best first.

    explain("gdn.decode", q, k, v, state, beta=beta) checks the arguments as hyla.gdn.decode would,
    runs nothing, and the first "yes" is what would run.
    """
    kwargs["impl"] = _core.EXPLAIN
    return cast("list[tuple[str, str, str]]", _function(operation)(*args, **kwargs))


def info() -> dict[str, Any]:
    """The version, the devices that can be used, and the implementations of every operation."""
    return {
        "version": _core.version(),
        "cuda": _core.built_with_cuda(),
        "devices": _core.devices(),
        "operations": {name: _core.implementations(name) for name in _core.operations()},
        "threads": _core.get_num_threads(),
        "thread_pool": _core.has_thread_pool(),
    }


_BOUNDS = {
    "gdn.prefill": (
        "max_sequences",
        "max_tokens",
        "query_heads",
        "key_heads",
        "value_heads",
        "key_dim",
        "value_dim",
    ),
    "attention.run": (
        "max_sequences",
        "max_tokens",
        "max_kv_length",
        "query_heads",
        "kv_heads",
        "head_dim",
        "value_dim",
    ),
}


def workspace_bytes(
    operation: str,
    *,
    dtype: str = "bfloat16",
    cache_dtype: str | None = None,
    device: object = "cpu",
    **maxima: int,
) -> int:
    """Bytes that are enough for every call within the maxima. Only two operations need any:

    gdn.prefill    max_sequences, max_tokens, query_heads, key_heads, value_heads, key_dim, value_dim
    attention.run  max_sequences, max_tokens, max_kv_length, query_heads, kv_heads, head_dim,
                   value_dim

    dtype is that of q; device is "cpu", "cuda", "cuda:1" or a torch.device. cache_dtype is that of
    the keys and values of attention.run, where it is another: prompts over float8_e4m3 and int8 ones
    are faster with room for 16-bit copies of them.
    """
    _function(operation)
    names = _BOUNDS.get(operation, ())
    for name in maxima:
        if name not in names:
            raise TypeError(f"{name}: expected one of {', '.join(names) or 'none'}, got another")
    if cache_dtype is not None and operation != "attention.run":
        raise TypeError(f"cache_dtype: expected nothing for {operation}, got {cache_dtype!r}")
    missing = [name for name in names if name not in maxima]
    if missing:
        raise TypeError(f"{missing[0]}: expected an int, got nothing")
    if not names:
        return 0
    for name in names:
        if isinstance(maxima[name], bool) or not hasattr(maxima[name], "__index__"):
            raise TypeError(f"{name}: expected an int, got {type(maxima[name]).__name__}")
    io = _dtype("dtype", dtype)
    bounds = [int(maxima[bound].__index__()) for bound in names] + [io, _cuda_index(device)]
    if operation == "gdn.prefill":
        return _core.prefill_workspace_bytes(*bounds)
    bounds.append(io if cache_dtype is None else _dtype("cache_dtype", cache_dtype))
    return _core.run_workspace_bytes(*bounds)


def _dtype(argument: str, dtype: object) -> int:
    name = str(dtype).removeprefix("torch.").replace("float8_e4m3fn", "float8_e4m3")
    if name not in _core.dtypes:
        raise InvalidArgument(argument, "one of " + ", ".join(_core.dtypes), repr(dtype))
    return _core.dtypes[name]


def _cuda_index(device: object) -> int:
    text = str(device)
    if text == "cpu":
        return -1
    kind, colon, index = text.partition(":")
    if kind != "cuda" or (colon and not index.isdecimal()):
        raise InvalidArgument("device", "'cpu', 'cuda' or 'cuda:0'", repr(text))
    return int(index or 0)


def set_num_threads(count: int, *, pool: bool = False) -> None:
    """CPU threads of every later call in this process; 0: as many as the machine has.

    `pool`: threads of hyla's own, 64 at most, in place of OpenMP's. A call does not wait for those of them that
    other work keeps from running, so it is steadier on a busy machine; but threads of two kinds,
    such as torch's beside these, keep each other from running.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"count: expected an int, got {type(count).__name__}")
    if not isinstance(pool, bool):
        raise TypeError(f"pool: expected a bool, got {type(pool).__name__}")
    most = _core.most_pool_threads if pool else 2**31 - 1
    if not 0 <= count <= most:
        raise InvalidArgument("count", f"a number from 0 to {most}", str(count))
    _core.set_num_threads(count, pool)


def get_num_threads() -> int:
    """What set_num_threads said."""
    return _core.get_num_threads()
