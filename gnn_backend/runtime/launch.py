"""Choice of the engine that runs an operator: CUDA, Numba, or the host emulator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from gnn_backend.config import get_config
from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.runtime.aggregation import Forward, Message
from gnn_backend.runtime.random import Dropout

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.device import DeviceEngine

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Saved(NamedTuple):
    """What a forward pass leaves for its backward.

    Attributes
    ----------
    out : Tensor [num_dst, H, D]
    lse : Tensor [num_dst, H], or [num_dst, H, 2] from the device where logits have a term
        As the engine returned it; nobody else reads it.
    out_edge : Tensor [num_dst, H, F], optional
    """

    out: Tensor
    lse: Tensor
    out_edge: Tensor | None = None


class Cotangents(NamedTuple):
    """Gradients of what a forward pass returned, in the operands' dtype.

    Attributes
    ----------
    out : Tensor [num_dst, H, D]
    out_edge : Tensor [num_dst, H, F], optional
    attention : Tensor [E, H], optional
        Of the weights after dropout, in the caller's edge order.
    """

    out: Tensor
    out_edge: Tensor | None = None
    attention: Tensor | None = None


class Engine(Protocol):
    """The softmax-weighted passes, on one target.

    ``operands`` holds what was given, under the functor's names; edge operands, returned weights
    and gradients of edge operands are in the caller's edge order.
    """

    def softmax_forward(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        dropout: Dropout | None = None,
        *,
        aggregate: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weighted sums, log-sum-exp and, with ``aggregate``, weighted sums of edge features."""
        ...

    def softmax_backward(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        saved: Saved,
        cotangents: Cotangents,
        needs: frozenset[str],
        dropout: Dropout | None = None,
    ) -> dict[str, Tensor]:
        """Gradients of the operands named in ``needs``."""
        ...

    def softmax_weights(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        lse: Tensor,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """Attention weights [E, H] after dropout, in the operands' dtype."""
        ...


@lru_cache(maxsize=64)
def _device_engine(device: torch.device) -> DeviceEngine:
    from gnn_backend.runtime.device import DeviceEngine

    return DeviceEngine(device)


@lru_cache(maxsize=64)
def _device_aggregation(engine: DeviceEngine) -> AggregationEngine:
    from gnn_backend.runtime.sparse.aggregation import DeviceAggregation

    return DeviceAggregation(engine)


def engine_for(device: torch.device, dtype: torch.dtype) -> Engine:
    """The engine for tensors of ``dtype`` on ``device``.

    Raises
    ------
    Unsupported
        ``dtype-float64`` off the Numba target, ``dtype-unsupported``, ``device``.
    """
    if dtype not in _FLOATS:
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
    if dtype not in _FLOATS:
        raise Unsupported("dtype-unsupported", str(dtype))
    if device.type not in ("cpu", "cuda"):
        raise Unsupported("device", str(device))
    if device.type == "cpu" and get_config().cpu_target != "emulator":
        raise Unsupported("cpu-operators", "the sparse operators are CUDA kernels")
    return _device_engine(device)


class EdgeEngine(Protocol):
    """Dot products of the ends of edges and weighted sums of their rows, on the Numba target."""

    def edge_dots(
        self, functor: Functor, graph: Graph, x_src: Tensor, x_dst: Tensor, out: Tensor
    ) -> None:
        """Write dot products [E, H]; the functor is that of dot products."""
        ...

    def weighted_sums(
        self, graph: Graph, weights: Tensor, table: Tensor, *, reverse: bool
    ) -> Tensor:
        """Weighted sums of the rows of the edges' far ends."""
        ...


def numba_edges(device: torch.device, dtype: torch.dtype) -> EdgeEngine | None:
    """What answers for CPU tensors on the Numba target; None where the sparse operators may."""
    if device.type != "cpu" or get_config().cpu_target != "numba" or dtype not in _FLOATS:
        return None
    from gnn_backend.runtime import cpu_edges

    return cpu_edges


class AggregationEngine(Protocol):
    """Aggregation of messages, on one target.

    It computes the primitives ``sum``, ``square`` (sum of squares), ``max``, ``min``, ``mul``
    and ``softmax``; one with an attribute ``reductions`` also those named there, from and to the
    operands' dtype.
    """

    def aggregate_forward(
        self,
        graph: Graph,
        message: Message,
        wanted: tuple[str, ...],
        *,
        first: bool,
        nan_wins: bool,
        temperature: Tensor | float | None,
        save: bool,
    ) -> Forward:
        """One pass over the neighbours; ``save`` what backward wants."""
        ...

    def aggregate_backward(
        self,
        graph: Graph,
        message: Message,
        forward: Forward,
        grads: dict[str, Tensor],
        *,
        first: bool,
        nan_wins: bool,
        temperature: Tensor | float | None,
        needs_x: bool,
        needs_edge: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of x, of the edges' operand in the caller's order, and of the temperature."""
        ...


def aggregation_engine(device: torch.device, dtype: torch.dtype) -> AggregationEngine:
    """The engine that aggregates messages of ``dtype`` on ``device``.

    Raises
    ------
    Unsupported
        ``dtype-unsupported``, ``device``.
    """
    if device.type == "cpu" and get_config().cpu_target == "numba" and dtype in _FLOATS:
        from gnn_backend.runtime import cpu_aggregation

        return cpu_aggregation
    return _device_aggregation(sparse_engine(device, dtype))
