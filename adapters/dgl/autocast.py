"""Autocast around DGL's operators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def without_autocast(tensor: Tensor) -> Iterator[Callable[[Any], Any]]:
    """Leave autocast; gives the cast that it would have made."""
    if not torch.is_autocast_enabled(tensor.device.type):
        yield lambda value: value
        return
    dtype = torch.get_autocast_dtype(tensor.device.type)
    with torch.autocast(tensor.device.type, enabled=False):
        yield lambda value: _cast(value, dtype)
