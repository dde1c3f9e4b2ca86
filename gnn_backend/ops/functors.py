"""One row a functor: what an edge computes, on every target.

A functor names its operands and gives a plain-torch twin, the CUDA header and type, and the
Numba source. The traversal templates know nothing about the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows

Twin = Callable[[Graph, Mapping[str, Tensor], Mapping[str, float]], Tensor]


@dataclass(frozen=True)
class Functor:
    """Description of an edge computation.

    Attributes
    ----------
    name : str
        Key in ``FUNCTORS``; the Numba source is found by it.
    src, dst, params, scalars : tuple of str
        Operand names: node tables read at the source and at the destination [N, H, D],
        parameters [H, D], and numbers.
    twin : callable (graph, operands, scalars) -> Tensor
        The same result in plain differentiable torch, in the operands' dtype; the oracle of
        tests and the graph of second derivatives.
    cuda_header, cuda_type : str
        Where the device functor is defined, and its template's name.
    """

    name: str
    src: tuple[str, ...]
    dst: tuple[str, ...]
    params: tuple[str, ...]
    scalars: tuple[str, ...]
    twin: Twin
    cuda_header: str
    cuda_type: str

    @property
    def operands(self) -> tuple[str, ...]:
        return (*self.src, *self.dst, *self.params)


def softmax_aggregate(graph: Graph, logits: Tensor, values: Tensor) -> Tensor:
    """Softmax of logits [E, H] over the in-edges of each destination, weighted sum of values.

    Edges are in ``by_dst`` order; values [E, H, D]. Rows without in-edges are 0.
    """
    heads = logits.shape[1]
    rows = expand_rows(graph.by_dst.indptr, graph.num_edges).long()
    index = rows[:, None].expand(-1, heads)
    top = logits.detach().new_full((graph.num_dst, heads), float("-inf"))
    top = top.scatter_reduce(0, index, logits.detach(), "amax", include_self=True)
    weights = (logits - top[rows]).exp()
    total = weights.new_zeros(graph.num_dst, heads).index_add(0, rows, weights)
    alpha = weights / total[rows]
    out = values.new_zeros(graph.num_dst, *values.shape[1:])
    return out.index_add(0, rows, alpha.unsqueeze(-1) * values)


def _gatv2_twin(
    graph: Graph, operands: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> Tensor:
    x_src, x_dst, att = operands["x_src"], operands["x_dst"], operands["att"]
    source = graph.by_dst.indices.long()
    rows = expand_rows(graph.by_dst.indptr, graph.num_edges).long()
    values = x_src[source]
    hidden = torch.nn.functional.leaky_relu(values + x_dst[rows], scalars["negative_slope"])
    return softmax_aggregate(graph, (hidden * att).sum(-1), values)


FUNCTORS: dict[str, Functor] = {
    "gatv2": Functor(
        name="gatv2",
        src=("x_src",),
        dst=("x_dst",),
        params=("att",),
        scalars=("negative_slope",),
        twin=_gatv2_twin,
        cuda_header="functors/gatv2.cuh",
        cuda_type="GATv2",
    ),
}
