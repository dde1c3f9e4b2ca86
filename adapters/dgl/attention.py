"""What DGL's attention layers have in common: which calls are eligible, and their structure."""

from __future__ import annotations

from typing import Any

import torch
from dgl import DGLGraph
from dgl.heterograph import DGLBlock
from torch import Tensor, nn

from gnn_backend.adapters.dgl.graph import entry, unsupported_reason
from gnn_backend.config import get_config
from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.layers.projection import projection_of, watched
from gnn_backend.ops.projected_attention import Projection
from gnn_backend.runtime.selection import MAX_HEAD_DIM

LINEAR = "torch.nn.modules.linear.Linear"
PLAIN_TENSORS = (Tensor, nn.Parameter)


def modules_reason(conv: Any) -> str | None:
    """Reason code if the layer's dropout, leaky-relu or width is not what a kernel computes."""
    drop, leaky_relu = conv.attn_drop, conv.leaky_relu
    if type(drop) is not nn.Dropout or type(leaky_relu) is not nn.LeakyReLU:
        return "parametrized"
    # Hooks want the edge-wise values that are never written.
    if watched(drop) or watched(leaky_relu):
        return "hooks"
    if conv._num_heads < 1 or conv._out_feats < 1:
        return "empty"
    # Known before dropout draws, so that stock draws from the same random state.
    return "head-dim" if conv._out_feats > MAX_HEAD_DIM else None


def dropout_of(conv: Any) -> float:
    """Probability that this call drops an attention weight."""
    drop = conv.attn_drop
    return float(drop.p) if drop.training else 0.0


def feature_reason(feat: Any, parameter: Tensor, *, flat: bool = False) -> str | None:
    """Reason code why features have no fused path beside a parameter of the layer.

    Parameters
    ----------
    feat : Tensor or tuple of Tensor
    parameter : Tensor
    flat : bool
        Whether rows must be vectors.
    """
    parts = feat[:2] if isinstance(feat, tuple) else (feat,)
    for part in (*parts, parameter):
        if not isinstance(part, Tensor):
            return "input-form"
        if not (part.is_cpu or part.is_cuda):
            return "device"
        if part.device != parameter.device:
            return "device-mixed"
        if type(part) not in PLAIN_TENSORS:
            return "subclass"
        if flat and part is not parameter and part.dim() != 2:
            return "input-form"
    if torch.is_autocast_enabled(parameter.device.type):
        # The projections come out in 16 bits and the parameters are not cast, which DGL's
        # own message passing refuses unless the whole layer is in 16 bits.
        projected = torch.get_autocast_dtype(parameter.device.type)
        if parameter.dtype not in (projected, torch.float64):
            return "dtype-mixed"
    return None


def graph_reason(graph: Any, device: torch.device) -> str | None:
    """Reason code why a graph has no fused path beside features on ``device``, or None."""
    if type(graph) not in (DGLGraph, DGLBlock):
        return "graph-type"
    reason = unsupported_reason(graph)
    if reason is None and graph.device != device:
        return "device-mixed"
    least = get_config().min_edges
    if reason is None and least > 0 and graph.num_edges() < least:
        return "too-small"
    return reason


def structure_of(conv: Any, graph: DGLGraph) -> Graph:
    """The graph's Graph.

    Raises
    ------
    InvalidArgument
        A destination has no in-edges, which the layer does not allow.
    """
    cached = entry(graph._graph)
    structure = cached.build(graph._graph)
    if not conv._allow_zero_in_degree and cached.zero_in_degree(structure):
        raise invalid(
            "graph",
            "a destination has no in-edges",
            structure,
            "an in-edge for every destination, or allow_zero_in_degree=True",
        )
    return structure


def same_dtype(*tensors: Tensor | None) -> bool:
    """Whether DGL's message passing takes these together."""
    return len({t.dtype for t in tensors if t is not None}) == 1


def as_column(found: Any) -> Any:
    """A result with its weights [E, H] as DGL returns them, [E, H, 1]."""
    return (found[0], found[1].unsqueeze(-1))


def overwrites(graph: DGLGraph) -> bool:
    """Whether sources and destinations share a frame, where stock lets the latter's features win.

    Given a pair, layers that write both under one name then read the destinations' at both ends.
    """
    return not graph.is_block and len(graph.ntypes) == 1


def projected_pair(
    conv: Any, graph: DGLGraph, h_src: Tensor, h_dst: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Projected sources and destinations [N, H, D] of a layer with one ``fc`` or one each."""
    shape = (-1, conv._num_heads, conv._out_feats)
    if h_dst is None:
        x_src = conv.fc(h_src).view(shape)
        return x_src, x_src[: graph.number_of_dst_nodes()] if graph.is_block else x_src
    to_src, to_dst = linears_of(conv, h_dst)
    return to_src(h_src).view(shape), to_dst(h_dst).view(shape)


def projections(
    linears: tuple[Any, Any],
    graph: DGLGraph,
    structure: Graph,
    features: tuple[Tensor, Tensor | None],
    like: Tensor,
    shape: tuple[int, int],
    residual: Tensor | None = None,
) -> tuple[Projection, Projection | None] | None:
    """A layer's projections, if they can be made part of attention; None: call the modules.

    Parameters
    ----------
    linears : pair of torch.nn.Module
        Of the sources and of the destinations; the latter None if these are the first rows of
        the projected sources.
    graph : DGLGraph
    structure : Graph
        Of the graph.
    features : pair of Tensor
        Of the sources and of the destinations; the latter None if these are the former's first.
    like : Tensor
        A parameter, of the dtype that all must have.
    shape : (heads, dim)
    residual : Tensor, optional
        What is added to the result [num_dst, heads, dim].
    """
    h_src, h_dst = features
    for table in features:
        if table is not None and not (
            table.dtype == like.dtype and table.dim() == 2 and table.layout is torch.strided
        ):
            return None
    if h_dst is None and not graph.is_block and structure.num_dst != h_src.shape[0]:
        return None
    if residual is not None and (
        residual.shape != (structure.num_dst, *shape) or residual.dtype != like.dtype
    ):
        return None
    width = shape[0] * shape[1]
    src = projection_of(linears[0], LINEAR, like.dtype, width)
    if src is None or linears[1] is None:
        return None if src is None else (src, None)
    dst = projection_of(linears[1], LINEAR, like.dtype, width)
    return None if dst is None else (src, dst)


def linears_of(conv: Any, h_dst: Tensor | None) -> tuple[Any, Any]:
    """The modules that a layer with one ``fc`` or one each calls, as :func:`projections` asks."""
    if h_dst is None:
        return conv.fc, None
    return (conv.fc_src, conv.fc_dst) if hasattr(conv, "fc_src") else (conv.fc, conv.fc)


def plain_weight(linear: Any, features: Tensor, width: int) -> Tensor | None:
    """Weight of a linear module without bias that need not be called, or None."""
    found = projection_of(linear, LINEAR, features.dtype, width)
    if found is None or found.bias is not None or found.weight.shape[1] != features.shape[-1]:
        return None
    return found.weight
