"""DGL's sparse Adam where embeddings are on the CPU and their gradients on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class WaitForCopies(TorchFunctionMode):
    """Copies to the CPU end before they return, also where they were asked not to wait."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is Tensor.to and kwargs.get("non_blocking") and _to_the_cpu(args[1:], kwargs):
            kwargs["non_blocking"] = False
        return function(*args, **kwargs)


def _to_the_cpu(args: Any, kwargs: dict[str, Any]) -> bool:
    target = kwargs.get("device", args[0] if args else None)
    if isinstance(target, Tensor):
        target = target.device
    return isinstance(target, (torch.device, str)) and torch.device(target).type == "cpu"


def update(stock: Any, self: Any, idx: Any, grad: Any, emb: Any) -> None:
    """``SparseAdam.update``: the CPU reads what comes from the device once it is there.

    DGL copies the step into page-locked memory without waiting and then lets the stream wait for
    the copy, not the CPU, which subtracts whatever the memory holds by then.
    """
    if grad.device == emb.weight.device:
        return stock(self, idx, grad, emb)
    with WaitForCopies():
        return stock(self, idx, grad, emb)
