"""The table of DGL's packed functions that are answered on the device.

A function gets the arguments of the packed function as DGL's Python code passes them, and returns
what that code reads of the result. It may return ``NotImplemented`` to be answered by a detour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

TABLE: dict[str, Callable[..., Any]] = {}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def native(*names: str) -> Callable[[_Function], _Function]:
    """Answer the packed functions of these names, given without ``_CAPI_DGL``."""

    def register(function: _Function) -> _Function:
        for name in names:
            TABLE[f"_CAPI_DGL{name}"] = function
        return function

    return register
