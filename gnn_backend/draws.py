"""Random numbers that are the same on every device: all are drawn from torch's CPU generator."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FACTORIES = frozenset({torch.rand, torch.randn, torch.randint, torch.randperm})
_LIKE = frozenset({torch.rand_like, torch.randn_like, torch.randint_like})
_DROPOUTS = frozenset({torch.dropout, torch.nn.functional.dropout})


def on_the_cpu() -> AbstractContextManager[Any]:
    """Draw what Python code asks a device for on the CPU, inside a ``with`` block.

    Covers torch's functions that make random tensors, and dropout; not in-place draws, nor those
    from a generator that is given. A CPU tensor is drawn as ever.
    """
    return _OnTheCPU()


class _OnTheCPU(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        if func in _FACTORIES and kwargs.get("device") is not None:
            wanted = torch.device(kwargs["device"])
            drawn = func(*args, **{**kwargs, "device": "cpu", "requires_grad": False})
            return drawn.to(wanted).requires_grad_(kwargs.get("requires_grad", False))
        if func in _LIKE and args and not args[0].is_cpu:
            like = torch.empty_like(args[0], device="cpu")
            return func(like, *args[1:], **kwargs).to(args[0].device)
        if func in _DROPOUTS:
            return _dropout(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0 or input.is_cpu:
        return torch.nn.functional.dropout(input, p, training, inplace)
    scale = dropout_scale(input, p).to(input.device)
    return input.mul_(scale) if inplace else input * scale


def dropout_scale(input: Tensor, p: float) -> Tensor:
    """What torch multiplies a CPU tensor of this shape and dtype with in dropout."""
    kept = torch.empty(input.shape, dtype=input.dtype).bernoulli_(1 - p)
    return kept.div_(1 - p) if p < 1 else kept
