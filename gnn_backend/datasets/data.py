"""What a graph is that a command or an example works on, and parts of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

SHUFFLED = ":shuffled"  # behind the name of a graph: its nodes numbered at random


@dataclasses.dataclass(frozen=True)
class GraphData:
    """A homogeneous graph with whatever its file says about the nodes.

    Attributes
    ----------
    name : str
        File stem, or the name of a generated graph.
    edge_index : Tensor
        int64 [2, E]; row 0 the sources, row 1 the destinations.
    num_nodes : int
    x : Tensor or None
        float32 [N, F] node features.
    y : Tensor or None
        int64 [N] labels.
    splits : dict of str to Tensor
        Boolean [N] masks under "train", "val" and "test", as far as the file has them.
    """

    name: str
    edge_index: torch.Tensor
    num_nodes: int
    x: torch.Tensor | None = None
    y: torch.Tensor | None = None
    splits: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        return int(self.edge_index.shape[1])

    def to(self, device: torch.device | str) -> GraphData:
        """Copy of this graph whose edges and features are on ``device``."""
        moved = self._node_wise(lambda table: table.to(device))
        return dataclasses.replace(self, edge_index=self.edge_index.to(device), **moved)

    def _node_wise(self, of: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        """Fields that have a row for each node, changed."""
        return {
            "x": None if self.x is None else of(self.x),
            "y": None if self.y is None else of(self.y),
            "splits": {key: of(mask) for key, mask in self.splits.items()},
        }

    def _edge_wise(self, of: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        """Fields beside the ends that have a row for each edge, changed."""
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelationalData(GraphData):
    """A graph whose edges, and perhaps nodes, have types.

    Attributes
    ----------
    edge_type : Tensor
        int64 [E].
    num_edge_types : int
    node_type : Tensor or None
        int64 [N]; None: one type.
    num_node_types : int
    edge_type_names, node_type_names, class_names : tuple of str
        By number; empty where they have no names.
    triples : dict of str to Tensor
        int64 [K, 3], head, relation, tail, under "train", "val" and "test": of a knowledge graph
        with splits, whose edges are those of "train".
    """

    edge_type: torch.Tensor
    num_edge_types: int
    node_type: torch.Tensor | None = None
    num_node_types: int = 1
    edge_type_names: tuple[str, ...] = ()
    node_type_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    triples: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    def to(self, device: torch.device | str) -> RelationalData:
        """Copy of this graph on ``device``."""
        moved = super().to(device)
        assert isinstance(moved, RelationalData)
        triples = {key: rows.to(device) for key, rows in self.triples.items()}
        return dataclasses.replace(moved, edge_type=self.edge_type.to(device), triples=triples)

    def with_reverses(self) -> RelationalData:
        """Each edge the other way as well, behind the others; types are doubled.

        The reverse of type r is ``num_edge_types + r``.
        """
        return dataclasses.replace(
            self,
            edge_index=torch.cat([self.edge_index, self.edge_index.flip(0)], 1),
            edge_type=torch.cat([self.edge_type, self.edge_type + self.num_edge_types]),
            num_edge_types=2 * self.num_edge_types,
            edge_type_names=(
                *self.edge_type_names,
                *(f"{name}, reversed" for name in self.edge_type_names),
            ),
        )

    def _node_wise(self, of: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        types = None if self.node_type is None else of(self.node_type)
        return {**super()._node_wise(of), "node_type": types}

    def _edge_wise(self, of: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        return {"edge_type": of(self.edge_type), "triples": {}}


def shuffled(graph: GraphData, *, seed: int = 0) -> GraphData:
    """The same graph with its nodes numbered at random; edges keep their order.

    For what depends on the numbers: generated graphs come in an order that real ones rarely have.
    """
    generator = torch.Generator().manual_seed(seed)
    old = torch.randperm(graph.num_nodes, generator=generator)  # new number -> old
    new = torch.empty_like(old)
    new[old] = torch.arange(graph.num_nodes)
    edges = new.to(graph.edge_index.device)[graph.edge_index]
    moved = graph._node_wise(lambda table: table[old.to(table.device)])
    if isinstance(graph, RelationalData):
        moved["triples"] = {key: _renumbered(t, new) for key, t in graph.triples.items()}
    return dataclasses.replace(graph, name=graph.name + SHUFFLED, edge_index=edges, **moved)


def _renumbered(triples: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    head, relation, tail = triples.unbind(1)
    new = new.to(triples.device)
    return torch.stack([new[head], relation, new[tail]], 1)


def sample_edges(graph: GraphData, num_edges: int, *, seed: int = 0) -> GraphData:
    """Subgraph of ``num_edges`` edges drawn without replacement, with the nodes they touch.

    Edges keep their order, nodes theirs; features, labels, masks and types follow; triples do not.
    """
    if graph.num_edges <= num_edges:
        return graph
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(graph.num_edges, generator=generator)[:num_edges].sort().values
    chosen = chosen.to(graph.edge_index.device)
    nodes, compact = graph.edge_index[:, chosen].unique(return_inverse=True)
    return dataclasses.replace(
        graph,
        edge_index=compact,
        num_nodes=int(nodes.numel()),
        **graph._node_wise(lambda table: table[nodes]),
        **graph._edge_wise(lambda table: table[chosen]),
    )
