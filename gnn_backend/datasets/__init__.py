"""Graphs for tests, benchmarks and examples: seeded generators, and a loader of npz files."""

from gnn_backend.datasets.data import (
    SHUFFLED,
    GraphData,
    RelationalData,
    sample_edges,
    shuffled,
)
from gnn_backend.datasets.generators import (
    Schema,
    block_model,
    grid,
    heterogeneous,
    random_schema,
    relational,
    rmat,
    uniform,
)
from gnn_backend.datasets.knowledge import knowledge_graph
from gnn_backend.datasets.named import load
from gnn_backend.datasets.npz import load_npz
from gnn_backend.datasets.sizes import (
    BLOCK_MODELS,
    GRIDS,
    NAMED_GRAPHS,
    RELATIONAL,
    SCHEMAS,
    TYPED,
)

__all__ = [
    "BLOCK_MODELS",
    "GRIDS",
    "NAMED_GRAPHS",
    "RELATIONAL",
    "SCHEMAS",
    "SHUFFLED",
    "TYPED",
    "GraphData",
    "RelationalData",
    "Schema",
    "block_model",
    "grid",
    "heterogeneous",
    "knowledge_graph",
    "load",
    "load_npz",
    "random_schema",
    "relational",
    "rmat",
    "sample_edges",
    "shuffled",
    "uniform",
]
