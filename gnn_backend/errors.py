"""Exceptions raised by this package, and the one builder of their messages."""

from __future__ import annotations


class GNNBackendError(Exception):
    """Base class of every error that this package raises on purpose."""


class InvalidArgument(GNNBackendError, ValueError):
    """An argument has the wrong shape, dtype, device or value."""


class Unsupported(GNNBackendError, NotImplementedError):
    """A valid request that has no fused path; ``reason`` is a code of ``reasons.REASONS``."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class StrictFallbackError(GNNBackendError, RuntimeError):
    """A call would have fallen back to the stock layer while ``mode="strict"``."""


class VerificationError(GNNBackendError, AssertionError):
    """``mode="verify"`` found a difference between the fused and the stock layer."""


class KernelCompileError(GNNBackendError, RuntimeError):
    """A kernel did not compile; ``log`` is the compiler's own output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log


def invalid(
    argument: str, problem: str, got: object, expected: object, fix: str = ""
) -> InvalidArgument:
    """Build the standard message: what is wrong, what was got, what is accepted, what to do."""
    message = f"{argument}: {problem}; got {got}, expected {expected}"
    return InvalidArgument(f"{message}. {fix}" if fix else f"{message}.")
