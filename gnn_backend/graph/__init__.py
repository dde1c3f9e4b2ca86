"""The immutable graph descriptor: CSR by destination and by source, row splits, statistics."""

from gnn_backend.graph.graph import CSR, Graph
from gnn_backend.graph.splits import Splits
from gnn_backend.graph.stats import DegreeStats

__all__ = ["CSR", "DegreeStats", "Graph", "Splits"]
