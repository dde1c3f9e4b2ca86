"""Choice of the engine that runs an operator: CUDA, Numba, or the host emulator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from gnn_backend.config import get_config
from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.device import DeviceEngine


class Engine(Protocol):
    """The softmax-weighted passes, on one target."""

    def softmax_forward(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
    ) -> tuple[Tensor, Tensor]: ...

    def softmax_backward(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        needs: frozenset[str],
    ) -> dict[str, Tensor]: ...


@lru_cache(maxsize=64)
def _device_engine(device: torch.device) -> DeviceEngine:
    from gnn_backend.runtime.device import DeviceEngine

    return DeviceEngine(device)


def engine_for(device: torch.device, dtype: torch.dtype) -> Engine:
    """The engine for tensors of ``dtype`` on ``device``.

    Raises
    ------
    Unsupported
        ``dtype-float64`` off the Numba target, ``dtype-unsupported``, ``device``.
    """
    if dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        raise Unsupported("dtype-unsupported", str(dtype))
    if device.type == "cpu" and get_config().cpu_target == "numba":
        from gnn_backend.runtime import cpu

        return cpu
    if device.type not in ("cpu", "cuda"):
        raise Unsupported("device", str(device))
    if dtype == torch.float64:
        raise Unsupported("dtype-float64", "the device kernels accumulate in float32")
    return _device_engine(device)


def sparse_engine(device: torch.device, dtype: torch.dtype) -> DeviceEngine:
    """The engine of the sparse operators for tensors of ``dtype`` on ``device``.

    Raises
    ------
    Unsupported
        ``dtype-unsupported``, ``device``, and ``cpu-operators`` for CPU tensors unless they run
        in the emulator.
    """
    if dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        raise Unsupported("dtype-unsupported", str(dtype))
    if device.type not in ("cpu", "cuda"):
        raise Unsupported("device", str(device))
    if device.type == "cpu" and get_config().cpu_target != "emulator":
        raise Unsupported("cpu-operators", "the sparse operators are CUDA kernels")
    return _device_engine(device)
