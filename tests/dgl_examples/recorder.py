"""Losses of a script, seen from outside, and random numbers that are the same on every device.

While a :class:`Recorder` is entered,

- every ``backward`` of a tensor records its value and the time;
- ``dropout``, ``randperm``, ``randint``, ``rand``, ``randn``, ``uniform_`` and ``normal_`` draw
  from the CPU's generator and move what they drew, unless the caller brings a generator;
- without ``dropout``, nothing is dropped;
- with ``cuda_is_cpu``, tensors and graphs that are sent to CUDA stay on the CPU.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch


class Recorder(contextlib.ExitStack):
    """Records losses; see the module's description.

    Attributes
    ----------
    losses : list of float
        Of each ``backward``.
    moments : list of float
        Seconds since the first of them.
    """

    def __init__(self, *, cuda_is_cpu: bool = False, dropout: bool = True) -> None:
        super().__init__()
        self.cuda_is_cpu, self.dropout = cuda_is_cpu, dropout
        self.losses: list[float] = []
        self.moments: list[float] = []

    def __enter__(self) -> Recorder:
        super().__enter__()
        self._replace(torch.Tensor, "backward", self._recording)
        self._replace(torch.nn.functional, "dropout", self._dropping)
        for name in ("randperm", "randint", "rand", "randn"):
            self._replace(torch, name, drawing)
        for name in ("uniform_", "normal_"):
            self._replace(torch.Tensor, name, filling)
        if self.cuda_is_cpu:
            import dgl

            self._replace(torch.Tensor, "to", _staying)
            self._replace(dgl.DGLGraph, "to", _staying)
        return self

    def _replace(self, owner: Any, name: str, replacement: Callable[[Any], Any]) -> None:
        made = replacement(getattr(owner, name))
        self.enter_context(mock.patch.object(owner, name, made))

    def _dropping(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        return dropout if self.dropout else lambda input, *args, **kwargs: input

    def _recording(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.losses.append(float(loss.detach()))  # waits for the device
            self.moments.append(time.perf_counter())
            return stock(loss, *args, **kwargs)

        return backward


def dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """``torch.nn.functional.dropout`` with a mask drawn on the CPU."""
    if not training or p == 0:
        return input
    kept = (torch.rand(input.shape) >= p).to(input.device)
    scaled = kept.to(input.dtype) / (1 - p) if p < 1 else kept.to(input.dtype)
    return input.mul_(scaled) if inplace else input * scaled


def _on_cuda(device: Any) -> bool:
    """Whether a ``device`` argument names CUDA; an integer is one of its devices."""
    if device is None:
        return False
    return isinstance(device, int) or torch.device(device).type == "cuda"


def drawing(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a tensor of random numbers, on the CPU first."""

    def draw(*args: Any, device: Any = None, generator: Any = None, **kwargs: Any) -> Any:
        if generator is not None or not _on_cuda(device):
            return stock(*args, device=device, generator=generator, **kwargs)
        return stock(*args, **kwargs).to(device)

    return draw


def filling(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method that fills a tensor with random numbers, on the CPU first."""

    def fill(self: torch.Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        if generator is not None or not self.is_cuda:
            return stock(self, *args, generator=generator, **kwargs)
        host = torch.empty(self.shape, dtype=self.dtype)
        return self.copy_(stock(host, *args, **kwargs))

    return fill


def _staying(stock: Callable[..., Any]) -> Callable[..., Any]:
    """``to`` that takes CUDA for the CPU."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(_stay(arg) for arg in args)
        return stock(self, *args, **{key: _stay(value) for key, value in kwargs.items()})

    return to


def _stay(value: Any) -> Any:
    return "cpu" if isinstance(value, torch.device) and value.type == "cuda" else value
