"""Sums and means over 16 x 16 tiles on tensor cores, for graphs that are locally dense."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.block_sparse import TILE
from gnn_backend.graph.graph import Direction
from gnn_backend.runtime import block_sparse
from gnn_backend.runtime.block_sparse import BLOCK_ARGS, MAX_HEADS
from gnn_backend.runtime.block_units import SUM_DIMS, block_sum_unit
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import BLOCK
from gnn_backend.runtime.selection import DTYPE_NAMES, WARP

_WARPS = BLOCK // WARP


def cannot(dtype: torch.dtype, heads: int, dim: int, values_an_edge: int) -> str | None:
    """Why there is no kernel for rows of ``heads`` times ``dim`` columns; None if there is.

    float32 is multiplied as tf32, and only where ``torch.backends.cuda.matmul.allow_tf32`` is set.
    """
    if dtype not in DTYPE_NAMES:
        return f"{dtype} has no product on tensor cores"
    if dtype == torch.float32 and not block_sparse.allows_tf32():
        return "float32 would be rounded to tf32, which torch.backends.cuda.matmul does not allow"
    if values_an_edge > 1 and values_an_edge != heads:
        return "an edge has a weight a column"
    if not (found := _pieces(heads, dim, values_an_edge)):
        return f"rows of {heads} x {dim} columns cannot be cut into pieces of 16 to 64"
    return None if found[0] <= MAX_HEADS else f"{found[0]} pieces a row are more than {MAX_HEADS}"


def _pieces(heads: int, dim: int, values_an_edge: int) -> tuple[int, int] | None:
    """Pieces of a row, and columns of each; a head that has a weight of its own is one piece."""
    if values_an_edge > 1:
        return (heads, dim) if dim in SUM_DIMS else None
    width = heads * dim
    fitting = [size for size in SUM_DIMS if width and width % size == 0]
    return (width // max(fitting), max(fitting)) if fitting else None


def tile_sum(
    engine: DeviceEngine,
    graph: Graph,
    direction: Direction,
    x: Tensor,
    weights: Tensor | None = None,
    *,
    heads: int = 1,
    mean: bool = False,
) -> Tensor:
    """Sum, or mean, of the rows of ``x`` that the edges of each row name.

    Parameters
    ----------
    engine : DeviceEngine
    graph : Graph
    direction : {"dst", "src"}
    x : Tensor [nodes at the other end, *]
        bfloat16, float16, or float32 where tf32 is allowed; contiguous, as the kernels want it.
    weights : Tensor [E] or [E, H], optional
        In the caller's edge order, of the dtype of ``x``.
    heads : int
        H, that the columns of a row are in.
    mean : bool

    Returns
    -------
    Tensor [rows, *]
        No view, which could not be changed in place as a result of autograd's.
    """
    blocks = graph.block_sparse(direction)
    splits, dim = blocks.splits, x.shape[1:].numel() // heads
    values = 0 if weights is None else weights.shape[1:].numel()
    found = _pieces(heads, dim, values)
    assert found is not None  # see `cannot`
    pieces, size = found
    out = x.new_empty(blocks.num_rows, *x.shape[1:])
    if not splits.num_tasks:
        return out
    wide = {"dtype": torch.float32, "device": x.device}
    partial = None
    if splits.num_slots:
        partial = torch.empty(splits.num_slots, TILE, pieces, size, **wide)  # type: ignore[call-overload]
    table = None
    if weights is not None:
        table = block_sparse.tile_values(graph, direction, weights.view(-1, values))
    factors = _inverse_degrees(graph, direction) if mean else None
    args = BLOCK_ARGS.pack(
        splits.tasks.data_ptr(), splits.num_tasks, blocks.columns.data_ptr(),
        blocks.masks.data_ptr(), blocks.occupied.data_ptr(), blocks.num_rows, pieces,
        0, 0, x.data_ptr(), 0, 0, out.data_ptr(), 0, _address(factors), _address(partial), 0, 0,
        blocks.num_tiles if values > 1 else 0, _address(table), 0, 0.0, 0.0,
    )  # fmt: skip
    unit = block_sum_unit(DTYPE_NAMES[x.dtype], size, table is not None)
    grid = (-(-splits.num_tasks // _WARPS), pieces)
    engine.launch(unit, unit.name, grid, BLOCK, args)
    if partial is not None:
        whole = out.view(blocks.num_rows, pieces, size)
        block_sparse.merge_windows(engine, blocks, partial, whole)
    rows = graph.ordered_rows(direction).rows
    return out if rows is None else torch.empty_like(out).index_copy_(0, rows.long(), out)


def _inverse_degrees(graph: Graph, direction: Direction) -> Tensor:
    """1 / max(1, degree) of every row, float32, in the order of the tiles; kept with the graph."""
    key = ("inverse degrees", direction)
    found = graph.plans.get(key)
    if found is None:
        degrees = graph.ordered_rows(direction).indptr.diff().clamp(min=1)
        found = graph.plans[key] = degrees.float().reciprocal()
    return found  # type: ignore[no-any-return]


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
