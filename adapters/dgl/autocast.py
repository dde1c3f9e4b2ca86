"""Autocast around DGL's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def cast_if_autocast(stock: Any, *args: Any) -> Any:
    """``_cast_if_autocast_enabled``, whose helper in torch has another form since torch 2.4."""
    if not torch.is_autocast_enabled():
        return args
    return tuple(_cast(arg, torch.get_autocast_dtype("cuda")) for arg in args)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        wanted = value.is_cuda and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if wanted else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtype) for item in value)
    return value


class without_autocast:
    """Leave autocast on a device in a ``with`` block, which gives the cast that it would make."""

    def __init__(self, device: torch.device) -> None:
        self._kind = device.type
        self._left: torch.autocast | None = None

    def __enter__(self) -> Callable[[Any], Any]:
        if not torch.is_autocast_enabled(self._kind):
            return _same
        dtype = torch.get_autocast_dtype(self._kind)
        self._left = torch.autocast(self._kind, enabled=False)
        self._left.__enter__()
        return lambda value: _cast(value, dtype)

    def __exit__(self, *error: Any) -> None:
        if self._left is not None:
            self._left.__exit__(*error)


def _same(value: Any) -> Any:
    return value
