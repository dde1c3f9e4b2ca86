"""Which layers ``bench layers`` measures, by family and host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gnn_backend.bench.hosts import Shape


@dataclass(frozen=True)
class Case:
    """A layer in one of its forms.

    Attributes
    ----------
    layer : str
        A class of the host.
    form : str
        What tells it from other forms of the layer.
    options : dict
        Constructor arguments.
    without : tuple of str
        Keywords of its call that are left out, such as the weights of the edges.
    edge_tensors : float
        How many [E, width] tensors stock holds at once in a training step, at the least.
    """

    layer: str
    form: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    edge_tensors: float = 0.0

    @property
    def label(self) -> str:
        """The layer and its form."""
        return f"{self.layer}({self.form})" if self.form else self.layer


def _plain(*layers: str) -> tuple[Case, ...]:
    # PyG keeps about this many [E, H, D] tensors of an attention layer.
    return tuple(Case(layer, edge_tensors=5.5) for layer in layers)


_UNWEIGHTED = ("edge_weight",)

FAMILIES: dict[str, dict[str, tuple[Case, ...]]] = {
    "attention": {
        "dgl": _plain("GATConv", "GATv2Conv", "EdgeGATConv", "DotGatConv", "AGNNConv"),
        "pyg": _plain("GATConv", "GATv2Conv", "TransformerConv", "SuperGATConv", "AGNNConv"),
    },
    "aggregation": {
        "dgl": (
            Case("GraphConv", without=_UNWEIGHTED),
            Case("GraphConv", "weights"),
            Case("SAGEConv", "mean", {"aggregator_type": "mean"}, _UNWEIGHTED),
            Case("SAGEConv", "pool", {"aggregator_type": "pool"}, _UNWEIGHTED),
            Case("GINConv", "sum", {"aggregator_type": "sum"}, _UNWEIGHTED),
            Case("GINConv", "max", {"aggregator_type": "max"}, _UNWEIGHTED),
            Case("PNAConv"),
        ),
        "pyg": (
            Case("GCNConv", edge_tensors=2.0),
            Case("SAGEConv", "mean", {"aggr": "mean"}, edge_tensors=1.0),
            Case("SAGEConv", "max", {"aggr": "max"}, edge_tensors=2.0),
            Case("GINConv", edge_tensors=1.0),
            Case("PNAConv", edge_tensors=6.0),
        ),
    },
}


def stock_bytes(case: Case, num_edges: int, shape: Shape, itemsize: int) -> int:
    """Least bytes that stock's forward and backward hold at once; 0 where that is not known.

    Messages are as wide as what is aggregated: in attention layers and ``GCNConv`` the result, in
    the others the input.
    """
    by_result = {"GCNConv": shape.dim}
    attention = any(case in cases for cases in FAMILIES["attention"].values())
    width = shape.heads * shape.dim if attention else by_result.get(case.layer, shape.in_dim)
    return int(case.edge_tensors * num_edges * width * itemsize)
