"""Graphs by name."""

from __future__ import annotations

import torch

from gnn_backend.datasets.data import SHUFFLED, GraphData, RelationalData, shuffled
from gnn_backend.datasets.generators import (
    block_model,
    grid,
    heterogeneous,
    random_schema,
    relational,
    rmat,
)
from gnn_backend.datasets.npz import load_npz
from gnn_backend.datasets.sizes import (
    BLOCK_MODELS,
    GRIDS,
    NAMED_GRAPHS,
    RELATIONAL,
    SCHEMAS,
    TYPED,
)


def load(name_or_path: str, *, device: torch.device | str = "cpu", seed: int = 0) -> GraphData:
    """Graph by name (of ``NAMED_GRAPHS``, ``BLOCK_MODELS``, ``GRIDS``, ``RELATIONAL``) or npz file.

    Named graphs are drawn on ``device``; relational ones on the CPU, so that they are the same
    everywhere. ``:typed`` behind one of these gives types to its nodes as well; ``:shuffled``
    behind any name or file numbers the nodes at random (:func:`shuffled`, seed 0).
    """
    if name_or_path.endswith(SHUFFLED):
        plain = load(name_or_path.removesuffix(SHUFFLED), device=device, seed=seed)
        return shuffled(plain)
    if name_or_path in NAMED_GRAPHS:
        nodes, edges = NAMED_GRAPHS[name_or_path]
        return GraphData(name_or_path, rmat(nodes, edges, seed=seed, device=device), nodes)
    if name_or_path in BLOCK_MODELS:
        nodes, block, density = BLOCK_MODELS[name_or_path]
        drawn = block_model(nodes, block, density, seed=seed, device=device)
        return GraphData(name_or_path, drawn, nodes)
    if name_or_path in GRIDS:
        rows, columns = GRIDS[name_or_path]
        roads = grid(rows, columns, seed=seed, device=device)
        return GraphData(name_or_path, roads, rows * columns)
    if name_or_path.removesuffix(TYPED) in RELATIONAL:
        return _relational(name_or_path, seed).to(device)
    return load_npz(name_or_path).to(device)


def _relational(name: str, seed: int) -> RelationalData:
    nodes, edges, node_types, edge_types = RELATIONAL[name.removesuffix(TYPED)]
    if name.endswith(TYPED):
        schema = SCHEMAS.get(name.removesuffix(TYPED))
        if schema is None:
            schema = random_schema(nodes, edges, node_types, edge_types, seed=seed)
        return heterogeneous(name, schema, seed=seed)
    edge_index, types = relational(nodes, edges, edge_types, seed=seed)
    return RelationalData(name, edge_index, nodes, edge_type=types, num_edge_types=edge_types)
