"""DGL's ``GraphConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.aggregating import (
    call_reason,
    flat_weight,
    is_scalar_weight,
    source_of,
)
from gnn_backend.adapters.dgl.attention import structure_of
from gnn_backend.layers.graph_conv import graph_conv

NORMS = ("both", "left", "right", "none")


def eligible(
    conv: Any, graph: Any, feat: Any, weight: Any = None, edge_weight: Any = None
) -> str | None:
    """Reason code why this call of ``GraphConv.forward`` has no fused path, or None."""
    x = source_of(graph, feat)
    if x is None:
        return "input-form"
    if edge_weight is not None and not is_scalar_weight(graph, edge_weight):
        return "input-form"
    given = weight if weight is not None else conv.weight
    if weight is not None and conv.weight is not None:
        return "input-form"  # stock says that there are two
    if given is not None and (not isinstance(given, Tensor) or given.dim() != 2):
        return "input-form"
    if given is not None and given.shape[0] != x.shape[-1]:
        return "input-form"
    if isinstance(feat, tuple) and feat[1].dtype != x.dtype:
        return "dtype-mixed"  # stock casts one norm to it
    features = [x] if edge_weight is None else [x, edge_weight]
    return static_reason(conv) or call_reason(
        graph, features, (given, conv.bias), plain_sum=edge_weight is None
    )


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return None if conv._norm in NORMS else "parametrized"


def fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor | tuple[Tensor, Tensor],
    weight: Tensor | None = None,
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Fused ``GraphConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.GraphConv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    feat : Tensor [num_src, *, F] or pair of Tensor
    weight : Tensor [F, D], optional
    edge_weight : Tensor [E] or [E, 1], optional

    Returns
    -------
    Tensor [num_dst, *, D]

    Raises
    ------
    InvalidArgument
        A destination without in-edges that the layer does not allow, or features that do not fit
        the graph; the stock layer has its own error for each.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    structure = structure_of(conv, graph)
    x = feat[0] if isinstance(feat, tuple) else feat
    given = conv.weight if weight is None else weight
    edge = flat_weight(edge_weight)
    out = graph_conv(structure, x, given, conv.bias, norm=conv._norm, edge_weight=edge)
    return conv._activation(out) if conv._activation is not None else out
