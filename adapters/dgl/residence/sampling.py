"""Sampling of neighbours and filtering of ids, on the device.

Random numbers come from torch's generator of the device, or, once ``dgl.seed`` was called, from
one with that seed; the draws are not those that DGL's CPU code would make.
"""

from __future__ import annotations

from typing import Any

import torch
from dgl.base import DGLError
from torch import Tensor

from gnn_backend.adapters.dgl.residence.arrays import DeviceArray, tensor_of
from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from gnn_backend.adapters.dgl.residence.native import native
from gnn_backend.adapters.dgl.residence.queries import check_ids, edge_ids, neighbours
from gnn_backend.adapters.dgl.residence.subgraphs import Subgraph, sampled
from gnn_backend.graph import CSR

_generators: dict[torch.device, torch.Generator] = {}
_seed: list[int] = []


def seed(value: int) -> None:
    """Seed the draws of every device, as ``dgl.seed`` does for those on the CPU."""
    _seed[:] = [int(value)]
    _generators.clear()


def _generator(device: torch.device) -> torch.Generator | None:
    if not _seed:
        return None
    if device not in _generators:
        _generators[device] = torch.Generator(device).manual_seed(_seed[0])
    return _generators[device]


def _uniform(count: int, device: torch.device) -> Tensor:
    """Numbers in (0, 1), float64."""
    drawn = torch.rand(count, dtype=torch.float64, device=device, generator=_generator(device))
    return drawn.clamp_(min=torch.finfo(torch.float64).tiny)


@native("SampleNeighbors")
def sample_neighbors(
    index: ResidentIndex, nodes: Any, fanouts: Any, edge_dir: str, weights: Any, excluded: Any,
    replace: bool,
) -> Any:  # fmt: skip
    if edge_dir not in ("in", "out"):
        raise DGLError(f"Expect edge_dir to be 'in' or 'out', but got {edge_dir!r}.")
    direction: Any = "dst" if edge_dir == "in" else "src"
    chosen = [tensor_of(given, index.device, index.idtype) for given in nodes]
    for ids, count in zip(chosen, index.counts, strict=True):
        check_ids(ids, count, "node")
    numbers = tensor_of(fanouts, torch.device("cpu")).tolist()
    ends, edges = [], []
    for etype, (src_type, dst_type) in enumerate(index.ends):
        relation = index.relations[etype]
        at = chosen[dst_type if direction == "dst" else src_type]
        if at.numel() == 0 or numbers[etype] == 0 or relation.num_edges == 0:
            owner = positions = torch.empty(0, dtype=torch.long, device=index.device)
            csr = None
        else:
            csr = relation.graph.csr(direction)
            weight = _edge_weights(index, etype, weights, excluded)
            owner, positions = draw(csr, at, numbers[etype], weight, replace)
        if csr is None:
            others = ids = torch.empty(0, dtype=index.idtype, device=index.device)
        else:
            others = csr.indices[positions].to(index.idtype)
            ids = edge_ids(csr, positions).to(index.idtype)
        picked = at[owner]
        ends.append((others, picked) if direction == "dst" else (picked, others))
        edges.append(ids)
    return sampled(index, ends, edges)


def _edge_weights(index: ResidentIndex, etype: int, weights: Any, excluded: Any) -> Tensor | None:
    """Weight of each edge, in the order of edge ids; None if all are alike."""
    weight = None
    if len(weights) and len(weights[etype]):
        weight = tensor_of(weights[etype], index.device)
        if weight.numel() != index.relations[etype].num_edges:
            raise DGLError(f"Expect a weight for each of {index.relations[etype].num_edges} edges, "
                           f"but got {weight.numel()}.")  # fmt: skip
        weight = weight.double()
    if len(excluded) and len(excluded[etype]):
        count = index.relations[etype].num_edges
        without = tensor_of(excluded[etype], index.device).long()
        without = without[(without >= 0) & (without < count)]  # stock passes over others
        if weight is None:
            weight = torch.ones(count, dtype=torch.float64, device=index.device)
        else:
            weight = weight.clone()
        weight[without] = 0
    return weight


