"""What DGL's layers take, made from one graph: features, weights, types, sequences, readouts.

Everything is drawn on the CPU from a generator of its own, so that it is the same on every device,
whatever else is asked for.
"""

from __future__ import annotations

import dataclasses
import zlib
from functools import cached_property
from typing import Any

import dgl
import torch
from torch import Tensor

from gnn_backend.bench.hosts import Shape
from gnn_backend.datasets import GraphData

TYPES = 3
"""Node types and edge types of layers that take them as numbers."""
EDGE_DIM = 8
"""Width of edge features."""
_PIECES = 4  # graphs of a batch
_LENGTH = 16  # nodes of a padded sequence, which costs its square
_SEQUENCES = 64
_SMALL = 10  # nodes of the small graph


@dataclasses.dataclass(frozen=True, eq=False)
class Inputs:
    """Arguments for layers over ``data``; each property is made when it is first read.

    Attributes
    ----------
    data : GraphData
    shape : Shape
    device : str
        Where tensors and graphs go.
    dtype : torch.dtype
        Of all floating-point tensors.
    """

    data: GraphData
    shape: Shape
    device: str
    dtype: torch.dtype

    @property
    def in_dim(self) -> int:
        return self.shape.in_dim

    @property
    def dim(self) -> int:
        return self.shape.dim

    @property
    def heads(self) -> int:
        return self.shape.heads

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.shape.heads * self.shape.dim

    # -- drawing ---------------------------------------------------------------------------

    def normal(self, name: str, *size: int) -> Tensor:
        """Standard normal numbers, the same for the same name and size."""
        drawn = torch.randn(*size, generator=_generator(name))
        return drawn.to(device=self.device, dtype=self.dtype)

    def positive(self, name: str, *size: int) -> Tensor:
        """Uniform numbers in [0.5, 1.5)."""
        drawn = torch.rand(*size, generator=_generator(name)) + 0.5
        return drawn.to(device=self.device, dtype=self.dtype)

    def whole(self, name: str, end: int, *size: int) -> Tensor:
        """Uniform int64 numbers in [0, end)."""
        return torch.randint(end, size, generator=_generator(name)).to(self.device)

    # -- graphs ----------------------------------------------------------------------------

    def place(self, graph: Any) -> Any:
        """Move a graph to the device."""
        return graph if self.device == "cpu" else graph.to(self.device)

    @cached_property
    def graph(self) -> Any:
        """The graph itself, with int64 ids."""
        source, destination = self.data.edge_index.cpu()
        return self.place(dgl.graph((source, destination), num_nodes=self.data.num_nodes))

    @cached_property
    def looped(self) -> Any:
        """The graph with a self-loop at every node, for layers that want in-edges everywhere."""
        source, destination = self.data.edge_index.cpu()
        graph = dgl.graph((source, destination), num_nodes=self.data.num_nodes)
        return self.place(dgl.add_self_loop(graph))

    @cached_property
    def batch(self) -> Any:
        """The graph's nodes as a batch of four graphs, for readouts."""
        graph = self.graph.local_var()
        graph.set_batch_num_nodes(self._pieces(graph.num_nodes()))
        graph.set_batch_num_edges(self._pieces(graph.num_edges()))
        return graph

    @cached_property
    def relations(self) -> Any:
        """Node types a and b of N nodes each, and every third edge in one of three relations."""
        source, destination = self.data.edge_index.cpu()
        ends = [(source[k::TYPES], destination[k::TYPES]) for k in range(TYPES)]
        names = (("a", "ab", "b"), ("b", "ba", "a"), ("a", "aa", "a"))
        counts = dict.fromkeys("ab", self.data.num_nodes)
        return self.place(dgl.heterograph(dict(zip(names, ends, strict=True)), counts))

    @cached_property
    def both_ways(self) -> Any:
        """The graph without parallel edges, every edge in both directions."""
        source, destination = self.data.edge_index.cpu()
        graph = dgl.graph((source, destination), num_nodes=self.data.num_nodes)
        return self.place(dgl.to_bidirected(dgl.to_simple(graph)))

    @cached_property
    def small(self) -> Any:
        """A cycle of ten nodes with a chord, for layers that visit nodes or pairs one by one."""
        ends = torch.arange(_SMALL)
        source = torch.cat([ends, torch.tensor([0])])
        destination = torch.cat([(ends + 1) % _SMALL, torch.tensor([_SMALL // 2])])
        return self.place(dgl.to_bidirected(dgl.graph((source, destination))))

    @cached_property
    def small_relations(self) -> Any:
        """The small graph as two relations between a and b."""
        source, destination = (end.cpu() for end in self.small.edges())
        data = {("a", "ab", "b"): (source, destination), ("b", "ba", "a"): (source, destination)}
        return self.place(dgl.heterograph(data, dict.fromkeys("ab", _SMALL)))

    def _pieces(self, count: int) -> Tensor:
        least = torch.full((_PIECES,), count // _PIECES)
        least[-1] += count % _PIECES
        return least.to(self.device)

    @cached_property
    def adjacency(self) -> Tensor:
        """Dense [N, N], a row for each destination; ones."""
        source, destination = self.data.edge_index.to(self.device)
        size = (self.data.num_nodes, self.data.num_nodes)
        dense = torch.zeros(size, device=self.device, dtype=self.dtype)
        dense[destination, source] = 1
        return dense

    # -- nodes -----------------------------------------------------------------------------

    @cached_property
    def x(self) -> Tensor:
        """Node features [N, in_dim]."""
        return self.normal("x", self.data.num_nodes, self.in_dim)

    @cached_property
    def x0(self) -> Tensor:
        """Further node features [N, in_dim]."""
        return self.normal("x0", self.data.num_nodes, self.in_dim)

    @cached_property
    def layers(self) -> list[Tensor]:
        """Features of two layers, [N, in_dim] each."""
        return [self.x, self.x0]

    @cached_property
    def small_x(self) -> Tensor:
        return self.normal("small_x", _SMALL, self.in_dim)

    @cached_property
    def x_by_type(self) -> dict[str, Tensor]:
        """Features of a and b, [N, in_dim] each."""
        return {"a": self.x, "b": self.x0}

    @cached_property
    def small_x_by_type(self) -> dict[str, Tensor]:
        return {"a": self.small_x, "b": self.normal("small_b", _SMALL, self.in_dim)}

    @cached_property
    def ids_by_type(self) -> dict[str, Tensor]:
        """Node ids [N] of a and b."""
        count = self.data.num_nodes
        return {name: self.whole(f"ids {name}", count, count) for name in "ab"}

    @cached_property
    def coord(self) -> Tensor:
        """Coordinates [N, 3]."""
        return self.normal("coord", self.data.num_nodes, 3)

    @cached_property
    def ntypes(self) -> Tensor:
        """A type for each node [N]."""
        return self.whole("ntypes", TYPES, self.data.num_nodes)

    @cached_property
    def atoms(self) -> Tensor:
        """Atomic numbers [N, 1], as a floating-point feature."""
        return (self.ntypes[:, None] + 6).to(self.dtype)

    @cached_property
    def labels(self) -> Tensor:
        """Classes [N]."""
        return self.whole("labels", TYPES, self.data.num_nodes)

    @cached_property
    def mask(self) -> Tensor:
        """Booleans [N], about half of them true."""
        return self.whole("mask", 2, self.data.num_nodes).bool()

    @cached_property
    def eigenvalues(self) -> Tensor:
        """[N, 4], of no matrix in particular."""
        return self.normal("eigenvalues", self.data.num_nodes, 4)

    @cached_property
    def eigenvectors(self) -> Tensor:
        """[N, 4], of no matrix in particular."""
        return self.normal("eigenvectors", self.data.num_nodes, 4)

    @cached_property
    def type_counts(self) -> Tensor:
        """How many rows in a row belong to each type [TYPES]; on the CPU, where DGL wants it."""
        count = self.data.num_nodes
        return torch.tensor([count // 2, 0, count - count // 2])

    @cached_property
    def segments(self) -> Tensor:
        """Lengths of segments of the nodes [4]."""
        return self._pieces(self.data.num_nodes)

    @cached_property
    def node_counts(self) -> list[int]:
        """Nodes of the batch's graphs."""
        return self._pieces(self.data.num_nodes).tolist()

    # -- edges -----------------------------------------------------------------------------

    @cached_property
    def weight(self) -> Tensor:
        """Positive edge weights [E]."""
        return self.positive("weight", self.data.num_edges)

    @cached_property
    def logits(self) -> Tensor:
        """A number for each edge and head [E, heads, 1]."""
        return self.normal("logits", self.data.num_edges, self.heads, 1)

    @cached_property
    def edge_x(self) -> Tensor:
        """Edge features [E, EDGE_DIM]."""
        return self.normal("edge_x", self.data.num_edges, EDGE_DIM)

    @cached_property
    def looped_edge_x(self) -> Tensor:
        """Edge features of the graph with self-loops [E + N, EDGE_DIM]."""
        return self.normal("looped_edge_x", self.data.num_edges + self.data.num_nodes, EDGE_DIM)

    @cached_property
    def wide_edge_x(self) -> Tensor:
        """Edge features [E, in_dim]."""
        return self.normal("wide_edge_x", self.data.num_edges, self.in_dim)

    @cached_property
    def pseudo(self) -> Tensor:
        """Pseudo-coordinates of edges [E, 2]."""
        return self.normal("pseudo", self.data.num_edges, 2)

    @cached_property
    def bound(self) -> float:
        """An upper bound of the eigenvalues of a normalised Laplacian."""
        return 2.0

    @cached_property
    def bounds(self) -> list[float]:
        """The bound of each graph of a batch."""
        return [self.bound]

    @cached_property
    def distances(self) -> Tensor:
        """Lengths of edges [E, 1]."""
        return self.positive("distances", self.data.num_edges, 1)

    @cached_property
    def etypes(self) -> Tensor:
        """A type for each edge [E]."""
        return self.whole("etypes", TYPES, self.data.num_edges)

    @cached_property
    def heads_of_edges(self) -> Tensor:
        """Features of the edges' sources [E, in_dim]."""
        return self.x[self.data.edge_index[0].to(self.device)]

    @cached_property
    def tails_of_edges(self) -> Tensor:
        """Features of the edges' destinations [E, in_dim]."""
        return self.x0[self.data.edge_index[1].to(self.device)]

    # -- padded sequences of nodes, walks --------------------------------------------------

    @cached_property
    def sequences(self) -> tuple[int, int]:
        """(B, L): sequences, and nodes of each."""
        length = min(_LENGTH, self.data.num_nodes)
        return min(_SEQUENCES, self.data.num_nodes // length), length

    @cached_property
    def sequence(self) -> Tensor:
        """Features of nodes in sequences [B, L, heads * dim]."""
        return self.normal("sequence", *self.sequences, self.width)

    @cached_property
    def bias(self) -> Tensor:
        """A number for each pair of nodes and head [B, L, L, heads]."""
        count, length = self.sequences
        return self.normal("bias", count, length, length, self.heads)

    @cached_property
    def pairs(self) -> Tensor:
        """Features for each pair of nodes [B, L, L, EDGE_DIM]."""
        count, length = self.sequences
        return self.normal("pairs", count, length, length, EDGE_DIM)

    @cached_property
    def hops(self) -> Tensor:
        """Distances in hops [B, L, L], 1 to 5."""
        count, length = self.sequences
        return 1 + self.whole("hops", 5, count, length, length)

    @cached_property
    def paths(self) -> Tensor:
        """Edge features along shortest paths of up to 5 edges [B, L, L, 5, EDGE_DIM]."""
        count, length = self.sequences
        return self.normal("paths", count, length, length, 5, EDGE_DIM)

    @cached_property
    def degrees(self) -> Tensor:
        """In-degrees and out-degrees [2, B, L]."""
        count, length = self.sequences
        source, destination = self.data.edge_index.to(self.device)
        both = [
            torch.bincount(end, minlength=self.data.num_nodes)[: count * length]
            for end in (destination, source)
        ]
        return torch.stack(both).view(2, count, length)

    @cached_property
    def positions(self) -> Tensor:
        """Coordinates [B, L, 3]."""
        return self.normal("positions", *self.sequences, 3)

    @cached_property
    def kinds(self) -> Tensor:
        """Node types [B, L]."""
        return self.whole("kinds", TYPES, *self.sequences)

    @cached_property
    def walks(self) -> Tensor:
        """Node ids of walks [8, 6]."""
        return self.whole("walks", self.data.num_nodes, 8, 6)

    @cached_property
    def centers(self) -> Tensor:
        """Nodes of the small graph [16]."""
        return self.whole("centers", _SMALL, 16)

    @cached_property
    def contexts(self) -> Tensor:
        """Nodes of the small graph [16]."""
        return self.whole("contexts", _SMALL, 16)

    @cached_property
    def negatives(self) -> Tensor:
        """Nodes of the small graph [16, 5]."""
        return self.whole("negatives", _SMALL, 16, 5)


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))
