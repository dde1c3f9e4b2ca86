"""``dgl.to_simple`` of a resident graph; DGL's own refuses any graph that is not on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from dgl import DGLGraph, utils
from dgl.base import DGLError
from dgl.frame import Frame
from torch import Tensor

from gnn_backend.adapters.dgl.kernels import OPERATORS
from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from gnn_backend.adapters.dgl.residence.transforms import simple


def to_simple(
    stock: Any,
    g: DGLGraph,
    return_counts: str | None = "count",
    writeback_mapping: bool = False,
    copy_ndata: bool = True,
    copy_edata: bool = False,
    aggregator: str = "arbitrary",
) -> Any:
    """Merge parallel edges; arguments and result are those of :func:`dgl.to_simple`."""
    index = g._graph
    if type(index) is not ResidentIndex:
        return stock(
            g, return_counts, writeback_mapping, copy_ndata, copy_edata, aggregator
        )  # fmt: skip
    if g.is_block:
        raise DGLError("Expect a graph that is not a block; a block cannot be made simple.")
    if aggregator not in ("arbitrary", "sum", "mean"):
        raise DGLError(f"Expect aggregator to be 'arbitrary', 'sum' or 'mean', but got "
                       f"{aggregator!r}.")  # fmt: skip
    relations, counts, places = zip(*map(simple, index.relations), strict=True)
    made = DGLGraph(index.with_relations(relations), g.ntypes, g.etypes)
    if copy_ndata:
        utils.set_new_frames(made, node_frames=utils.extract_node_subframes(g, None))
    if copy_edata and aggregator == "arbitrary":
        firsts = [_first(place, count.numel()) for place, count in zip(places, counts, strict=True)]
        utils.set_new_frames(made, edge_frames=utils.extract_edge_subframes(g, firsts))
    elif copy_edata:
        frames = [
            _summed(frame, place.long(), count, aggregator == "mean")
            for frame, place, count in zip(g._edge_frames, places, counts, strict=True)
        ]
        utils.set_new_frames(made, edge_frames=frames)
    if return_counts is not None:
        for etype, count in zip(g.canonical_etypes, counts, strict=True):
            made.edges[etype].data[return_counts] = count
    if not writeback_mapping:
        return made
    if len(places) == 1:
        return made, places[0]
    return made, dict(zip(g.canonical_etypes, places, strict=True))


def _first(place: Tensor, count: int) -> Tensor:
    """The first of the edges that each edge of the simple graph stands for."""
    first = torch.full((count,), place.numel(), device=place.device)
    order = torch.arange(place.numel(), device=place.device)
    return first.scatter_reduce_(0, place.long(), order, "amin")


def _summed(frame: Frame, place: Tensor, count: Tensor, mean: bool) -> Frame:
    """Sums or means of the features of the edges that each edge stands for."""
    columns = {}
    for name in frame:
        if not frame[name].is_floating_point():
            got = f"edge feature {name!r} is of {frame[name].dtype}"
            raise DGLError(f"{got}, expected a floating-point type; convert it, or choose "
                           "aggregator='arbitrary'")  # fmt: skip
        total = OPERATORS["scatter_add"](frame[name], place, count.numel())
        if mean:
            total = total / count.to(total.dtype).view(-1, *[1] * (total.dim() - 1))
        columns[name] = total
    return Frame(columns, num_rows=count.numel())
