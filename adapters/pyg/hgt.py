"""PyG's ``HGTConv``: which calls run fused, and the fused forward.

The nodes of all types are one table, the relations one graph of typed edges. Queries, keys and
values are typed products, and attention is one program, whatever the number of relations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu

from gnn_backend.adapters.pyg.aggregating import layer_reason
from gnn_backend.adapters.pyg.attention import LINEAR
from gnn_backend.adapters.pyg.edges import device_of, is_edge_list, num_edges, unsupported_form
from gnn_backend.adapters.pyg.hetero_linear import names_of
from gnn_backend.adapters.pyg.message_passing import origins, sums_reason
from gnn_backend.adapters.pyg.unions import unions
from gnn_backend.adapters.relations import parameters_reason
from gnn_backend.adapters.typed_rows import linears_reason, rows_reason
from gnn_backend.config import get_config
from gnn_backend.layers.hetero.linear import by_width, joined, linear_by_type, segments
from gnn_backend.layers.hetero.products import stacked
from gnn_backend.layers.hetero.union import Piece, Union
from gnn_backend.layers.projection import watched
from gnn_backend.layers.relational.forms import hgt_attention
from gnn_backend.runtime.selection import MAX_HEAD_DIM

_METHODS = origins("torch_geometric.nn.conv.hgt_conv", "HGTConv", "message")
_HETERO_LINEAR = "torch_geometric.nn.dense.linear.HeteroLinear"
_DICT_LINEAR = "torch_geometric.nn.dense.linear.HeteroDictLinear"
EdgeType = tuple[str, str, str]


def eligible(conv: Any, x_dict: Any, edge_index_dict: Any) -> str | None:
    """Reason code why this call of ``HGTConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        Edges have a form that the stock layer rejects with its own error.
    """
    reason = static_reason(conv)
    if reason is not None:
        return reason
    if not isinstance(x_dict, Mapping) or not isinstance(edge_index_dict, Mapping):
        return "input-form"
    names = names_of(conv.kqv_lin, x_dict)
    if not names:
        return "empty"
    tables = [x_dict[name] for name in names]
    reason = rows_reason(tables, conv.k_rel.weight)
    if reason is None and not _lazy(conv) and _is_plain(conv.kqv_lin, _DICT_LINEAR):
        reason = linears_reason([conv.kqv_lin.lins[name] for name in names], LINEAR, tables)
    return reason or _edges_reason(conv, set(names), edge_index_dict)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    reason = layer_reason(conv, _METHODS, aggregation=sums_reason, node_dim=0)
    if reason is not None:
        return reason
    if conv.flow != "source_to_target":
        return "flow"  # the stock layer's sources and destinations then are not those of its edges
    if not all(_is_plain(linear, _HETERO_LINEAR) for linear in (conv.k_rel, conv.v_rel)):
        return "parametrized"
    if conv.out_channels < conv.heads:
        return "empty"
    if conv.out_channels // conv.heads > MAX_HEAD_DIM:
        return "head-dim"
    own = [*conv.k_rel.parameters(), *conv.v_rel.parameters(), *conv.p_rel.parameters()]
    return parameters_reason(own)


def edgewise_bytes(conv: Any, x_dict: Any, edge_index_dict: Any) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak.

    Keys, queries, values and messages.
    """
    edges = sum(map(num_edges, edge_index_dict.values()))
    return int(4 * edges * conv.out_channels * conv.k_rel.weight.element_size())


def fast(
    conv: Any, x_dict: Mapping[str, Tensor], edge_index_dict: Mapping[EdgeType, Any]
) -> dict[str, Tensor]:
    """Fused ``HGTConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.HGTConv
    x_dict : mapping of str to Tensor [num_nodes, F]
        F may differ from type to type.
    edge_index_dict : mapping of (str, str, str) to Tensor [2, E] or sparse adjacency

    Returns
    -------
    dict of str to Tensor [num_nodes, out_channels]
        For the types that are destinations of a relation of the layer's.

    Raises
    ------
    InvalidArgument
        An edge does not fit the features.
    """
    nodes = _nodes(conv, x_dict)
    query, key, value = _mapped(conv, x_dict, nodes)
    present = [edge_type for edge_type in conv.edge_types if edge_type in edge_index_dict]
    out = hgt_attention(
        _union(present, edge_index_dict, nodes).relations,
        query=query,
        key=key,
        value=value,
        att=_by_relation(conv, conv.k_rel.weight, present),
        message=_by_relation(conv, conv.v_rel.weight, present),
        prior=stacked([conv.p_rel["__".join(edge_type)] for edge_type in present]).flatten(1),
        num_heads=conv.heads,
    )
    assert isinstance(out, Tensor)
    return _combined(conv, x_dict, nodes, out)


class _Nodes(NamedTuple):
    """The types of nodes in the order of their tables: those of one width beside each other."""

    names: list[str]
    sizes: list[int]
    widths: list[list[str]]


def _nodes(conv: Any, x_dict: Mapping[str, Tensor]) -> _Nodes:
    given = names_of(conv.kqv_lin, x_dict)
    widths = [[given[i] for i in group] for group in by_width([x_dict[n] for n in given])]
    names = [name for group in widths for name in group]
    return _Nodes(names, [len(x_dict[name]) for name in names], widths)


