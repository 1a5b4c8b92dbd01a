"""Gated RMSNorm, the step between a GDN recurrence and the output projection."""

from __future__ import annotations

from . import _core
from ._dispatch import compiling, traced
from ._typing import T, Tensor

__all__ = ["gated_rms"]


def gated_rms(
    x: T,
    z: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-6,
    gate: str = "silu",
    out: T | None = None,
    stream: object = None,
    impl: str | None = None,
) -> T:
    """out = x * rsqrt(mean(x^2) + eps) * weight * silu(z), rounded once at the end.

    x, z, out [rows, D] or [tokens, heads, D], each with its own strides and dtype; out may be x
    weight    [D]
    gate      "silu" or "sigmoid"
    """
    call = traced("norm_gated_rms") if compiling() else _core.norm_gated_rms
    return call(x, z, weight, eps, gate, out, stream, impl)


for _function in (gated_rms,):
    _core.shorten(_function, f"norm_{_function.__name__}", ())
