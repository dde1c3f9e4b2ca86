"""PyG's ``PNAConv``: which calls run fused, and the fused forward.

A message is one linear map of both ends and of the edge's features. It is split into a map of
nodes for each end and one of the features, so that the ends are mapped once a node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import call_reason, layer_reason, plain_graph
from gnn_backend.adapters.pyg.attention import LINEAR, edge_wise_reason
from gnn_backend.adapters.pyg.edges import num_edges
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.reductions import (
    aggregation_reason,
    kept_factors,
    kind_of,
    reduce_with,
)
from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.layers.degree_scaling import scaled_update
from gnn_backend.layers.normalization import degrees
from gnn_backend.layers.pna import mapped, shifted_reductions
from gnn_backend.layers.projection import projection_of, watched
from gnn_backend.ops.projected_attention import Projection

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
    if conv.divide_input:
        x = x.view(-1, conv.towers, conv.F_in)
    src, dst = mapped(x, maps.src), mapped(x, maps.dst) + maps.bias
    edge = None
    if edge_attr is not None and maps.edge is not None:
        edge = mapped(edge_attr, maps.edge)
        dtype = torch.promote_types(src.dtype, edge.dtype)
        src, dst, edge = src.to(dtype), dst.to(dtype), edge.to(dtype)

    def one_pass(names: tuple[str, ...], _heat: Any, _power: Any) -> tuple[Tensor, ...]:
        return shifted_reductions(graph, src, dst.to(src.dtype), edge, names)

    if x.dim() == 2:
        x = x.unsqueeze(1).expand(-1, conv.towers, -1)
    outs = _updated(conv, graph, x, one_pass)
    result: Tensor = conv.lin(torch.cat(outs, dim=1))
    return result


def _updated(conv: Any, graph: Graph, x: Tensor, one_pass: Any) -> list[Tensor]:
    """What each tower's network makes of a node's features beside its scaled reductions."""
    module, numbers = conv.aggr_module, range(conv.towers)
    first = None
    if kind_of(module) == "scaled":
        first = [_first_map(network, x) for network in conv.post_nns]
    if first is None or None in first:
        out = torch.cat([x, reduce_with(module, one_pass, lambda: degrees(graph, "dst"))], dim=-1)
        return [conv.post_nns[t](out[:, t]) for t in numbers]
    found = reduce_with(module.aggr, one_pass, lambda: degrees(graph, "dst"))
    factors = kept_factors(module, graph, found.dtype)
    outs = []
    for t in numbers:
        update = first[t]
        assert update is not None
        out = scaled_update(x[:, t], found[:, t], factors, update)
        for rest in list(conv.post_nns[t])[1:]:
            out = rest(out)
        outs.append(out)
    return outs


def _first_map(network: Any, x: Tensor) -> Projection | None:
    """What a tower's network begins with, or None: it has to be called."""
    if watched(network) or type(network) is not torch.nn.Sequential:
        return None
    weight = network[0]._parameters.get("weight")
    width = None if weight is None else weight.shape[0]
    return None if width is None else projection_of(network[0], LINEAR, x.dtype, width)


def _maps(conv: Any, edge_attr: Tensor | None) -> _Maps:
    """The towers' maps by what they are applied to; that of features behind the encoder's."""
    linears = [nn[0] for nn in conv.pre_nns]
    weight = _stacked([linear.weight for linear in linears])
    bias = _stacked([linear.bias for linear in linears])
    width = conv.F_in
    dst, src = weight[..., :width], weight[..., width : 2 * width]
    if edge_attr is None:
        return _Maps(dst, src, None, bias)
    encoder, edge = conv.edge_encoder, weight[..., 2 * width :]
    return _Maps(dst, src, edge @ encoder.weight, bias + edge @ encoder.bias)


def _stacked(tensors: list[Tensor]) -> Tensor:
    """``torch.stack``, which copies even one."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)
