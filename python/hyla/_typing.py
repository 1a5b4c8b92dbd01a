"""What the annotations of the package mean."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, Union

__all__ = ["SupportsDLPack", "SupportsCudaArray", "Tensor", "T"]


class SupportsDLPack(Protocol):
    """torch, numpy, jax and cupy arrays."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class SupportsCudaArray(Protocol):
    """numba arrays, for example."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


Tensor = Union[SupportsDLPack, SupportsCudaArray]

T = TypeVar("T", bound=Tensor)
