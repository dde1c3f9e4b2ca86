"""PyG's ``PNAConv``: which calls run fused, and the fused forward.

A message is one linear map of both ends and of the edge's features. It is split into a map of
nodes for each end and one of the features, so that the ends are mapped once a node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from gnn_backend.adapters.pyg.aggregating import call_reason, layer_reason, plain_graph
from gnn_backend.adapters.pyg.attention import LINEAR, edge_wise_reason
from gnn_backend.adapters.pyg.edges import num_edges
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.reductions import aggregation_reason, reduce_with
from gnn_backend.errors import invalid
from gnn_backend.layers.pna import shifted_reductions
from gnn_backend.layers.projection import watched

_METHODS = origins("torch_geometric.nn.conv.pna_conv", "PNAConv", "message")


class _Maps(NamedTuple):
    """The parts of all towers' maps, and what is added to every message."""

    dst: Tensor  # [T, F, F]
    src: Tensor
    edge: Tensor | None
    bias: Tensor  # [T, F]


def eligible(conv: Any, x: Any, edge_index: Any, edge_attr: Any = None) -> str | None:
    """Reason code why this call of ``PNAConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    reason = static_reason(conv) or call_reason(conv, x, edge_index, pairs=False)
    if reason is not None:
        return reason
    if (edge_attr is None) != (conv.edge_dim is None):
        raise invalid("edge_attr", "does not fit edge_dim", edge_attr, f"edge_dim={conv.edge_dim}")
    wanted = conv.F_in * (conv.towers if conv.divide_input else 1)
    if x.shape[1] != wanted:
        raise invalid("x", "wrong width", tuple(x.shape), f"[N, {wanted}]")
    if edge_attr is None:
        return None
    reason = edge_wise_reason(edge_index, edge_attr, False, x.device)
    return reason or ("edge-features" if edge_attr.dim() != 2 else None)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    reason = layer_reason(
        conv, _METHODS, aggregation=lambda m: aggregation_reason(m, shifts=True), node_dim=0
    )
    if reason is not None:
        return reason
    if any(len(nn) != 1 for nn in conv.pre_nns):
        return "pre-layers"
    linears = [nn[0] for nn in conv.pre_nns]
    if conv.edge_dim is not None:
        linears.append(conv.edge_encoder)
    plain = not any(watched(nn) for nn in conv.pre_nns) and all(map(_is_plain_linear, linears))
    return None if plain else "parametrized"


def _is_plain_linear(module: Any) -> bool:
    cls = type(module)
    return f"{cls.__module__}.{cls.__qualname__}" == LINEAR and not watched(module)


def edgewise_bytes(conv: Any, x: Any, edge_index: Any, edge_attr: Any = None) -> int:
    """Bytes of [E, T, F] tensors that the stock forward holds at its peak.

    Both ends, their concatenation, and the messages; with features twice theirs.
    """
    parts = 5 if edge_attr is None else 7
    width = conv.towers * conv.F_in
    return parts * num_edges(edge_index) * width * int(x.element_size())


def fast(conv: Any, x: Tensor, edge_index: Any, edge_attr: Tensor | None = None) -> Tensor:
    """Fused ``PNAConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.PNAConv
    x : Tensor [N, F]
    edge_index : Tensor [2, E] or EdgeIndex
    edge_attr : Tensor [E, F_edge], optional

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    """
    graph = plain_graph(conv, x, edge_index)
    maps = _maps(conv, edge_attr)
    towers = (-1, conv.towers, conv.F_in)
    if conv.divide_input:
        x = x.view(towers)
        src, dst = (torch.einsum("ntf,tgf->ntg", x, w) for w in (maps.src, maps.dst))
    else:
        src, dst = (linear(x, w.flatten(0, 1)).view(towers) for w in (maps.src, maps.dst))
        x = x.view(-1, 1, conv.F_in).expand(-1, conv.towers, -1)
    dst = dst + maps.bias
    edge = None
    if edge_attr is not None and maps.edge is not None:
        edge = linear(edge_attr, maps.edge.flatten(0, 1)).view(towers)
        dtype = torch.promote_types(src.dtype, edge.dtype)
        src, dst, edge = src.to(dtype), dst.to(dtype), edge.to(dtype)

    def one_pass(names: tuple[str, ...], _heat: Any, _power: Any) -> tuple[Tensor, ...]:
        return shifted_reductions(graph, src, dst.to(src.dtype), edge, names)

    out = reduce_with(conv.aggr_module, one_pass, lambda: graph.by_dst.indptr.diff())
    out = torch.cat([x, out], dim=-1)
    outs = [nn(out[:, number]) for number, nn in enumerate(conv.post_nns)]
    result: Tensor = conv.lin(torch.cat(outs, dim=1))
    return result


def _maps(conv: Any, edge_attr: Tensor | None) -> _Maps:
    """The towers' maps by what they are applied to; that of features behind the encoder's."""
    weight = torch.stack([nn[0].weight for nn in conv.pre_nns])
    bias = torch.stack([nn[0].bias for nn in conv.pre_nns])
    width = conv.F_in
    dst, src = weight[..., :width], weight[..., width : 2 * width]
    if edge_attr is None:
        return _Maps(dst, src, None, bias)
    encoder, edge = conv.edge_encoder, weight[..., 2 * width :]
    return _Maps(dst, src, edge @ encoder.weight, bias + edge @ encoder.bias)