def draw(
    csr: CSR, rows: Tensor, fanout: int, weight: Tensor | None, replace: bool
) -> tuple[Tensor, Tensor]:
    """Draw up to ``fanout`` neighbours of each row.

    Parameters
    ----------
    csr : CSR
    rows : integer [R]
    fanout : int
        -1 takes all.
    weight : float64 [E] or None
        Relative probability of each edge, by edge id; those of weight 0 are never drawn.
    replace : bool
        Whether a neighbour may be drawn again.

    Returns
    -------
    Tensor [S], Tensor [S]
        Position in ``rows`` (ascending) and position in the CSR of each draw.
    """
    if replace and fanout >= 0:
        if weight is None:
            return _repeated_uniform(csr, rows, fanout)
        return _repeated_weighted(csr, rows, fanout, weight)
    owner, positions = neighbours(csr, rows)
    score = _uniform(positions.numel(), positions.device) if fanout >= 0 else None
    if weight is not None:
        of_edge = weight[edge_ids(csr, positions).long()]
        possible = (of_edge > 0).nonzero()[:, 0]
        owner, positions = owner[possible], positions[possible]
        if score is not None:  # the smallest of exponential variables at these rates
            score = -torch.log(score[possible]) / of_edge[possible]
    if score is None:
        return owner, positions
    by_score = torch.argsort(score)
    order = by_score[torch.argsort(owner[by_score], stable=True)]
    begin = torch.searchsorted(owner, torch.arange(rows.numel(), device=rows.device))
    rank = torch.arange(owner.numel(), device=owner.device) - begin[owner]
    kept = torch.sort(order[rank < fanout]).values
    return owner[kept], positions[kept]


def _repeated_uniform(csr: CSR, rows: Tensor, fanout: int) -> tuple[Tensor, Tensor]:
    rows = rows.long()
    begin = csr.indptr[rows].long()
    degree = csr.indptr[rows + 1].long() - begin
    inhabited = (degree > 0).nonzero()[:, 0]
    owner = inhabited.repeat_interleave(fanout)
    share = _uniform(owner.numel(), owner.device) * degree[owner]
    return owner, begin[owner] + share.long().clamp_(max=degree[owner] - 1)


def _repeated_weighted(
    csr: CSR, rows: Tensor, fanout: int, weight: Tensor
) -> tuple[Tensor, Tensor]:
    owner, positions = neighbours(csr, rows)
    of_edge = weight[edge_ids(csr, positions).long()]
    possible = (of_edge > 0).nonzero()[:, 0]
    owner, positions = owner[possible], positions[possible]
    total = torch.cumsum(of_edge[possible], 0)
    number = torch.arange(rows.numel() + 1, device=rows.device)
    bounds = torch.searchsorted(owner, number)
    inhabited = (bounds.diff() > 0).nonzero()[:, 0]
    drawn = inhabited.repeat_interleave(fanout)
    before = torch.cat([total.new_zeros(1), total])
    low, high = before[bounds[drawn]], before[bounds[drawn + 1]]
    wanted = low + _uniform(drawn.numel(), drawn.device) * (high - low)
    at = torch.searchsorted(total, wanted, right=True)
    at = torch.minimum(torch.maximum(at, bounds[drawn]), bounds[drawn + 1] - 1)
    return drawn, positions[at]


# ---------------------------------------------------------------------- filters


class Filter:
    """A set of ids, in the place of DGL's filter object, which exists on CUDA alone."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids


@native("FilterCreateFromSet")
def create_filter(ids: DeviceArray) -> Filter:
    return Filter(ids.tensor)


@native("FilterFindIncludedIndices")
def included(ids: Filter, test: DeviceArray) -> DeviceArray:
    found = torch.isin(test.tensor, ids.ids).nonzero()[:, 0]
    return DeviceArray(found.to(test.tensor.dtype))


@native("FilterFindExcludedIndices")
def excluded(ids: Filter, test: DeviceArray) -> DeviceArray:
    found = torch.isin(test.tensor, ids.ids, invert=True).nonzero()[:, 0]
    return DeviceArray(found.to(test.tensor.dtype))


__all__ = ["Subgraph", "draw", "seed"]
