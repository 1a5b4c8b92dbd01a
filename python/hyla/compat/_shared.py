"""What the drop-in functions share: errors under the caller's own argument names, staging."""

from __future__ import annotations

import functools
from typing import Callable, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor

from ..errors import InvalidArgument, Unsupported

P = ParamSpec("P")
R = TypeVar("R")


class Refused(InvalidArgument, AssertionError):
    """An InvalidArgument where the other library asserts, for callers that catch either."""


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Errors about hyla's arguments become errors about those of the drop-in function."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except InvalidArgument as error:
                name = names.get(error.argument)
                if name is None:
                    raise
                raise InvalidArgument(name, error.expected, error.got) from None

        return call

    return decorate


def refuse(argument: str, expected: str, got: object) -> NoReturn:
    raise Refused(argument, expected, str(got))


def unsupported(message: str) -> Unsupported:
    return Unsupported(message, [])


def shape_of(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def inner_contiguous(tensor: Tensor) -> Tensor:
    """An input that hyla can read: the same memory where that is possible."""
    strides = tensor.stride()
    if strides[-1] == 1 or tensor.shape[-1] < 2:
        return tensor
    if len(strides) != 4 or strides[1] != 1 or tensor.device.type != "cpu":
        return tensor.contiguous()
    # Tokens innermost, as a convolution over channels leaves them: torch transposes matrices three
    # times as fast as it copies the same numbers in four dimensions.
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    for row, source in zip(copy, tensor):
        row.flatten(1).copy_(source.flatten(1))
    return copy


def operand(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A query, key or value in the dtype of the call."""
    return inner_contiguous(tensor if tensor.dtype == dtype else tensor.to(dtype))


def uniform_offsets(rows: int, tokens: int, device: torch.device) -> Tensor:
    """The cu_seqlens of `rows` sequences of `tokens` each."""
    if tokens == 0:
        return torch.zeros(rows + 1, dtype=torch.int64, device=device)
    return torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int64, device=device)


def offsets_and_lengths(
    offsets: Tensor, on_host: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """cu_seqlens on the device of the call, and the lengths where the caller has them on the CPU."""
    if device.type == "cpu":
        return offsets, None
    if on_host is None and offsets.device.type == "cpu":
        on_host = offsets
    if on_host is None or on_host.device.type != "cpu" or on_host.dim() != 1:
        return offsets, None
    return offsets.to(device, non_blocking=True), on_host.diff()


def refuse_gradients(library: str, **tensors: Tensor | None) -> None:
    """hyla computes no gradients; a call that would record one is refused by name."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise InvalidArgument(
                name,
                f"a tensor that needs no gradient, because {library} is forward only "
                "(call it under torch.no_grad(), or with .detach())",
                "one with requires_grad=True",
            )
