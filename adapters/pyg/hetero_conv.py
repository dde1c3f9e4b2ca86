"""PyG's ``HeteroConv``: which calls run in batches of relations, and how."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend.adapters.known_kinds import known
from gnn_backend.adapters.pyg.hetero_kinds import is_square, kind_of
from gnn_backend.adapters.pyg.unions import unions
from gnn_backend.adapters.relations import (
    Batch,
    Member,
    dropout_reason,
    features_reason,
    run_batches,
)
from gnn_backend.config import get_config
from gnn_backend.layers.hetero.union import Piece, Union

_SUMS = {"sum": "sum", "add": "sum", "mean": "mean"}
_local = threading.local()


class Call(NamedTuple):
    """One call for all relations, as :func:`call_of` found it eligible."""

    batches: list[Batch]
    x: Mapping[str, Tensor]
    edges: Mapping[Any, Tensor]


def eligible(hetero: Any, *args: Any, **kwargs: Any) -> str | None:
    """Reason code why this call of ``HeteroConv.forward`` runs relation by relation, or None.

    Where it does, each relation's layer is still accelerated by itself.
    """
    found = _prepared(hetero, args, kwargs)
    if isinstance(found, str):
        return found
    _local.call = (found.x, found)
    return None


def static_reason(hetero: Any) -> str | None:
    """The part of :func:`eligible` that the layers alone decide."""
    return known(hetero, list(hetero.convs.values()), kind_of).reason


def fast(hetero: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """``HeteroConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    hetero : torch_geometric.nn.HeteroConv
    *args, **kwargs
        ``x_dict`` with Tensor [num_nodes, F] by node type, ``edge_index_dict`` with Tensor [2, E]
        by edge type.

    Returns
    -------
    dict of Tensor

    Raises
    ------
    InvalidArgument
        An edge does not fit the features.
    Unsupported
        No kernel takes these operands.
    """
    from torch_geometric.nn.conv.hetero_conv import group

    x, call = vars(_local).pop("call", (None, None))
    if x is None or x is not (args[0] if args else kwargs["x_dict"]):
        call = _prepared(hetero, args, kwargs)  # as where aliases of the tensors are followed
    return run(call, hetero.aggr, lambda parts: group(parts, hetero.aggr))


def run(
    call: Call, aggr: str | None, combine: Callable[[list[Tensor]], Tensor]
) -> dict[str, Tensor]:
    """Run an eligible call; ``combine`` takes the results of one type, where ``aggr`` is no sum.

    Raises
    ------
    Unsupported
        No kernel takes these operands.
    """
    return run_batches(
        call.batches,
        lambda batch: _union_of(batch, call.x, call.edges),
        call.x,
        call.x,
        _SUMS.get(aggr or ""),
        lambda parts, _: combine(parts),
    )


def _prepared(hetero: Any, args: Any, kwargs: Any) -> Call | str:
    if torch.compiler.is_compiling():
        return "compiled"
    given = dict(zip(("x_dict", "edge_index_dict"), args, strict=False)) | kwargs
    if len(args) > 2 or set(given) != {"x_dict", "edge_index_dict"}:
        return "relation-arguments"
    x, edges = given["x_dict"], given["edge_index_dict"]
    if not isinstance(x, Mapping) or not isinstance(edges, Mapping):
        return "input-form"
    members = []
    for key, conv in hetero.convs._modules.items():
        edge_type = _edge_type(key)
        if edge_type in x:
            return "input-form"
        if edge_type not in edges:
            continue
        source, target = edge_type[0], edge_type[-1]
        if source not in x or target not in x or (source != target and is_square(conv)):
            return "input-form"
        members.append(Member(edge_type, conv, source, target))
    return call_of(hetero, members, x, edges, "pyg.HeteroConv") if members else "empty"


@lru_cache(maxsize=4096)
def _edge_type(key: str) -> Any:
    """The edge type that PyG keeps a layer under."""
    from torch_geometric.nn.module_dict import ModuleDict

    return ModuleDict.to_external_key(key)


def call_of(
    wrapper: Any,
    members: list[Member],
    x: Mapping[str, Tensor],
    edges: Mapping[Any, Tensor],
    symbol: str,
) -> Call | str:
    """The call of a wrapper's layers as batches, or the reason code why each runs by itself.

    Parameters
    ----------
    wrapper : Module
        That has the layers.
    members : list of Member
        At least one.
    x : mapping of str to Tensor [num_nodes, F]
    edges : mapping of relation to Tensor [2, E]
    symbol : str
        Of the wrapper, in profiles.
    """
    before = known(wrapper, [member.conv for member in members], kind_of)
    if before.reason is not None:
        return before.reason
    found, like = before.batches(members), before.parameters[0]
    reason = features_reason(found, x, x, like) or _edges_reason(members, edges, like)
    reason = reason or dropout_reason(found, symbol)
    return reason or Call(found, x, edges)


def _edges_reason(members: list[Member], edges: Mapping[Any, Any], like: Tensor) -> str | None:
    total = 0
    for member in members:
        edge_index = edges[member.relation]
        if type(edge_index) is not Tensor:
            return "graph-type"
        if edge_index.layout is not torch.strided:
            return "adjacency"
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            return "input-form"
        if edge_index.dtype not in (torch.int64, torch.int32):
            return "input-form"
        if edge_index.device != like.device:
            return "device-mixed"
        total += edge_index.shape[1]
    return "too-small" if 0 < total < get_config().min_edges else None


def _union_of(batch: Batch, x: Mapping[str, Tensor], edges: Mapping[Any, Tensor]) -> Union:
    """The union of a batch's relations, kept with their edges."""
    sizes = [[len(x[name]) for name in names] for names in (batch.sources, batch.targets)]
    given = [edges[member.relation] for member in batch.members]
    key = (
        batch.kind.loops,
        tuple(member.relation for member in batch.members),
        tuple(map(tuple, sizes)),
    )
    return unions.get(given, key, lambda: _made(batch, given, *sizes))


def _made(batch: Batch, edges: list[Tensor], src_sizes: list[int], dst_sizes: list[int]) -> Union:
    pieces, ends = [], []
    for number, (member, edge_index) in enumerate(zip(batch.members, edges, strict=True)):
        table, end = batch.sources.index(member.source), batch.targets.index(member.target)
        ends.append(end)
        if batch.kind.loops == "replaced":
            src, dst = edge_index[:, edge_index[0] != edge_index[1]]
            count = min(src_sizes[table], dst_sizes[end])
            loops = torch.arange(count, device=src.device, dtype=src.dtype)
            pieces.append(Piece(number, table, loops, loops))
        else:
            src, dst = edge_index
        pieces.append(Piece(number, table, src, dst))
    return Union(pieces, ends, src_sizes, dst_sizes)
