"""Graphs of the paths of a graph, on the device: what is reached along them, edges as nodes."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from dgl import DGLGraph, utils
from dgl.base import DGLError
from torch import Tensor

from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from gnn_backend.adapters.dgl.residence.mirror import Relation
from gnn_backend.adapters.dgl.residence.queries import edge_ids, neighbours


def metapath_reachable_graph(stock: Any, g: Any, metapath: Any) -> Any:
    """``dgl.metapath_reachable_graph``, which multiplies SciPy's matrices on the CPU."""
    if type(g._graph) is not ResidentIndex or len(metapath) == 0:
        return stock(g, metapath)
    from dgl import convert

    types = [g.to_canonical_etype(etype) for etype in metapath]
    relations = [g._graph.relations[g.get_etype_id(etype)] for etype in types]
    src, dst = _reached(relations)
    first, last = types[0][0], types[-1][2]
    made = convert.heterograph(
        {(first, "_E", last): (src.to(g.idtype), dst.to(g.idtype))},
        {first: relations[0].num_src, last: relations[-1].num_dst},
        idtype=g.idtype, device=g.device,
    )  # fmt: skip
    for ntype in dict.fromkeys((first, last)):
        made.nodes[ntype].data.update(g.nodes[ntype].data)
    return made


def _reached(relations: list[Relation]) -> tuple[Tensor, Tensor]:
    """Pairs of a start and an end of a path, each once, by start and end."""
    src, dst = _distinct(*relations[0].ends, relations[0].num_dst)
    for before, relation in itertools.pairwise(relations):
        if before.num_dst != relation.num_src:
            raise DGLError("Expect each relation of a metapath to start where the one before ends, "
                           f"but got {before.num_dst} and {relation.num_src} nodes.")  # fmt: skip
        csr = relation.graph.csr("src")
        path, positions = neighbours(csr, dst)
        src, dst = _distinct(src[path], csr.indices[positions], relation.num_dst)
    return src, dst


def _distinct(src: Tensor, dst: Tensor, num_dst: int) -> tuple[Tensor, Tensor]:
    width = max(num_dst, 1)
    pairs = torch.unique(src.long() * width + dst.long())
    return torch.div(pairs, width, rounding_mode="floor"), pairs % width


def line_graph(stock: Any, g: Any, backtracking: bool = True, shared: bool = False) -> Any:
    """``dgl.line_graph``, of which stock's index is made on the CPU."""
    if type(g._graph) is not ResidentIndex:
        return stock(g, backtracking, shared)
    if not g.is_homogeneous:
        raise DGLError(f"Expect a homogeneous graph, but got the relations {g.canonical_etypes}.")
    relation = g._graph.relations[0]
    src, dst = relation.ends
    csr = relation.graph.csr("src")
    first, positions = neighbours(csr, dst)
    second = edge_ids(csr, positions).long()
    # A loop follows itself, which is no edge of the line graph.
    onward = first != second if backtracking else dst[second] != src[first]
    first, second = first[onward], second[onward]
    ends = first.to(g.idtype), second.to(g.idtype)
    made = Relation.from_ends(*ends, relation.num_edges, relation.num_edges, True)
    found = DGLGraph(ResidentIndex.of_relation(made))
    if shared:
        utils.set_new_frames(found, node_frames=utils.extract_edge_subframes(g, None))
    return found
