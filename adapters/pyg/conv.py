"""PyG's ``GATv2Conv``: which calls run fused, and the fused forward.

The seam is the class's ``forward``: class, parameters, ``state_dict`` and pickles stay stock.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg import compiled
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import (
    Variant,
    device_of,
    is_edge_list,
    num_edges,
    unsupported_form,
)
from gnn_backend.adapters.pyg.message_passing import changed_reason, origins
from gnn_backend.config import get_config
from gnn_backend.errors import Unsupported
from gnn_backend.layers.gatv2 import combine, gatv2
from gnn_backend.runtime.launch import engine_for

_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
_METHODS = origins("torch_geometric.nn.conv.gatv2_conv", "GATv2Conv", "message", "edge_update")


def eligible(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    return_attention_weights: Any = None,
) -> str | None:
    """Reason code why this call of ``GATv2Conv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The edges are something that the stock layer rejects with its own error.
    """
    if return_attention_weights is not None:
        return "returns-attention"
    if edge_attr is not None:
        return "edge-features"
    att = conv.att
    return (
        _layer_reason(conv, att) or _feature_reason(att, x) or _edge_reason(conv, x, edge_index, att)
    )


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return _layer_reason(conv, conv.att)


def _layer_reason(conv: Any, att: Tensor) -> str | None:
    if not 0.0 <= conv.dropout <= 1.0 or (conv.dropout > 0.0 and conv.training):
        return "attention-dropout"
    if att.shape != (1, conv.heads, conv.out_channels):
        return "parametrized"
    if type(conv.negative_slope) not in (float, int):
        return "parametrized"
    if not -math.inf < conv.negative_slope < math.inf:  # torch.compile traces no isfinite
        return "parametrized"
    return changed_reason(conv, _METHODS)


def edgewise_bytes(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    return_attention_weights: Any = None,
) -> int:
    """Bytes of [E, H, C] tensors that the stock forward holds at its peak.

    Four of them: the score's sum and its leaky-relu, the gathered sources, and the messages.
    """
    att = conv.att
    return 4 * num_edges(edge_index) * att.numel() * att.element_size()


def _feature_reason(att: Tensor, x: Any) -> str | None:
    features = x if isinstance(x, (tuple, list)) else (x,)
    if len(features) > 2:
        return "input-form"
    device, dtype = att.device, att.dtype
    for part in features:
        if type(part) not in _PLAIN_TENSORS:
            return "subclass" if isinstance(part, Tensor) else "input-form"
        if part.dim() != 2:
            return "input-form"
        if part.device != device:
            return "device-mixed"
    if features[0].dtype != dtype:
        dtype = torch.promote_types(features[0].dtype, dtype)
    try:
        engine_for(device, dtype)
    except Unsupported as error:
        return error.reason
    return None


def _edge_reason(conv: Any, x: Any, edge_index: Any, att: Tensor) -> str | None:
    reverse = conv.flow == "target_to_source"
    reason = unsupported_form(edge_index, reverse=reverse, self_loops=conv.add_self_loops)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling() and not compiled.takes(edge_index):
        return "graph-type"
    if device_of(edge_index) != att.device:
        return "device-mixed"
    if reverse and not isinstance(x, Tensor) and x[0].shape[0] != x[1].shape[0]:
        return "flow"
    if conv.add_self_loops and not isinstance(edge_index, Tensor) and conv.edge_dim is not None:
        return "edge-features"
    if _fills_values(conv, edge_index) and not isinstance(conv.fill_value, (str, float, int)):
        return "fill-value"
    least = get_config().min_edges
    return "too-small" if least > 0 and num_edges(edge_index) < least else None


def _fills_values(conv: Any, edge_index: Any) -> bool:
    """Whether the stock layer computes values of self-loops, which an adjacency always has."""
    return bool(conv.add_self_loops) and not is_edge_list(edge_index)


def fast(
    conv: Any,
    x: Tensor | tuple[Tensor, Tensor],
    edge_index: Any,
    edge_attr: Tensor | None = None,
    return_attention_weights: bool | None = None,
) -> Tensor:
    """Fused ``GATv2Conv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.GATv2Conv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]
    edge_index : Tensor [2, E], EdgeIndex, sparse COO or CSR Tensor, or SparseTensor

    Returns
    -------
    Tensor [N, H * C] (``concat``) or [N, C]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    Unsupported
        The operator has no kernel for these operands.
    """
    residual, x_src, x_dst = _project(conv, x)
    variant = Variant(
        num_src=x_src.shape[0],
        num_dst=x_dst.shape[0],
        self_loops=bool(conv.add_self_loops),
        reverse=conv.flow == "target_to_source",
        fill_value=conv.fill_value if _fills_values(conv, edge_index) else None,
    )
    dtype = _message_dtype(x_src, x_dst, conv.att)
    operands = (
        x_src.to(dtype),
        x_dst.to(dtype),
        conv.att.view(conv.heads, conv.out_channels).to(dtype),
    )
    ends: dict[str, Any] = {
        "heads": "concat" if conv.concat else "mean",
        "residual": residual,
        "bias": conv.bias,
    }
    slope = float(conv.negative_slope)
    if torch.compiler.is_compiling():
        return combine(compiled.gatv2_attention(*operands, edge_index, variant, slope), **ends)
    return gatv2(graph_of(edge_index, variant), *operands, negative_slope=slope, **ends)


def _project(conv: Any, x: Any) -> tuple[Tensor | None, Tensor, Tensor]:
    """Residual and projected features; lazy layers initialise in the stock layer's order."""
    shape = (-1, conv.heads, conv.out_channels)
    x_src, x_dst = (x, x) if isinstance(x, Tensor) else (x[0], x[1])
    residual = conv.res(x_dst) if conv.res is not None else None
    h_src = conv.lin_l(x_src).view(shape)
    if isinstance(x, Tensor) and conv.share_weights:
        return residual, h_src, h_src
    return residual, h_src, conv.lin_r(x_dst).view(shape)


def _message_dtype(x_src: Tensor, x_dst: Tensor, att: Tensor) -> torch.dtype:
    """Dtype of the stock layer's messages.

    Type promotion decides it (under autocast: 16-bit projections, float32 attention vector).
    CUDA's autocast runs the sum and the exponential of the scores in float32 in any case.
    """
    dtype = torch.promote_types(torch.promote_types(x_src.dtype, x_dst.dtype), att.dtype)
    if dtype.itemsize == 2 and att.is_cuda and torch.is_autocast_enabled("cuda"):
        return torch.float32
    return dtype
