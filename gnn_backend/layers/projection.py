"""Linear modules that are nothing but a weight and a bias, which a fused layer can apply itself."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from gnn_backend.ops.projected_attention import Projection

_PLAIN_TENSORS = (Tensor, nn.Parameter)
_call = nn.Module.__call__


def projection_of(module: Any, cls: str, dtype: torch.dtype, width: int) -> Projection | None:
    """Weight and bias of a linear module, or None where calling it may do something else.

    None for a subclass or a parametrized module, one with hooks, a replaced ``forward``, a
    weight that is not yet initialised, of another dtype, shape or tensor subclass (quantized,
    sharded), and under autocast: such a module has to be called.

    Parameters
    ----------
    module : torch.nn.Module
        With parameters ``weight`` [out, in] and ``bias`` [out] or None.
    cls : str
        The host's linear class, ``module.Name``.
    dtype : torch.dtype
        Of the features.
    width : int
        Of the projected features.
    """
    found: Any = type(module)
    if not _is_stock(found, getattr(found, "forward", None), cls):
        return None
    if watched(module) or nn.Module.__call__ is not _call:
        return None
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if weight is None or type(weight) not in _PLAIN_TENSORS or weight.dtype is not dtype:
        return None
    if weight.dim() != 2 or weight.shape[0] != width:
        return None
    if bias is not None and (
        type(bias) not in _PLAIN_TENSORS or bias.dtype is not dtype or bias.shape != (width,)
    ):
        return None
    if torch.is_autocast_enabled(weight.device.type):
        return None
    return Projection(weight, bias)


@functools.lru_cache(maxsize=64)
def _is_stock(cls: Any, forward: Any, name: str) -> bool:
    """Whether a class has that name and ``forward`` is the one that it was written with."""
    written = (cls.__module__, f"{cls.__qualname__}.forward")
    return (
        f"{cls.__module__}.{cls.__qualname__}" == name
        and (forward.__module__, forward.__qualname__) == written
        and not hasattr(forward, "__wrapped__")
    )


def watched(module: nn.Module) -> bool:
    """Whether a hook, or a ``forward`` of its own, sees or changes what goes through a module."""
    return bool(
        module._forward_pre_hooks
        or module._forward_hooks
        or module._backward_pre_hooks
        or module._backward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_forward_hooks
        or torch_module._global_backward_pre_hooks
        or torch_module._global_backward_hooks
        or "forward" in module.__dict__
    )
