"""One row a functor: what an edge computes, on every target.

A functor names its operands and gives its score in plain torch, the CUDA header and type, and
the Numba source. The traversal templates know nothing about the formula; neither does
:mod:`gnn_backend.ops.twins`, which turns a score into attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import leaky_relu

from gnn_backend.graph import Graph
from gnn_backend.ops.twins import Edges, softmax_aggregate, softmax_attention_twin

Score = Callable[[Edges, Mapping[str, Tensor], Mapping[str, float]], Tensor]


@dataclass(frozen=True)
class Functor:
    """Description of an edge computation.

    Attributes
    ----------
    name : str
        Key in ``FUNCTORS``; the Numba source is found by it.
    src, dst, params, scalars : tuple of str
        Operand names: node tables read at the source and at the destination [N, H, D] or
        [N, H], parameters [H, D], and numbers.
    value : str
        The source table whose rows are summed, [N, H, D].
    score : callable (edges, operands, scalars) -> Tensor [E, H]
        The logits in plain differentiable torch, in ``by_dst`` order.
    cuda_header, cuda_type : str
        Where the device functor is defined, and its template's name.
    edge : tuple of str
        Optional operands, a row an edge in the caller's order: [E, H, D] or [E, H];
        ``edge_features`` is [E, F] or [E, H, F].
    edge_dst : tuple of str
        Optional tables read at the destination [num_dst, H, F] beside ``edge_features``.
    """

    name: str
    src: tuple[str, ...]
    dst: tuple[str, ...]
    params: tuple[str, ...]
    scalars: tuple[str, ...]
    value: str
    score: Score
    cuda_header: str
    cuda_type: str
    edge: tuple[str, ...] = ()
    edge_dst: tuple[str, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands that every call has."""
        return (*self.src, *self.dst, *self.params)

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the operands that a call may have."""
        return (*self.edge, *self.edge_dst)

    def twin(
        self, graph: Graph, operands: Mapping[str, Tensor], scalars: Mapping[str, float]
    ) -> Tensor:
        """The output in plain differentiable torch, in the operands' dtype: the oracle of tests."""
        return softmax_attention_twin(self.score, self.value, graph, operands, scalars).out


def _gatv2(edges: Edges, operands: Mapping[str, Tensor], scalars: Mapping[str, float]) -> Tensor:
    hidden = operands["x_src"][edges.src] + operands["x_dst"][edges.dst]
    if "edge" in operands:
        hidden = hidden + edges.rows(operands["edge"])
    return (leaky_relu(hidden, scalars["negative_slope"]) * operands["att"]).sum(-1)


def _gat(edges: Edges, operands: Mapping[str, Tensor], scalars: Mapping[str, float]) -> Tensor:
    logits = operands["el"][edges.src] + operands["er"][edges.dst]
    if "edge_logit" in operands:
        logits = logits + edges.rows(operands["edge_logit"])
    return leaky_relu(logits, scalars["negative_slope"])


def _supergat(edges: Edges, operands: Mapping[str, Tensor], scalars: Mapping[str, float]) -> Tensor:
    product = (operands["x_src"][edges.src] * operands["x_dst"][edges.dst]).sum(-1)
    ends = operands["el"][edges.src] + operands["er"][edges.dst]
    logits = ends * product.sigmoid()
    if scalars["scale"]:  # 0 times an infinite product would be NaN
        logits = logits + scalars["scale"] * product
    return leaky_relu(logits, scalars["negative_slope"])


def _scaled_dot(
    edges: Edges, operands: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> Tensor:
    product = (operands["x_src"][edges.src] * operands["q_dst"][edges.dst]).sum(-1)
    return (operands["el"][edges.src] + operands["er"][edges.dst]) * product


def _dot(edges: Edges, operands: Mapping[str, Tensor], scalars: Mapping[str, float]) -> Tensor:
    logits = (operands["q_dst"][edges.dst] * operands["k_src"][edges.src]).sum(-1)
    if "edge_query" in operands:
        features = edges.rows(operands["edge_features"])
        features = features.unsqueeze(1) if features.dim() == 2 else features
        logits = logits + (operands["edge_query"][edges.dst] * features).sum(-1)
    logits = scalars["scale"] * logits
    return logits + edges.rows(operands["edge_bias"]) if "edge_bias" in operands else logits


FUNCTORS: dict[str, Functor] = {
    functor.name: functor
    for functor in (
        Functor(
            name="gatv2",
            src=("x_src",),
            dst=("x_dst",),
            params=("att",),
            scalars=("negative_slope",),
            value="x_src",
            score=_gatv2,
            cuda_header="functors/gatv2.cuh",
            cuda_type="GATv2",
            edge=("edge",),
        ),
        Functor(
            name="gat",
            src=("x_src", "el"),
            dst=("er",),
            params=(),
            scalars=("negative_slope",),
            value="x_src",
            score=_gat,
            cuda_header="functors/gat.cuh",
            cuda_type="GAT",
            edge=("edge_logit", "edge_features"),
        ),
        Functor(
            name="supergat",
            src=("x_src", "el"),
            dst=("x_dst", "er"),
            params=(),
            scalars=("negative_slope", "scale"),
            value="x_src",
            score=_supergat,
            cuda_header="functors/supergat.cuh",
            cuda_type="SuperGAT",
        ),
        Functor(
            name="scaled_dot",
            src=("x_src", "el"),
            dst=("q_dst", "er"),
            params=(),
            scalars=(),
            value="x_src",
            score=_scaled_dot,
            cuda_header="functors/scaled_dot.cuh",
            cuda_type="ScaledDot",
        ),
        Functor(
            name="dot",
            src=("k_src", "v_src"),
            dst=("q_dst",),
            params=(),
            scalars=("scale",),
            value="v_src",
            score=_dot,
            cuda_header="functors/dot.cuh",
            cuda_type="Dot",
            edge=("edge_bias", "edge_features"),
            edge_dst=("edge_query",),
        ),
    )
}

__all__ = ["FUNCTORS", "Functor", "softmax_aggregate"]
