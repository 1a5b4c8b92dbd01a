"""The operations of hyla, always by the reference: scalar, accumulating in float64, on the CPU.

It is the definition of every operation, for tests of one's own: `hyla.reference.gdn.decode` takes
what `hyla.gdn.decode` takes, except `impl`.
"""

from __future__ import annotations

import functools
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable

from . import attention, conv, gdn, norm

__all__ = ["gdn", "conv", "norm", "attention"]


def _forced(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, impl="reference", **kwargs)

    return call


def _reference(module: ModuleType, *names: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: _forced(getattr(module, name)) for name in names})


if not TYPE_CHECKING:  # to a type checker they are the modules whose functions they have
    gdn = _reference(gdn, "decode", "mtp", "prefill", "recurrence")
    conv = _reference(conv, "prefill", "update")
    norm = _reference(norm, "gated_rms")
    attention = _reference(attention, "run", "append", "merge")
