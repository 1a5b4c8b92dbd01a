"""The operations of hyla, always by the reference: scalar, accumulating in float64, on the CPU.

It is the definition of every operation, for tests of one's own: `hyla.reference.gdn.decode` takes
what `hyla.gdn.decode` takes, except `impl`.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, Callable

from . import attention as _attention
from . import conv as _conv
from . import gdn as _gdn
from . import norm as _norm

__all__ = ["gdn", "conv", "norm", "attention"]


def _forced(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, impl="reference", **kwargs)

    return call


gdn = SimpleNamespace(
    decode=_forced(_gdn.decode),
    mtp=_forced(_gdn.mtp),
    prefill=_forced(_gdn.prefill),
    recurrence=_forced(_gdn.recurrence),
)
conv = SimpleNamespace(prefill=_forced(_conv.prefill), update=_forced(_conv.update))
norm = SimpleNamespace(gated_rms=_forced(_norm.gated_rms))
attention = SimpleNamespace(run=_forced(_attention.run), append=_forced(_attention.append))
