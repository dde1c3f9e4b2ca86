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
from gnn_backend.layers.gatv2 import combine, gatv2, projected_gatv2
from gnn_backend.layers.projection import projection_of
from gnn_backend.ops.heads import Heads
from gnn_backend.ops.projected_attention import Projection
from gnn_backend.runtime.launch import engine_for

_PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
_LINEAR = "torch_geometric.nn.dense.linear.Linear"
_METHODS = origins("torch_geometric.nn.conv.gatv2_conv", "GATv2Conv", "message", "edge_update")


def _own(conv: Any, name: str) -> Any:
    """A parameter of the layer, past ``Module.__getattr__`` where it is a plain one."""
    found = conv._parameters.get(name)
    return getattr(conv, name) if found is None else found


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
    att = _own(conv, "att")
    return (
        _layer_reason(conv, att)
        or _feature_reason(att, x)
        or _edge_reason(conv, x, edge_index, att)
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
    att = _own(conv, "att")
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
    if not torch.compiler.is_compiling():
        return _eager(conv, x, edge_index)
    residual = _residual(conv, x)
    x_src, x_dst = _project(conv, x)
    operands = _operands(conv, x_src, x_dst)
    variant = _variant(conv, edge_index, x_src.shape[0], x_dst.shape[0])
    out = compiled.gatv2_attention(*operands, edge_index, variant, float(conv.negative_slope))
    return combine(out, residual=residual, heads=_heads(conv), bias=conv.bias)


def _eager(conv: Any, x: Any, edge_index: Any) -> Tensor:
    h_src, h_dst = (x, None) if isinstance(x, Tensor) else (x[0], x[1])
    num_src = h_src.shape[0]
    variant = _variant(conv, edge_index, num_src, num_src if h_dst is None else h_dst.shape[0])
    graph = graph_of(edge_index, variant)
    residual = _residual(conv, x)
    slope, att, heads = float(conv.negative_slope), _own(conv, "att"), _heads(conv)
    ends: dict[str, Any] = {"heads": heads, "residual": residual, "bias": _own(conv, "bias")}
    found = None
    if _fits(att, variant.num_dst, **ends):
        found = _projections(conv, h_src, h_dst, att)
    if found is not None:
        src, dst = found
        return projected_gatv2(
            graph, h_src, src, att, h_dst=h_dst, dst=dst, negative_slope=slope, **ends
        )
    operands = _operands(conv, *_project(conv, x))
    return gatv2(graph, *operands, negative_slope=slope, **ends)


def _variant(conv: Any, edge_index: Any, num_src: int, num_dst: int) -> Variant:
    return Variant(
        num_src,
        num_dst,
        bool(conv.add_self_loops),
        conv.flow == "target_to_source",
        conv.fill_value if _fills_values(conv, edge_index) else None,
    )


def _heads(conv: Any) -> Heads:
    return "concat" if conv.concat else "mean"


def _operands(conv: Any, x_src: Tensor, x_dst: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Attention's operands, in the dtype of the stock layer's messages."""
    att = conv.att
    dtype = _message_dtype(x_src, x_dst, att)
    att = att.view(conv.heads, conv.out_channels)
    return x_src.to(dtype), x_dst.to(dtype), att.to(dtype)


def _fits(
    att: Tensor, rows: int, *, heads: Heads, residual: Tensor | None, bias: Tensor | None
) -> bool:
    """Whether what is added to the result needs neither broadcasting of rows nor promotion."""
    width = att.numel() if heads == "concat" else att.shape[-1]
    if bias is not None and (bias.shape != (width,) or bias.dtype is not att.dtype):
        return False
    return residual is None or (residual.shape == (rows, width) and residual.dtype is att.dtype)


def _projections(
    conv: Any, h_src: Tensor, h_dst: Tensor | None, att: Tensor
) -> tuple[Projection, Projection | None] | None:
    """The layer's projections, if they can be made part of attention; None: call the modules."""
    dtype, width, modules = att.dtype, att.numel(), conv._modules
    for features in (h_src, h_dst):
        if features is not None and (
            features.dtype is not dtype or features.layout is not torch.strided
        ):
            return None
    src = projection_of(modules.get("lin_l"), _LINEAR, dtype, width)
    if src is None or (h_dst is None and conv.share_weights):
        return None if src is None else (src, None)
    dst = projection_of(modules.get("lin_r"), _LINEAR, dtype, width)
    return None if dst is None else (src, dst)


def _residual(conv: Any, x: Any) -> Tensor | None:
    """Of the destinations; before the projections, as lazy layers initialise in that order."""
    residual = conv.res
    return None if residual is None else residual(x if isinstance(x, Tensor) else x[1])


def _project(conv: Any, x: Any) -> tuple[Tensor, Tensor]:
    """Projected sources and destinations [N, H, C]."""
    shape = (-1, conv.heads, conv.out_channels)
    if not isinstance(x, Tensor):
        return conv.lin_l(x[0]).view(shape), conv.lin_r(x[1]).view(shape)
    h_src = conv.lin_l(x).view(shape)
    return h_src, h_src if conv.share_weights else conv.lin_r(x).view(shape)


def _message_dtype(x_src: Tensor, x_dst: Tensor, att: Tensor) -> torch.dtype:
    """Dtype of the stock layer's messages.

    Type promotion decides it (under autocast: 16-bit projections, float32 attention vector).
    CUDA's autocast runs the sum and the exponential of the scores in float32 in any case.
    """
    dtype = torch.promote_types(torch.promote_types(x_src.dtype, x_dst.dtype), att.dtype)
    if dtype.itemsize == 2 and att.is_cuda and torch.is_autocast_enabled("cuda"):
        return torch.float32
    return dtype
