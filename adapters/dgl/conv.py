"""DGL's ``GATv2Conv``: which calls run fused, and the fused forward.

The seam is the class's ``forward``: class, parameters, ``state_dict`` and pickles stay stock. A
subclass that overrides ``forward`` is reached where it calls ``super().forward``.
"""

from __future__ import annotations

from typing import Any

import torch
from dgl import DGLGraph
from dgl.heterograph import DGLBlock
from torch import Tensor, nn

from gnn_backend.adapters.dgl.graph import entry, unsupported_reason
from gnn_backend.config import get_config
from gnn_backend.errors import Unsupported, invalid
from gnn_backend.graph import Graph
from gnn_backend.layers.gatv2 import gatv2, projected_gatv2
from gnn_backend.layers.projection import projection_of, watched
from gnn_backend.ops.projected_attention import Projection
from gnn_backend.runtime.launch import engine_for

_LINEAR = "torch.nn.modules.linear.Linear"
_PLAIN_TENSORS = (Tensor, nn.Parameter)


def eligible(conv: Any, graph: Any, feat: Any, get_attention: bool = False) -> str | None:
    """Reason code why this call of ``GATv2Conv.forward`` has no fused path, or None."""
    if get_attention:
        return "returns-attention"
    if type(graph) not in (DGLGraph, DGLBlock):
        return "graph-type"
    reason = static_reason(conv) or _feature_reason(conv, feat)
    return reason or _graph_reason(graph, conv.attn.device)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    drop, leaky_relu = conv.attn_drop, conv.leaky_relu
    if type(drop) is not nn.Dropout or type(leaky_relu) is not nn.LeakyReLU:
        return "parametrized"
    if drop.training and drop.p > 0:
        return "attention-dropout"
    if conv.attn.shape != (1, conv._num_heads, conv._out_feats):
        return "parametrized"
    # Hooks want the edge-wise values that are never written.
    return "hooks" if watched(drop) or watched(leaky_relu) else None


def _feature_reason(conv: Any, feat: Any) -> str | None:
    parts = feat[:2] if isinstance(feat, tuple) else (feat,)
    att = conv.attn
    for part in (*parts, att):
        if not isinstance(part, Tensor):
            return "input-form"
        if not (part.is_cpu or part.is_cuda):
            return "device"
        if part.device != att.device:
            return "device-mixed"
        if type(part) not in _PLAIN_TENSORS:
            return "subclass"
    if torch.is_autocast_enabled(att.device.type):
        # The projections come out in 16 bits and the attention vector is not cast, which DGL's
        # own message passing refuses unless the whole layer is in 16 bits.
        projected = torch.get_autocast_dtype(att.device.type)
        if att.dtype not in (projected, torch.float64):
            return "dtype-mixed"
    return None


def _graph_reason(graph: DGLGraph, device: torch.device) -> str | None:
    reason = unsupported_reason(graph)
    if reason is None and graph.device != device:
        return "device-mixed"
    least = get_config().min_edges
    if reason is None and least > 0 and graph.num_edges() < least:
        return "too-small"
    return reason


def edgewise_bytes(conv: Any, graph: Any, feat: Any, get_attention: bool = False) -> int:
    """Bytes of [E, H, D] tensors that the stock forward holds at its peak.

    Three of them: the score's sum, its leaky-relu, and the product with the attention vector.
    """
    att = conv.attn
    return 3 * graph.num_edges() * att.numel() * att.element_size()


def fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor | tuple[Tensor, Tensor],
    get_attention: bool = False,
) -> Tensor:
    """Fused ``GATv2Conv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.GATv2Conv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    feat : Tensor [num_src, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]

    Returns
    -------
    Tensor [num_dst, H, D]

    Raises
    ------
    InvalidArgument
        A destination without in-edges that the layer does not allow, or features that do not fit
        the graph; the stock layer has its own error for each.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
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
    att = conv.attn
    engine_for(att.device, att.dtype)  # refuses before dropout draws
    if isinstance(feat, tuple):  # dropout draws its random numbers in the stock layer's order
        h_src, h_dst = conv.feat_drop(feat[0]), conv.feat_drop(feat[1])
    else:
        h_src, h_dst = conv.feat_drop(feat), None
    residual = _residual(conv, graph, h_src if h_dst is None else h_dst)
    projections = _projections(conv, structure, graph, h_src, h_dst, att, residual)
    slope = conv.leaky_relu.negative_slope
    if projections is not None:
        src, dst = projections
        out = projected_gatv2(structure, h_src, src, att, h_dst=h_dst, dst=dst,
                              negative_slope=slope, residual=residual)  # fmt: skip
    else:
        x_src, x_dst = _project(conv, graph, h_src, h_dst)
        if not x_src.dtype == x_dst.dtype == att.dtype:
            raise Unsupported("dtype-mixed", f"{x_src.dtype}, {x_dst.dtype} and {att.dtype}")
        att = att.view(conv._num_heads, conv._out_feats)
        out = gatv2(structure, x_src, x_dst, att, negative_slope=slope, residual=residual)
    return conv.activation(out) if conv.activation else out


def _residual(conv: Any, graph: DGLGraph, h_dst: Tensor) -> Tensor | None:
    if conv.res_fc is None:
        return None
    if graph.is_block:
        h_dst = h_dst[: graph.number_of_dst_nodes()]
    return conv.res_fc(h_dst).view(h_dst.shape[0], -1, conv._out_feats)  # type: ignore[no-any-return]


def _projections(
    conv: Any,
    structure: Graph,
    graph: DGLGraph,
    h_src: Tensor,
    h_dst: Tensor | None,
    att: Tensor,
    residual: Tensor | None,
) -> tuple[Projection, Projection | None] | None:
    """The layer's projections, if they can be made part of attention; None: call the modules."""
    dtype = att.dtype
    for features in (h_src, h_dst):
        if features is not None and not (
            features.dtype == dtype and features.dim() == 2 and features.layout is torch.strided
        ):
            return None
    if h_dst is None and not graph.is_block and structure.num_dst != h_src.shape[0]:
        return None
    shape = (structure.num_dst, conv._num_heads, conv._out_feats)
    if residual is not None and (residual.shape != shape or residual.dtype != dtype):
        return None
    src = projection_of(conv.fc_src, _LINEAR, dtype, att.numel())
    if src is None or (h_dst is None and conv.share_weights):
        return None if src is None else (src, None)
    dst = projection_of(conv.fc_dst, _LINEAR, dtype, att.numel())
    return None if dst is None else (src, dst)


def _project(
    conv: Any, graph: DGLGraph, h_src: Tensor, h_dst: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Projected sources and destinations [N, H, D]."""
    shape = (-1, conv._num_heads, conv._out_feats)
    x_src = conv.fc_src(h_src).view(shape)
    if h_dst is not None:
        return x_src, conv.fc_dst(h_dst).view(shape)
    x_dst = x_src if conv.share_weights else conv.fc_dst(h_src).view(shape)
    return x_src, x_dst[: graph.number_of_dst_nodes()] if graph.is_block else x_dst
