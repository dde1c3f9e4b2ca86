"""Whether tiles beat rows: a model of bytes and fixed work, per tile and per edge.

A pass over rows gathers two rows of a head for every edge, and its time is that of a gather of
as many bytes times a factor: what arithmetic adds. A pass over tiles gathers 32 rows for every
tile, however many of its 256 pairs are edges, times a factor of its own, since fewer loads are in
flight. The rest of its work does not depend on the head dimension (256 exponentials, a bitmap, 16
ids); it is counted as the bytes that could be gathered meanwhile. So what decides is the mean
number of edges in a tile: a column with a single edge gives 16 of them, and as many bytes as rows
cost; columns that several rows of a window share win. Graphs with too few edges to be worth
building tiles for keep to rows.

``ROW_FACTOR`` is what the traversal reaches on an H200, the others are estimates from instruction
counts; ``MARGIN`` stands for what the model leaves out. Measured there in one run that is not
kept, forward, two heads of 64 in bfloat16: block models of 16.9, 21.4, 30.4, 51 and 128 edges in a
tile gave 0.99, 1.15, 1.57, 2.1 and 4.6 times the speed of rows (predicted: 0.94, 1.19, 1.69, 2.8,
7.1), tolokers (19.7) 0.80, musae_git (16.4) 0.84. Backward passes gain less, since more of a
tile's work is arithmetic: 0.7, 0.7, 1.0, 1.5 and 3.4 there, 1.8 with heads of 128 and 1.2 in tf32
at 128 edges in a tile. ``BACKWARD_FACTOR`` and, where two gradients of a source do not fit one
pass, ``WIDE_BACKWARD_FACTOR`` say so. Figures that are kept: ``docs/performance.md``.
"""

from __future__ import annotations

import torch

from gnn_backend.graph import BlockStats, Graph
from gnn_backend.graph.block_sparse import TILE
from gnn_backend.graph.graph import Direction
from gnn_backend.runtime import block_sparse

ROW_FACTOR = {torch.float32: 1.3, torch.bfloat16: 1.6, torch.float16: 1.6}
TILE_FACTOR = 1.3
TILE_BYTES = {torch.float32: 2500, torch.bfloat16: 2000, torch.float16: 2000}  # a head
BACKWARD_FACTOR = 0.5
WIDE_BACKWARD_FACTOR = 0.2
NARROW_BYTES = 128  # of a head's row, up to which one pass gives both gradients of a source
MARGIN = 1.25
MIN_EDGES = 100_000
_ID_BYTES = 4  # an edge's
_SHARED_BYTES = 96  # a tile's ids and bitmap


def predicted_speedup(
    stats: BlockStats, dtype: torch.dtype, heads: int, dim: int, backward: bool = False
) -> float:
    """Time of a pass over rows divided by that of one over tiles.

    Parameters
    ----------
    stats : BlockStats
        Of the direction that the pass goes in.
    dtype : torch.dtype
        bfloat16, float16 or float32 (as tf32).
    heads, dim : int
    backward : bool
        Whether it is one of the backward passes.
    """
    row = dim * dtype.itemsize
    edge = _ID_BYTES + heads * 2 * row * ROW_FACTOR[dtype]
    tile = heads * (2 * TILE * row * TILE_FACTOR + TILE_BYTES[dtype] + _SHARED_BYTES)
    factor = 1.0
    if backward:
        factor = BACKWARD_FACTOR if row <= NARROW_BYTES else WIDE_BACKWARD_FACTOR
    return factor * stats.edges_per_tile * edge / tile


def wins(
    stats: BlockStats, dtype: torch.dtype, heads: int, dim: int, backward: bool = False
) -> bool:
    """Whether tiles are predicted to be faster than rows by a margin."""
    if stats.num_edges < MIN_EDGES or block_sparse.cannot(dtype, heads, dim) is not None:
        return False
    return predicted_speedup(stats, dtype, heads, dim, backward) > MARGIN


def prefers_tiles(
    graph: Graph,
    direction: Direction,
    dtype: torch.dtype,
    heads: int,
    dim: int,
    backward: bool = False,
) -> bool:
    """The choice for a pass over the rows of ``direction``.

    Tiles need not be built for it: a sample of windows tells their number (once a graph, with one
    device-to-host copy), and graphs for which it cannot matter are not sampled.
    """
    if graph.num_edges < MIN_EDGES or block_sparse.cannot(dtype, heads, dim) is not None:
        return False
    return wins(graph.block_stats(direction), dtype, heads, dim, backward)
