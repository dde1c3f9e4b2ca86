"""PyG's ``AGNNConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.attention import edge_reason, feature_reason, message_dtype, own
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, num_edges
from gnn_backend.adapters.pyg.message_passing import changed_reason, origins
from gnn_backend.layers.agnn import agnn

_METHODS = origins("torch_geometric.nn.conv.agnn_conv", "AGNNConv", "message")


def eligible(conv: Any, x: Any, edge_index: Any) -> str | None:
    """Reason code why this call of ``AGNNConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The edges are something that the stock layer rejects with its own error.
    """
    beta = conv.beta
    if not isinstance(x, Tensor):
        return "input-form"
    reason = static_reason(conv) or feature_reason(x, beta.device, beta.dtype)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling():
        return "compiled"
    loops = bool(conv.add_self_loops)
    return edge_reason(conv, edge_index, beta.device, self_loops=loops, square=True)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    if conv.beta.shape != (1,):
        return "parametrized"
    return changed_reason(conv, _METHODS, node_dim=-2)


def edgewise_bytes(conv: Any, x: Any, edge_index: Any) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak.

    Five of them: both ends' normalised features, their product, the sources, and the messages.
    """
    return 5 * num_edges(edge_index) * x.shape[1] * x.element_size()


def fast(conv: Any, x: Tensor, edge_index: Any) -> Tensor:
    """Fused ``AGNNConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.AGNNConv
    x : Tensor [N, F]
    edge_index : Tensor [2, E], EdgeIndex, sparse COO or CSR Tensor, or SparseTensor

    Returns
    -------
    Tensor [N, F]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    Unsupported
        The operator has no kernel for these operands.
    """
    loops, reverse = bool(conv.add_self_loops), conv.flow == "target_to_source"
    graph = graph_of(edge_index, Variant(x.shape[0], x.shape[0], loops, reverse))
    beta = own(conv, "beta")
    return agnn(graph, x.to(message_dtype(x.device, x, beta)), None, beta)
