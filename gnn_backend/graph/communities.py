"""Order of the nodes by nested communities, in time linear in the edges but for sorts.

Labels are propagated: a node takes the label that most of its edges lead to, as long as no more
than a number of nodes have it. The communities found are the nodes of a smaller graph, on which the
same is done with a larger bound, and so on; the order is that of a walk through the tree. Bounds on
the sizes, 32 nodes first (the rows that a block of a GPU works on) and 32 times as many each time,
keep a few labels from flooding graphs with hubs, and make the order local at every scale of caches.

Label propagation: Raghavan, Albert and Kumara, Physical Review E 76 (2007); with bounds on the
sizes and on smaller and smaller graphs: Meyerhenke, Sanders and Schulz, SEA 2014. On CUDA half of
the nodes move at a time and everything is sorts of the edges; on the CPU nodes move one by one
(``numba_templates/communities.py``). The two find different orders, each always the same.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

SIZES = (32, 32**2, 32**3, 32**4)  # nodes of a community, level by level
ROUNDS = 4  # in which half of the nodes may move, on CUDA
PASSES = 2  # over all nodes, on the CPU; of many edges one, which finds nearly the same
MANY_EDGES = 1 << 25
_ENOUGH = 0.95  # of the communities left after a level: as good as nothing found


class Edges(Protocol):
    """The edges of an undirected graph with weights, both ways each."""

    def propagate(self, sizes: Tensor, bound: int, seed: int) -> Tensor:
        """A label for each node, itself a node's number, given the sizes of the nodes."""
        ...

    def contract(self, labels: Tensor, count: int) -> Edges:
        """The graph of the communities 0 .. count - 1, without edges inside of one."""
        ...


def order_of(edges: Edges, count: int, device: torch.device) -> Tensor:
    """Nodes in the order of nested communities.

    Parameters
    ----------
    edges : Edges
        Of nodes 0 .. count - 1.
    count : int
    device : torch.device
        That of the edges.

    Returns
    -------
    int64 [count]
        Place -> node.
    """
    sizes = torch.ones(count, dtype=torch.int64, device=device)
    parents: list[Tensor] = []
    for level, bound in enumerate(SIZES):
        nodes = sizes.numel()
        labels = edges.propagate(sizes, bound, level)
        kept, parent = labels.unique(return_inverse=True)
        parents.append(parent)
        sizes = sizes.new_zeros(kept.numel()).scatter_add_(0, parent, sizes)
        if kept.numel() <= 1 or (kept.numel() > _ENOUGH * nodes and level):
            break
        if level + 1 < len(SIZES):
            edges = edges.contract(parent, kept.numel())
    # From the top down: nodes by the place of their community, then by number.
    place = torch.arange(sizes.numel(), device=device)
    order = place
    for parent in reversed(parents):
        order = torch.argsort(place[parent], stable=True)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel(), device=device)
    return order


class SortedEdges:
    """Edges as pairs, worked on by sorts; for CUDA.

    Parameters
    ----------
    rows, columns : int32 or int64 [E]
    weights : int64 [E], optional
        By default 1 each.
    """

    def __init__(self, rows: Tensor, columns: Tensor, weights: Tensor | None = None) -> None:
        self.rows, self.columns, self.weights = rows, columns, weights

    def propagate(self, sizes: Tensor, bound: int, seed: int) -> Tensor:
        count, device = sizes.numel(), sizes.device
        generator = torch.Generator(device=device).manual_seed(seed)
        labels, held = torch.arange(count, device=device), sizes.clone()
        for _ in range(ROUNDS):
            # Of labels with as many edges the first in a random order is taken.
            label_of = torch.randperm(count, generator=generator, device=device)
            active = torch.rand(count, generator=generator, device=device) < 0.5
            wanted = self._wanted(labels, label_of, active, held, sizes, bound)
            nodes = (wanted != labels).nonzero().squeeze(1)
            _admit(nodes, wanted[nodes], labels, held, sizes, bound)
        return labels

    def _wanted(
        self, labels: Tensor, label_of: Tensor, active: Tensor, held: Tensor, sizes: Tensor,
        bound: int,
    ) -> Tensor:  # fmt: skip
        """The label that each active node has most edges to, of those it fits in; else its own."""
        count = labels.numel()
        rank = torch.empty_like(label_of)
        rank[label_of] = torch.arange(count, device=labels.device)
        chosen = active[self.rows]
        rows, columns = self.rows[chosen], self.columns[chosen]
        weights = None if self.weights is None else self.weights[chosen]
        keys = torch.add(rank[labels[columns]], rows.long(), alpha=count)
        keys, weight = _summed(keys, weights)
        row = keys.div(count, rounding_mode="floor")
        label = label_of[keys - row * count]
        stays = label == labels[row]
        fits = stays | (held[label] + sizes[row] <= bound)
        score = torch.where(fits, 2 * weight + stays, -1)  # a tie is no reason to move
        best = torch.zeros_like(labels).scatter_reduce_(0, row, score, "amax")
        first = torch.full_like(labels, count)
        wins = score == best[row]
        first.scatter_reduce_(0, row[wins], (keys - row * count)[wins], "amin")
        found = first < count
        return torch.where(found, label_of[first.clamp(max=count - 1)], labels)

    def contract(self, labels: Tensor, count: int) -> SortedEdges:
        rows, columns = labels[self.rows], labels[self.columns]
        between = rows != columns
        weights = None if self.weights is None else self.weights[between]
        keys, weight = _summed(rows[between] * count + columns[between], weights)
        row = keys.div(count, rounding_mode="floor")
        return SortedEdges(row, keys - row * count, weight)


def _summed(keys: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Distinct keys, ascending, and the sum of the weights of each."""
    keys, order = torch.sort(keys)
    starts = torch.ones(keys.numel(), dtype=torch.bool, device=keys.device)
    torch.ne(keys[1:], keys[:-1], out=starts[1:])
    first = starts.nonzero().squeeze(1)
    if weights is None:
        before = torch.cat([first, first.new_full((1,), keys.numel())])
    else:
        total = torch.nn.functional.pad(weights[order].cumsum(0), (1, 0))
        before = torch.cat([total[first], total[-1:]])
    return keys[first], before.diff()


def _admit(
    nodes: Tensor, wanted: Tensor, labels: Tensor, held: Tensor, sizes: Tensor, bound: int
) -> None:
    """Let nodes take the labels they want, in their order, until a label has ``bound`` nodes."""
    wanted, order = torch.sort(wanted, stable=True)
    nodes = nodes[order]
    total = sizes[nodes].cumsum(0)
    starts = torch.ones_like(wanted, dtype=torch.bool)
    starts[1:] = wanted[1:] != wanted[:-1]
    before = (total - sizes[nodes])[starts]
    within = total - before[starts.cumsum(0) - 1]
    fits = held[wanted] + within <= bound
    nodes, wanted = nodes[fits], wanted[fits]
    held.scatter_add_(0, labels[nodes], -sizes[nodes])
    held.scatter_add_(0, wanted, sizes[nodes])
    labels[nodes] = wanted
