"""Graphs of what is reached along several relations, on the device."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from dgl.base import DGLError
from torch import Tensor

from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from gnn_backend.adapters.dgl.residence.mirror import Relation
from gnn_backend.adapters.dgl.residence.queries import neighbours


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
