"""DGL's ``HeteroGraphConv``: which calls run in batches of relations, and how.

Relations whose layers are of one kind share one graph (:class:`gnn_backend.layers.hetero.union.
Union`), one product with their weights and one aggregation.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from dgl import DGLGraph
from dgl.heterograph import DGLBlock
from torch import Tensor

from gnn_backend.adapters.dgl.graph import resident_relation
from gnn_backend.adapters.dgl.hetero_kinds import kind_of
from gnn_backend.adapters.known_kinds import known
from gnn_backend.adapters.relations import (
    Batch,
    Member,
    dropout_reason,
    features_reason,
    run_batches,
)
from gnn_backend.config import get_config
from gnn_backend.layers.hetero.union import Piece, Union

_UNION = "gnn_backend-union-"
_SUMS = {"_sum_reduce_func": "sum", "_mean_reduce_func": "mean"}
_local = threading.local()


class _Call(NamedTuple):
    """What :func:`eligible` found, for :func:`fast`."""

    batches: list[Batch]
    x_src: Mapping[str, Tensor]
    x_dst: Mapping[str, Tensor]


def eligible(
    hetero: Any, g: Any, inputs: Any, mod_args: Any = None, mod_kwargs: Any = None
) -> str | None:
    """Reason code why this call of ``HeteroGraphConv.forward`` runs relation by relation, or None.

    Where it does, each relation's layer is still accelerated by itself.
    """
    found = _prepared(hetero, g, inputs, mod_args, mod_kwargs)
    if isinstance(found, str):
        return found
    _local.call = (inputs, found)
    return None


def static_reason(hetero: Any) -> str | None:
    """The part of :func:`eligible` that the layers alone decide."""
    return known(hetero, list(hetero.mods.values()), kind_of).reason


def fast(
    hetero: Any, g: DGLGraph, inputs: Any, mod_args: Any = None, mod_kwargs: Any = None
) -> dict[str, Tensor]:
    """``HeteroGraphConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    hetero : dgl.nn.pytorch.HeteroGraphConv
    g : DGLGraph
    inputs : dict of Tensor [num_nodes, F], or pair of them
    mod_args, mod_kwargs : dict, optional
        Without anything for a relation that runs.

    Returns
    -------
    dict of Tensor

    Raises
    ------
    Unsupported
        No kernel takes these operands.
    """
    given, call = vars(_local).pop("call", (None, None))
    if given is not inputs:  # as where aliases of the tensors are followed
        call = _prepared(hetero, g, inputs, mod_args, mod_kwargs)
    found = run_batches(
        call.batches,
        lambda batch: _union_of(g, batch),
        call.x_src,
        call.x_dst,
        _sums(hetero.agg_fn),
        hetero.agg_fn,
    )
    return {target: found[target] for target in g.dsttypes if target in found}


def _sums(aggregate: Any) -> str | None:
    """Whether an aggregating function is DGL's own sum or mean."""
    from dgl.nn.pytorch import hetero

    given = getattr(aggregate, "keywords", None) or {}
    if getattr(aggregate, "func", None) is not hetero._agg_func or set(given) != {"fn"}:
        return None
    fn = given["fn"]
    return _SUMS.get(fn.__name__) if fn.__module__ == hetero.__name__ else None


def _prepared(hetero: Any, g: Any, inputs: Any, mod_args: Any, mod_kwargs: Any) -> _Call | str:
    if type(g) not in (DGLGraph, DGLBlock):
        return "graph-type"
    tables = _tables(g, inputs)
    if tables is None:
        return "input-form"
    x_src, x_dst = tables
    members = []
    for canonical in g.canonical_etypes:
        source, name, target = canonical
        if source not in x_src:
            continue
        if target not in x_dst:
            if isinstance(inputs, tuple) or g.is_block:
                continue
            return "input-form"  # a KeyError of stock
        if (mod_args and mod_args.get(name)) or (mod_kwargs and mod_kwargs.get(name)):
            return "relation-arguments"
        try:
            conv = hetero._get_module(canonical)
        except KeyError:
            return "input-form"
        members.append(Member(canonical, conv, source, target))
    if not members:
        return "empty"
    before = known(hetero, [member.conv for member in members], kind_of)
    if before.reason is not None:
        return before.reason
    found, like = before.batches(members), before.parameters[0]
    reason = _graph_reason(g, found, x_src, x_dst) or features_reason(found, x_src, x_dst, like)
    if reason is not None:
        return reason
    if g.device != like.device:
        return "device-mixed"
    return dropout_reason(found, "dgl.HeteroGraphConv") or _Call(found, x_src, x_dst)


def _tables(g: Any, inputs: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Features of sources and destinations by type, as stock takes them apart."""
    if isinstance(inputs, tuple):
        if len(inputs) != 2 or not all(isinstance(part, Mapping) for part in inputs):
            return None
        return inputs
    if not isinstance(inputs, Mapping) or not all(isinstance(x, Tensor) for x in inputs.values()):
        return None
    if not g.is_block:
        return inputs, inputs
    known = set(g.dsttypes)
    return inputs, {k: v[: g.number_of_dst_nodes(k)] for k, v in inputs.items() if k in known}


def _graph_reason(
    g: Any, found: list[Batch], x_src: Mapping[str, Any], x_dst: Mapping[str, Any]
) -> str | None:
    index = g._graph
    if resident_relation(index) is None and index.ctx.device_type != 1:
        return "dgl-no-cuda"
    least = get_config().min_edges
    if least > 0 and g.num_edges() < least:
        return "too-small"
    sources = {name for batch in found for name in batch.sources}
    targets = {name for batch in found for name in batch.targets}
    tables = [(x_src[name], g.num_src_nodes(name)) for name in sources]
    tables += [(x_dst[name], g.num_dst_nodes(name)) for name in targets]
    if any(not isinstance(x, Tensor) or len(x) != size for x, size in tables):
        return "input-form"
    # On one frame stock's destinations overwrite what sources wrote under the same name.
    shared = () if g.is_block else sources & targets
    return "input-form" if any(x_src[name] is not x_dst[name] for name in shared) else None


def _union_of(g: DGLGraph, batch: Batch) -> Union:
    """The union of a batch's relations, kept with the graph's structure."""
    key = (_UNION, batch.kind.loops, tuple(member.relation for member in batch.members))
    kept = g._graph._cache
    found = kept.get(key)
    if found is None:
        found = kept[key] = _made(g, batch)
    return found  # type: ignore[no-any-return]


def _made(g: DGLGraph, batch: Batch) -> Union:
    src_sizes = [g.num_src_nodes(name) for name in batch.sources]
    dst_sizes = [g.num_dst_nodes(name) for name in batch.targets]
    pieces, ends = [], []
    own = batch.kind.loops == "own"
    for number, member in enumerate(batch.members):
        src, dst = g.edges(etype=member.relation, order="eid")
        table, end = batch.sources.index(member.source), batch.targets.index(member.target)
        pieces.append(Piece(number, table, src, dst))
        ends.append(end)
        if own:  # the destination's own row is one of its neighbours
            rows = torch.arange(dst_sizes[end], device=src.device, dtype=src.dtype)
            pieces.append(Piece(number, len(src_sizes) + end, rows, rows))
    return Union(pieces, ends, src_sizes + dst_sizes if own else src_sizes, dst_sizes)
