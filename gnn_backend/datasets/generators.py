"""Seeded graphs. CPU and CUDA draw different streams, so a figure names the device as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gnn_backend.datasets.data import RelationalData
from gnn_backend.errors import invalid

#: Standard deviation of the logarithm of how many edges the types of real typed graphs have.
SPREAD_OF_SIZES = 1.22
ZIPF_EXPONENT = 0.9  # of how often a node is an end


def rmat(
    num_nodes: int,
    num_edges: int,
    *,
    quadrants: tuple[float, float, float] = (0.57, 0.19, 0.19),
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Recursive-matrix graph: a directed multigraph with heavy-tailed degrees.

    Every bit of an edge's (source, destination) pair is drawn from the quadrant probabilities
    (a, b, c, 1-a-b-c); node ids are permuted, so that hubs are spread, and folded into
    ``num_nodes``.

    Parameters
    ----------
    num_nodes, num_edges : int
    quadrants : (a, b, c)
        a keeps both bits 0, b sets the destination's bit, c the source's.
    seed : int
    device : torch.device or str
        Where the graph is drawn; the random stream of CPU and CUDA differ.

    Returns
    -------
    Tensor
        int64 [2, num_edges] on ``device``.
    """
    if num_nodes < 1 or num_edges < 0:
        raise invalid("num_nodes, num_edges", "not a graph", (num_nodes, num_edges), ">= 1, >= 0")
    a, b, c = quadrants
    generator = torch.Generator(device=device).manual_seed(seed)
    edges = torch.zeros(2, num_edges, dtype=torch.int64, device=device)
    bits = (num_nodes - 1).bit_length()
    for _ in range(bits):
        draw = torch.rand(num_edges, device=device, generator=generator)
        edges.mul_(2)
        edges[0] += draw >= a + b
        edges[1] += ((draw >= a) & (draw < a + b)) | (draw >= a + b + c)
    ids = torch.randperm(1 << bits, device=device, generator=generator)
    for end in range(2):
        edges[end] = ids[edges[end]] % num_nodes
    return edges


def uniform(num_src: int, num_dst: int, num_edges: int, *, seed: int = 0) -> torch.Tensor:
    """Bipartite multigraph with independent uniform endpoints: int64 [2, num_edges] on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(num_src, (num_edges,), generator=generator)
    dst = torch.randint(num_dst, (num_edges,), generator=generator)
    return torch.stack([src, dst])


def block_model(
    num_nodes: int,
    block: int,
    density: float,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Stochastic block model without edges between blocks: a locally dense directed graph.

    Nodes are in blocks of ``block`` consecutive ids (the last may be smaller); every pair of a
    block, a node with itself included, is an edge with probability ``density``.

    Parameters
    ----------
    num_nodes, block : int
    density : float
        0 to 1.
    seed : int
    device : torch.device or str
        Where the graph is drawn; the random stream of CPU and CUDA differ.

    Returns
    -------
    Tensor
        int64 [2, E] on ``device``, by source.
    """
    if num_nodes < 0 or block < 1 or not 0 <= density <= 1:
        got = (num_nodes, block, density)
        raise invalid("num_nodes, block, density", "not a graph", got, ">= 0, >= 1, 0 to 1")
    generator = torch.Generator(device=device).manual_seed(seed)
    draw = torch.rand(num_nodes, block, device=device, generator=generator)
    src, place = (draw < density).nonzero(as_tuple=True)
    dst = src // block * block + place
    return torch.stack([src, dst])[:, dst < num_nodes]


