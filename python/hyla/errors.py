"""The exceptions of hyla. The text of each starts with the name of the argument it is about."""

from __future__ import annotations

__all__ = ["Error", "InvalidArgument", "Unsupported", "WorkspaceTooSmall", "DeviceError"]


class Error(Exception):
    """Base of all errors that hyla raises itself; wrong Python types raise TypeError."""


class InvalidArgument(Error, ValueError):
    """An argument breaks a rule of the operation. Nothing has been written."""

    def __init__(self, argument: str, expected: str, got: str) -> None:
        super().__init__(argument, expected, got)
        self.argument = argument
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        return f"{self.argument}: expected {self.expected}, got {self.got}"


class Unsupported(Error, NotImplementedError):
    """The arguments are valid, but no implementation (or not the forced one) takes them."""

    def __init__(self, message: str, candidates: list[tuple[str, str, str]]) -> None:
        super().__init__(message, candidates)
        self.candidates = candidates

    def __str__(self) -> str:
        return str(self.args[0])


class WorkspaceTooSmall(Error, ValueError):
    """The workspace of the call has fewer bytes than it needs."""

    def __init__(self, required: int, given: int) -> None:
        super().__init__(required, given)
        self.required = required
        self.given = given

    def __str__(self) -> str:
        return f"workspace: expected at least {self.required} bytes, got {self.given}"


class DeviceError(Error, RuntimeError):
    """The CUDA runtime refused something."""

    def __init__(self, message: str, cuda_code: int) -> None:
        super().__init__(message, cuda_code)
        self.cuda_code = cuda_code

    def __str__(self) -> str:
        return str(self.args[0])
