"""The operations as operators of torch.ops.hyla, for torch.compile, torch.export and fake tensors.

Imported only when torch is there and asks: eager calls on ordinary tensors do not come through here.
Each operator writes into `out` and the pools that its schema marks as mutated, and returns nothing;
`functions` has what the package calls, with outputs allocated in the graph.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

import torch

from . import _core
from .errors import InvalidArgument

__all__ = ["functions", "redirect"]

_REQUIRED = {
    "gdn_decode": ("q", "k", "v", "state"),
    "gdn_mtp": ("q", "k", "v", "state"),
    "gdn_prefill": ("q", "k", "v"),
    "gdn_recurrence": ("qkv", "state"),
    "conv_prefill": ("x", "weight"),
    "conv_update": ("x", "weight", "state"),
    "norm_gated_rms": ("x", "z", "weight"),
    "attention_run": ("q", "cache.k"),
    "attention_append": ("cache.k", "k"),
    "attention_merge": ("a", "a_lse", "b", "b_lse"),
}
_WRITTEN = {
    "gdn_decode": ("state", "out"),
    "gdn_mtp": ("state", "states_out", "out"),
    "gdn_prefill": ("state", "state_out", "checkpoints", "workspace", "out"),
    "gdn_recurrence": ("state", "out"),
    "conv_prefill": ("state", "out"),
    "conv_update": ("state", "out"),
    "norm_gated_rms": ("out",),
    "attention_run": ("lse", "workspace", "out"),
    "attention_append": ("cache.k", "cache.v", "cache.k_scales", "cache.v_scales"),
    "attention_append_given": ("cache.k", "cache.v"),
    "attention_merge": ("lse", "out"),
}
# A flag that changes what an operation writes makes another operator of it: one value that serves
# all tokens, which a functional graph could not write back, is read only.
_VARIANTS = {"attention_append": ("given_scales", "attention_append_given")}
_SCALARS = {
    "first_slot": "SymInt",
    "layout": "str",
    "scale": "float?",
    "l2norm": "bool",
    "l2norm_eps": "float",
    "norm_eps": "float",
    "norm_gate": "str",
    "batch_invariant": "bool",
    "update_state": "bool",
    "checkpoint_every": "SymInt",
    "decay_cutoff_log2": "float?",
    "max_length": "SymInt",
    "key_heads": "SymInt",
    "value_heads": "SymInt",
    "key_dim": "SymInt",
    "value_dim": "SymInt",
    "activation": "str?",
    "eps": "float",
    "gate": "str",
    "cache.kind": "str",
    "cache.layout": "str",
    "causal": "bool",
    "window": "SymInt?",
    "chunk": "SymInt?",
    "softcap": "float?",
    "interleaved": "bool",
    "given_scales": "bool",
    "impl": "str?",
}


def _schema(operation: str, name: str) -> str:
    """All arguments but the stream, which in torch is the current one."""
    letters = iter("abcdefghijk")
    parts = []
    for argument in _core.arguments[operation]:
        if argument == "stream":
            continue
        kind = _SCALARS.get(argument)
        if kind is None:
            alias = f"({next(letters)}!)" if argument in _WRITTEN[name] else ""
            needed = argument in _REQUIRED[operation] or argument == "out"
            kind = f"Tensor{alias}" + ("" if needed else "?")
        parts.append(f"{kind} {argument.replace('.', '_')}")
    return f"{name}({', '.join(parts)}) -> ()"


def _gdn_prefill_out(q: Any, v: Any) -> Any:
    return q.new_zeros((q.shape[0], max(q.shape[1], v.shape[1]), v.shape[2]))


# The output of an operation whose caller gave none, by its arguments.
_OUTPUTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "gdn_decode": lambda x: torch.zeros_like(x["v"], memory_format=torch.contiguous_format),
    "gdn_mtp": lambda x: torch.zeros_like(x["v"], memory_format=torch.contiguous_format),
    "gdn_prefill": lambda x: _gdn_prefill_out(x["q"], x["v"]),
    "gdn_recurrence": lambda x: x["qkv"].new_zeros(
        (x["qkv"].shape[0], x["value_heads"] * x["value_dim"])
    ),
    "conv_prefill": lambda x: torch.zeros_like(x["x"], memory_format=torch.contiguous_format),
    "conv_update": lambda x: torch.zeros_like(x["x"], memory_format=torch.contiguous_format),
    "norm_gated_rms": lambda x: torch.empty_like(x["x"], memory_format=torch.contiguous_format),
    "attention_run": lambda x: x["q"].new_zeros(
        (*x["q"].shape[:2], (x["q"] if x["cache.v"] is None else x["cache.v"]).shape[-1])
    ),
    "attention_merge": lambda x: torch.empty_like(x["a"], memory_format=torch.contiguous_format),
}

_library = torch.library.Library("hyla", "FRAGMENT")
_inside = threading.local()


def _kernel(name: str) -> Callable[..., None]:
    core = getattr(_core, name)

    def kernel(*args: Any) -> None:
        _inside.depth = getattr(_inside, "depth", 0) + 1
        try:
            core(*args[:-1], None, args[-1])
        finally:
            _inside.depth -= 1

    return kernel


def _fake(*args: Any, **kwargs: Any) -> None:
    """Everything an operator makes is written into its arguments."""


def _function(name: str) -> Callable[..., Any]:
    names = _core.arguments[name]
    operator = getattr(torch.ops.hyla, name).default
    make = _OUTPUTS.get(name)
    flag, variant = _VARIANTS.get(name, (None, name))
    other = getattr(torch.ops.hyla, variant).default

    def function(*args: Any) -> Any:
        given = dict(zip(names, args))
        if given.pop("stream") is not None:
            raise InvalidArgument("stream", "none while torch traces the call", "a stream")
        if torch.is_grad_enabled():
            for argument, value in given.items():
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    raise InvalidArgument(
                        argument,
                        "a tensor that needs no gradient, because hyla computes none "
                        "(use torch.no_grad() or .detach())",
                        "one with requires_grad=True",
                    )
        if make is not None and given["out"] is None:
            given["out"] = make(given)
        (other if flag is not None and given[flag] else operator)(*given.values())
        return given.get("out")

    return function


def _register() -> dict[str, Callable[..., Any]]:
    result = {}
    for operation in _core.arguments:
        kernel = _kernel(operation)
        for name in dict.fromkeys((operation, _VARIANTS.get(operation, ("", operation))[1])):
            _library.define(_schema(operation, name))
            for key in ("CPU", "CUDA"):
                _library.impl(name, kernel, key)
            torch.library.register_fake(f"hyla::{name}", _fake, lib=_library)
        result[operation] = _function(operation)
    return result


functions = _register()


def redirect(operation: str, args: tuple[Any, ...]) -> Any:
    """A call that met a tensor without memory of its own goes to torch's dispatcher."""
    if getattr(_inside, "depth", 0):
        raise TypeError(f"{operation}: expected torch tensors with memory, got a traced one")
    return functions[operation.replace(".", "_")](*args)