def grid(
    rows: int,
    columns: int,
    *,
    removed: float = 0.5,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Road-like grid: crossings of two to four roads, each road an edge both ways.

    Of a full grid, numbered row by row, roads are taken away at random; no crossing loses more
    than one road of either orientation, and those at the rim lose none, so that degrees are 2 to
    4 (with two rows and columns or more) and the graph has no tails.

    Parameters
    ----------
    rows, columns : int
    removed : float
        0 to 1: probability with which a road that may be taken away is.
    seed : int
    device : torch.device or str
        Where the graph is drawn; the random stream of CPU and CUDA differ.

    Returns
    -------
    Tensor
        int64 [2, E] on ``device``: every road one way, then all the other way.
    """
    if rows < 1 or columns < 1 or not 0 <= removed <= 1:
        got = (rows, columns, removed)
        raise invalid("rows, columns, removed", "not a grid", got, ">= 1, >= 1, 0 to 1")
    generator = torch.Generator(device=device).manual_seed(seed)
    ids = torch.arange(rows * columns, device=device).view(rows, columns)
    # Of two neighbouring crossings exactly one is even, so each has one road to lose.
    even = (ids // columns + ids % columns) % 2 == 0
    inner = torch.zeros_like(even)
    inner[1:-1, 1:-1] = True
    kept = []
    for ends in ((ids[:, :-1], ids[:, 1:]), (ids[:-1], ids[1:])):
        first, second = (end.reshape(-1) for end in ends)
        draw = torch.rand(first.numel(), device=device, generator=generator)
        may_go = even.view(-1)[first] & inner.view(-1)[first] & inner.view(-1)[second]
        stays = ~(may_go & (draw < removed))
        kept.append(torch.stack([first[stays], second[stays]]))
    one_way = torch.cat(kept, 1)
    return torch.cat([one_way, one_way.flip(0)], 1)


def relational(
    num_nodes: int, num_edges: int, num_edge_types: int, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Typed multigraph: types of lognormal size, ends that follow Zipf's law.

    Parameters
    ----------
    num_nodes, num_edges, num_edge_types : int
    seed : int

    Returns
    -------
    edge_index : Tensor
        int64 [2, num_edges], on the CPU.
    edge_type : Tensor
        int64 [num_edges], ascending.
    """
    if num_nodes < 1 or num_edges < 0 or num_edge_types < 1:
        got = (num_nodes, num_edges, num_edge_types)
        raise invalid(
            "num_nodes, num_edges, num_edge_types", "not a graph", got, ">= 1, >= 0, >= 1"
        )
    generator = torch.Generator().manual_seed(seed)
    edge_type = _sizes(num_edge_types, num_edges, generator).sort().values
    ids = torch.randperm(num_nodes, generator=generator)
    ends = [ids[_zipf(num_nodes, num_edges, generator)] for _ in range(2)]
    return torch.stack(ends), edge_type


@dataclass(frozen=True)
class Schema:
    """Types of nodes and edges, and how many of each there are.

    Attributes
    ----------
    nodes : mapping of str to int
    edges : mapping of (source type, name, destination type) to int
    """

    nodes: Mapping[str, int]
    edges: Mapping[tuple[str, str, str], int]


def random_schema(
    num_nodes: int, num_edges: int, num_node_types: int, num_edge_types: int, *, seed: int = 0
) -> Schema:
    """Sizes of types as :func:`relational` draws them; each edge type joins two types of nodes.

    No type of nodes is empty.
    """
    if not 1 <= num_node_types <= num_nodes or num_edges < 0 or num_edge_types < 1:
        got = (num_nodes, num_edges, num_node_types, num_edge_types)
        raise invalid("sizes", "not a graph", got, "1 or more node types, no more than nodes, ...")
    generator = torch.Generator().manual_seed(seed)
    own = _sizes(num_node_types, num_nodes - num_node_types, generator)
    nodes = (own.bincount(minlength=num_node_types) + 1).tolist()
    edges = _sizes(num_edge_types, num_edges, generator).bincount(minlength=num_edge_types).tolist()
    joined = torch.randint(num_node_types, (num_edge_types, 2), generator=generator).tolist()
    kinds = [(f"n{a}", f"e{number}", f"n{b}") for number, (a, b) in enumerate(joined)]
    return Schema(
        {f"n{number}": count for number, count in enumerate(nodes)},
        dict(zip(kinds, edges, strict=True)),
    )


def heterogeneous(name: str, schema: Schema, *, seed: int = 0) -> RelationalData:
    """Multigraph of a schema, whose edges' ends follow Zipf's law among the nodes of their type.

    Nodes are numbered type after type, in the schema's order, and so are edges.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor(list(schema.nodes.values()))
    first = dict(zip(schema.nodes, (counts.cumsum(0) - counts).tolist(), strict=True))
    ids = {
        kind: torch.randperm(count, generator=generator) + first[kind]
        for kind, count in schema.nodes.items()
    }
    edges = [
        torch.stack([ids[end][_zipf(schema.nodes[end], count, generator)] for end in (src, dst)])
        for (src, _, dst), count in schema.edges.items()
    ]
    sizes = torch.tensor(list(schema.edges.values()))
    return RelationalData(
        name,
        torch.cat(edges, 1),
        int(counts.sum()),
        edge_type=torch.arange(len(sizes)).repeat_interleave(sizes),
        num_edge_types=len(sizes),
        node_type=torch.arange(len(counts)).repeat_interleave(counts),
        num_node_types=len(counts),
        edge_type_names=tuple(" ".join(kind) for kind in schema.edges),
        node_type_names=tuple(schema.nodes),
    )


def _sizes(types: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """A type for each of ``count``, by lognormal shares."""
    if not count:
        return torch.empty(0, dtype=torch.int64)
    shares = torch.exp(SPREAD_OF_SIZES * torch.randn(types, generator=generator))
    return torch.multinomial(shares, count, replacement=True, generator=generator)


def _zipf(nodes: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Nodes 0 .. nodes-1, of which the k-th is drawn in proportion to k ** -exponent."""
    shares = torch.arange(1, nodes + 1, dtype=torch.float64) ** -ZIPF_EXPONENT
    drawn = torch.rand(count, dtype=torch.float64, generator=generator)
    return torch.searchsorted((shares / shares.sum()).cumsum(0), drawn).clamp_(max=nodes - 1)
