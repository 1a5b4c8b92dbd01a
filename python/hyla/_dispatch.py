"""Is torch.compile tracing this call? Nothing here imports torch."""

from __future__ import annotations

import sys
from typing import Any, Callable

__all__ = ["compiling", "traced"]


def _ask() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


def _ask_torch() -> Callable[[], bool]:
    """What dynamo knows as True; other tracers come with tensors that the module recognises."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return getattr(compiler, "is_dynamo_compiling", _ask)


compiling: Callable[[], bool] = _ask_torch()


def traced(name: str) -> Callable[..., Any]:
    """The operation as torch sees it: an operator of torch.ops.hyla."""
    from . import _torch

    return _torch.functions[name]
