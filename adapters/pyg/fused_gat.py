"""PyG's ``FusedGATConv`` without the package dgNN: its operator and its forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.adapters.pyg.attention import (
    dropout_of,
    feature_reason,
    heads_of,
    message_dtype,
    own,
    settings_reason,
)
from gnn_backend.config import get_config
from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.layers.gat import gat
from gnn_backend.ops.attention import gat_attention

_graphs = WeakTensorKeyDictionary()  # row pointers -> (what they were, Graph)


def attention_of_rows(
    att_row: Tensor,
    att_col: Tensor,
    rowptr: Tensor,
    col: Tensor,
    colptr: Tensor,
    row: Tensor,
    perm: Tensor,
    negative_slope: float,
    features: Tensor,
    dropout: float,
) -> Tensor:
    """What dgNN's operator of GAT computes, under its signature: rows attend to their columns.

    Parameters
    ----------
    att_row, att_col : Tensor [N, H]
        Shares of the two ends in the logit.
    rowptr, col : int32 Tensor [N + 1], [E]
    colptr, row, perm : Tensor
        The transposed graph, which is made here as needed.
    negative_slope : float
    features : Tensor [N, H, C]
    dropout : float
        Probability that a weight is dropped.
    """
    graph = _graph(rowptr, col, features.shape[0])
    return gat_attention(  # type: ignore[no-any-return]
        graph, features, att_col, att_row, negative_slope=negative_slope, dropout_p=dropout
    )


def _graph(rowptr: Tensor, col: Tensor, num_src: int) -> Graph:
    """The Graph of these very tensors, kept while they live and nobody writes to them."""
    if rowptr.is_inference() or col.is_inference():
        return Graph.from_csr(rowptr, col, num_src)
    state = (rowptr._version, col._version, col.data_ptr(), col.shape, num_src)
    kept = _graphs.get(rowptr)
    if kept is None or kept[0] != state:
        kept = _graphs[rowptr] = state, Graph.from_csr(rowptr.clone(), col.clone(), num_src)
    return kept[1]


def eligible(conv: Any, x: Any, csr: Any, csc: Any, perm: Any) -> str | None:
    """Reason code why this call of ``FusedGATConv.forward`` has no fused path, or None."""
    att = own(conv, "att_src")
    if not isinstance(x, Tensor):
        return "input-form"
    reason = static_reason(conv) or feature_reason(x, att.device, att.dtype)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling():
        return "compiled"
    rowptr, col = csr
    if rowptr.device != att.device or col.device != att.device:
        return "device-mixed"
    least = get_config().min_edges
    return "too-small" if least > 0 and col.numel() < least else None


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    shape = (1, conv.heads, conv.out_channels)
    if own(conv, "att_src").shape != shape or own(conv, "att_dst").shape != shape:
        return "parametrized"
    return settings_reason(conv)


def edgewise_bytes(conv: Any, x: Any, csr: Any, csc: Any, perm: Any) -> int:
    """Bytes of edge-wise tensors that dgNN's operator holds: none."""
    return 0


def fast(
    conv: Any,
    x: Tensor,
    csr: tuple[Tensor, Tensor],
    csc: tuple[Tensor, Tensor],
    perm: Tensor,
) -> Tensor:
    """Fused ``FusedGATConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.FusedGATConv
    x : Tensor [N, F]
    csr, csc, perm
        What ``FusedGATConv.to_graph_format`` returned; ``csr`` alone is read.

    Returns
    -------
    Tensor [N, H * C] (``concat``) or [N, C]

    Raises
    ------
    InvalidArgument
        The graph does not fit the features.
    Unsupported
        The operator has no kernel for these operands.
    """
    rowptr, col = csr
    if rowptr.numel() != x.shape[0] + 1:
        raise invalid("csr", "wrong number of rows", rowptr.numel() - 1, x.shape[0])
    graph = _graph(rowptr, col, x.shape[0])
    shape = (-1, conv.heads, conv.out_channels)
    x_src = x_dst = (conv.lin_src if conv.lin is None else conv.lin)(x).view(shape)
    att_src, att_dst = own(conv, "att_src"), own(conv, "att_dst")
    dtype = message_dtype(x_src.device, x_src, att_src, att_dst)
    return gat(  # type: ignore[no-any-return]
        graph, x_src.to(dtype), x_dst.to(dtype), att_src, att_dst,
        negative_slope=float(conv.negative_slope), dropout_p=dropout_of(conv),
        heads=heads_of(conv), bias=own(conv, "bias"),
    )  # fmt: skip
