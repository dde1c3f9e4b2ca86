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
from torch.nn.modules import module as torch_module

from gnn_backend.adapters.dgl.graph import entry, unsupported_reason
from gnn_backend.config import get_config
from gnn_backend.errors import Unsupported, invalid
from gnn_backend.layers.gatv2 import gatv2
from gnn_backend.runtime.launch import engine_for

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
    if any(getattr(part, hooks) for part in (drop, leaky_relu) for hooks in _HOOKS):
        return "hooks"  # they want the edge-wise values that are never written
    return "hooks" if any(getattr(torch_module, f"_global{hooks}") for hooks in _HOOKS) else None


def _feature_reason(conv: Any, feat: Any) -> str | None:
    parts = feat[:2] if isinstance(feat, tuple) else (feat,)
    if not all(isinstance(part, Tensor) for part in parts):
        return "input-form"
    device = conv.attn.device
    for part in (*parts, conv.attn):
        if part.device.type not in ("cpu", "cuda"):
            return "device"
        if part.device != device:
            return "device-mixed"
        if type(part) not in (Tensor, nn.Parameter):
            return "subclass"
    if torch.is_autocast_enabled(device.type):
        # The projections come out in 16 bits and the attention vector is not cast, which DGL's
        # own message passing refuses unless the whole layer is in 16 bits.
        projected = torch.get_autocast_dtype(device.type)
        if conv.attn.dtype not in (projected, torch.float64):
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
    return 3 * graph.num_edges() * conv.attn.numel() * conv.attn.element_size()


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
    engine_for(conv.attn.device, conv.attn.dtype)  # refuses before dropout draws
    x_src, x_dst, h_dst = _project(conv, graph, feat)
    if not x_src.dtype == x_dst.dtype == conv.attn.dtype:
        raise Unsupported("dtype-mixed", f"{x_src.dtype}, {x_dst.dtype} and {conv.attn.dtype}")
    residual = None
    if conv.res_fc is not None:
        residual = conv.res_fc(h_dst).view(h_dst.shape[0], -1, conv._out_feats)
    out = gatv2(
        structure,
        x_src,
        x_dst,
        conv.attn.view(conv._num_heads, conv._out_feats),
        negative_slope=conv.leaky_relu.negative_slope,
        residual=residual,
    )
    return conv.activation(out) if conv.activation else out


def _project(conv: Any, graph: DGLGraph, feat: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Projected sources and destinations [N, H, D], and the destinations' own features.

    Dropout draws its random numbers in the stock layer's order.
    """
    shape = (-1, conv._num_heads, conv._out_feats)
    if isinstance(feat, tuple):
        h_src = conv.feat_drop(feat[0])
        h_dst = conv.feat_drop(feat[1])
        return conv.fc_src(h_src).view(shape), conv.fc_dst(h_dst).view(shape), h_dst
    h_dst = conv.feat_drop(feat)
    x_src = conv.fc_src(h_dst).view(shape)
    x_dst = x_src if conv.share_weights else conv.fc_dst(h_dst).view(shape)
    if graph.is_block:
        rows = graph.number_of_dst_nodes()
        x_dst, h_dst = x_dst[:rows], h_dst[:rows]
    return x_src, x_dst, h_dst
