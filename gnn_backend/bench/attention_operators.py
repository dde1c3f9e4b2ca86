"""The attention operators that are measured: their inputs, what they must read, and variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gnn_backend.bench.hosts import Shape
from gnn_backend.errors import invalid
from gnn_backend.graph import Graph

SLOPE = 0.2
DROPOUT = 0.1
EDGE_FEATURES = 16  # raw features an edge, of a variant

Draw = Callable[..., Tensor]  # sizes -> a seeded tensor that wants a gradient
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Variant:
    """An operator with something more on each edge.

    Attributes
    ----------
    inputs : callable (graph, shape, draw) -> dict of str to Tensor
        The edge tensors, and node tensors that go with them.
    options : mapping
        Further arguments of the call.
    """

    inputs: Callable[[Graph, Shape, Draw], Inputs] = lambda graph, shape, draw: {}
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AttentionOperator:
    """One operator.

    Attributes
    ----------
    name, layer : str
        Its name here, and the hosts' layer that is measured beside it.
    function : str
        In :mod:`gnn_backend.ops.attention`.
    forward, both : (int, int)
        How many g1 and g2 forward, and forward and backward together, have to read.
    limits : (float, float or None)
        What forward, and both, should not exceed, in multiples of that in float32.
    inputs : callable (graph, shape, draw) -> dict of str to Tensor
    options : mapping
        Further arguments of the call.
    variants : mapping of str to Variant
    """

    name: str
    layer: str
    function: str
    forward: tuple[int, int]
    both: tuple[int, int]
    limits: tuple[float, float | None]
    inputs: Callable[[Graph, Shape, Draw], Inputs]
    options: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def call(self, graph: Graph, inputs: Mapping[str, Tensor], **options: Any) -> Any:
        """Run the operator."""
        from gnn_backend.ops import attention

        function = getattr(attention, self.function)
        return function(graph, **inputs, **{**self.options, **options})

    def ratios(self) -> dict[str, tuple[str, tuple[int, int], float | None]]:
        """By name of a ratio: the time it divides, (g1, g2) that divide it, and its limit."""
        return {
            f"{timed}_over_{_spelled(counts)}": (timed, counts, limit)
            for timed, counts, limit in (
                ("forward", self.forward, self.limits[0]),
                ("forward_backward", self.both, self.limits[1]),
            )
        }


def _spelled(counts: tuple[int, int]) -> str:
    parts = [f"{n if n > 1 else ''}g{i}" for i, n in enumerate(counts, start=1) if n]
    return "_".join(parts)


def _gatv2(graph: Graph, shape: Shape, draw: Draw) -> Inputs:
    row = shape.heads, shape.dim
    return {
        "x_src": draw(graph.num_src, *row),
        "x_dst": draw(graph.num_dst, *row),
        "att": draw(*row),
    }


def _gat(graph: Graph, shape: Shape, draw: Draw) -> Inputs:
    return {
        "x_src": draw(graph.num_src, shape.heads, shape.dim),
        "el": draw(graph.num_src, shape.heads),
        "er": draw(graph.num_dst, shape.heads),
    }


def _dot(graph: Graph, shape: Shape, draw: Draw) -> Inputs:
    row = shape.heads, shape.dim
    return {
        "q_dst": draw(graph.num_dst, *row),
        "k_src": draw(graph.num_src, *row),
        "v_src": draw(graph.num_src, *row),
    }


def _per_head(name: str) -> Variant:
    return Variant(lambda graph, shape, draw: {name: draw(graph.num_edges, shape.heads)})


def _features(graph: Graph, shape: Shape, draw: Draw) -> Inputs:
    return {
        "edge_features": draw(graph.num_edges, EDGE_FEATURES),
        "edge_query": draw(graph.num_dst, shape.heads, EDGE_FEATURES),
    }


_DROPOUT = Variant(options={"dropout_p": DROPOUT})

OPERATORS = {
    operator.name: operator
    for operator in (
        AttentionOperator(
            "gatv2", "GATv2Conv", "gatv2_attention", (1, 0), (2, 1), (1.3, 1.3), _gatv2,
            {"negative_slope": SLOPE}, {"dropout": _DROPOUT},
        ),
        AttentionOperator(
            "gat", "GATConv", "gat_attention", (1, 0), (3, 0), (1.2, None), _gat,
            {"negative_slope": SLOPE},
            {"dropout": _DROPOUT, "edge_logit": _per_head("edge_logit")},
        ),
        AttentionOperator(
            "dot", "TransformerConv", "dot_attention", (0, 1), (0, 3), (1.3, 1.3), _dot, {},
            {
                "dropout": _DROPOUT,
                "edge_bias": _per_head("edge_bias"),
                "edge_features": Variant(_features, {"edge_aggregate": True}),
            },
        ),
    )
}  # fmt: skip


def operator(name: str) -> AttentionOperator:
    """The operator of that name; raises InvalidArgument where there is none."""
    if name not in OPERATORS:
        raise invalid("operator", "unknown", repr(name), ", ".join(OPERATORS))
    return OPERATORS[name]


def edge_bytes(graph: Graph, variant: Inputs, backward: bool) -> int:
    """Bytes that a variant's own tensors cannot avoid moving.

    Forward reads each edge value once; backward reads it in both of its passes and writes its
    gradient. A pass also reads the ids of the edges, where they are not in CSR order.
    """
    values = sum(
        t.numel() * t.element_size() for t in variant.values() if t.shape[0] == graph.num_edges
    )
    if not values:
        return 0
    passes, moved = (3, 4) if backward else (1, 1)
    ids = 0 if graph.by_dst.edge_ids is None else 4 * graph.num_edges
    return moved * values + passes * ids