def _mapped(
    conv: Any, x_dict: Mapping[str, Tensor], nodes: _Nodes
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of all nodes, [N, H * D] each."""
    if _lazy(conv) or not _is_plain(conv.kqv_lin, _DICT_LINEAR):
        found = conv.kqv_lin(x_dict)
        table = joined([found[name] for name in nodes.names])
        key, query, value = table.view(len(table), 3, -1).unbind(1)
        return query, key, value
    parts: tuple[list[Tensor], ...] = ([], [], [])
    for names in nodes.widths:
        lins = [conv.kqv_lin.lins[name] for name in names]
        x = joined([x_dict[name] for name in names])
        rows = segments([len(x_dict[name]) for name in names], x.device)
        # Weights of three products, as a product of all would have to be cut into three tables.
        weights = stacked([lin.weight for lin in lins]).transpose(1, 2).chunk(3, dim=2)
        biases = stacked([lin.bias for lin in lins]).chunk(3, dim=1)
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            part.append(linear_by_type(x, weight, bias, rows))
    key, query, value = map(joined, parts)
    return query, key, value


def _by_relation(conv: Any, weight: Tensor, present: Sequence[EdgeType]) -> Tensor:
    """Weights [H * R, D, D] of all relations as those [R', H, D, D] of the relations given."""
    found = weight.unflatten(0, (conv.heads, len(conv.edge_types))).transpose(0, 1)
    if len(present) == len(conv.edge_types):
        return found
    numbers = [conv.edge_types_map[edge_type] for edge_type in present]
    return found.index_select(0, torch.tensor(numbers).to(weight.device))


def _combined(
    conv: Any, x_dict: Mapping[str, Tensor], nodes: _Nodes, out: Tensor
) -> dict[str, Tensor]:
    """What attention gives [N, H * D], mapped by the type of the node and mixed with its row."""
    parts = dict(zip(nodes.names, out.split(nodes.sizes), strict=True))
    names = [name for name in nodes.names if name in conv.dst_node_types]
    table = out if len(names) == len(nodes.names) else joined([parts[name] for name in names])
    mapped = _mapped_back(conv, gelu(table), {name: len(x_dict[name]) for name in names})
    found = {}
    for name in filter(mapped.__contains__, conv.kqv_lin.lins):
        row, own = mapped[name], x_dict[name]
        if row.shape[-1] == own.shape[-1]:
            alpha = conv.skip[name].sigmoid()
            row = alpha * row + (1 - alpha) * own
        found[name] = row
    return found


def _mapped_back(conv: Any, table: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Rows [N, H * D] of several types of nodes, mapped by ``out_lin``."""
    parts = dict(zip(sizes, table.split(list(sizes.values())), strict=True))
    lins = [conv.out_lin.lins[name] for name in sizes]
    plain = _is_plain(conv.out_lin, _DICT_LINEAR)
    if not plain or linears_reason(lins, LINEAR, [*parts.values()]) is not None:
        return conv.out_lin(parts)  # type: ignore[no-any-return]
    weight = stacked([lin.weight for lin in lins], transposed=True)
    bias = stacked([lin.bias for lin in lins])
    out = linear_by_type(table, weight, bias, segments(list(sizes.values()), table.device))
    return dict(zip(sizes, out.split(list(sizes.values())), strict=True))


# ---------------------------------------------------------------------- edges


def _edges_reason(conv: Any, names: set[str], edges: Mapping[Any, Any]) -> str | None:
    total = 0
    for edge_type, edge_index in edges.items():
        if edge_type not in conv.edge_types_map:
            return "input-form"
        if edge_type[0] not in names or edge_type[-1] not in names:
            return "input-form"
        reason = unsupported_form(edge_index, reverse=False, self_loops=False)
        if reason is not None:
            return reason
        if type(edge_index) is not Tensor:
            return "graph-type"
        if device_of(edge_index) != conv.k_rel.weight.device:
            return "device-mixed"
        total += num_edges(edge_index)
    if not total:
        return "empty"
    return "too-small" if total < get_config().min_edges else None


def _union(present: Sequence[EdgeType], edges: Mapping[EdgeType, Tensor], nodes: _Nodes) -> Union:
    """One graph of all relations, numbered as in ``present``, kept with their edges."""
    given = [edges[edge_type] for edge_type in present]
    key = ("HGTConv", tuple(present), tuple(nodes.names), tuple(nodes.sizes))
    return unions.get(given, key, lambda: _made(present, given, nodes))


def _made(present: Sequence[EdgeType], edges: Sequence[Tensor], nodes: _Nodes) -> Union:
    table = {name: i for i, name in enumerate(nodes.names)}
    pieces = [
        Piece(number, table[edge_type[0]], *_ends(edge_index))
        for number, (edge_type, edge_index) in enumerate(zip(present, edges, strict=True))
    ]
    ends = [table[edge_type[-1]] for edge_type in present]
    return Union(pieces, ends, nodes.sizes, nodes.sizes)


def _ends(edge_index: Tensor) -> tuple[Tensor, Tensor]:
    """Sources and destinations; of a sparse adjacency, which PyG has transposed, as well."""
    if is_edge_list(edge_index):
        return edge_index[0], edge_index[1]
    from torch_geometric.utils import to_edge_index

    (dst, src), _ = to_edge_index(edge_index)
    return src, dst


# ---------------------------------------------------------------------- linear modules


def _is_plain(linear: Any, name: str) -> bool:
    """Whether a module is the stock one of that name, and nobody watches its calls."""
    cls = type(linear)
    return f"{cls.__module__}.{cls.__qualname__}" == name and not watched(linear)


def _lazy(conv: Any) -> bool:
    """Whether the first call is still to find the widths of the features."""
    return hasattr(conv.kqv_lin, "_hook")
