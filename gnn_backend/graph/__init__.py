"""The immutable graph descriptor: CSR by destination and by source, row splits, statistics."""

from gnn_backend.graph.block_sparse import BlockSparse, BlockStats
from gnn_backend.graph.csr import CSR
from gnn_backend.graph.graph import Graph
from gnn_backend.graph.splits import Splits
from gnn_backend.graph.stats import DegreeStats

__all__ = ["CSR", "BlockSparse", "BlockStats", "DegreeStats", "Graph", "Splits"]
