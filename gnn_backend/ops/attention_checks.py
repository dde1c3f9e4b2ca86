"""What the attention operators accept: shapes, dtypes, devices and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from gnn_backend.errors import Unsupported, invalid
from gnn_backend.graph import Graph

Shapes = Mapping[str, tuple[int | str, ...]]

MAX_WIDTH = 1024  # of a row that kernels hold in registers


def check_graph(graph: object) -> None:
    """Refuse what is no Graph."""
    if not isinstance(graph, Graph):
        raise invalid("graph", "not a graph", type(graph).__name__, "a gnn_backend.graph.Graph")


def check_operands(
    graph: Graph, operands: Mapping[str, Tensor], shapes: Shapes, first: str
) -> None:
    """Refuse operands that do not fit each other or the graph.

    Parameters
    ----------
    graph : Graph
    operands : mapping of str to Tensor
        Those that were given.
    shapes : mapping of str to tuple
        Expected shapes: of numbers, and of letters that stand for the sizes of ``first``
        (``H``, ``D``) or, for those not in it (``F``), of the operand that has them first.
    first : str
        The operand [rows, H, D] that the others are compared with.

    Raises
    ------
    InvalidArgument
        Naming the operand.
    """
    for name, operand in operands.items():
        if not isinstance(operand, Tensor):
            raise invalid(name, "not a tensor", type(operand).__name__, "a torch.Tensor")
    leading = operands[first]
    if leading.dim() != 3:
        expected = f"[{shapes[first][0]}, heads, dim]"
        raise invalid(first, "wrong shape", tuple(leading.shape), expected)
    sizes = {"H": leading.shape[1], "D": leading.shape[2]}
    for name, tensor in operands.items():
        _check_shape(name, tensor, shapes[name], sizes)
        if tensor.dtype != leading.dtype:
            raise invalid(name, "mixed dtypes", tensor.dtype, f"{leading.dtype}, as {first}")
        if tensor.device != graph.device:
            raise invalid(name, "not on the graph's device", tensor.device, graph.device)
    if not leading.is_floating_point():
        raise invalid(first, "wrong dtype", leading.dtype, "a floating-point dtype")


def _check_shape(
    name: str, tensor: Tensor, shape: tuple[int | str, ...], sizes: dict[str, int]
) -> None:
    got = tuple(tensor.shape)
    if len(got) == len(shape):
        for size, wanted in zip(got, shape, strict=True):
            if isinstance(wanted, str):
                sizes.setdefault(wanted, size)
    expected = tuple(sizes.get(n, n) if isinstance(n, str) else n for n in shape)
    if got != expected:
        raise invalid(name, "wrong shape", got, expected)


def edge_features_shape(graph: Graph, features: Tensor | None) -> tuple[int | str, ...]:
    """[E, F], or [E, H, F] where the heads have features of their own."""
    shared = isinstance(features, Tensor) and features.dim() == 2
    return (graph.num_edges, "F") if shared else (graph.num_edges, "H", "F")


def check_edge_width(features: Tensor) -> None:
    """Raise Unsupported where edge features are wider than kernels take."""
    if not 1 <= features.shape[-1] <= MAX_WIDTH:
        raise Unsupported("edge-dim", f"edge features of width {features.shape[-1]}")


def check_number(name: str, value: object) -> None:
    """Refuse what is no finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise invalid(name, "not a finite number", value, "a finite float")


def check_probability(name: str, value: object) -> None:
    """Refuse what is no probability."""
    if not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise invalid(name, "not a probability", value, "a number from 0 to 1")
