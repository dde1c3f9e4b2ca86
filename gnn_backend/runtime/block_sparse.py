"""Dot-product attention over 16 x 16 tiles on tensor cores, for graphs that are locally dense.

The same results as the traversal's dot functor gives, with the same saved log-sum-exp, so that a
call may take tiles forward and rows backward. Weights of edges and their gradients are rounded to
the storage type (float32: to tf32) before they are multiplied with rows, as flash attention does;
in float16, gradients so small that such a product underflows need the usual loss scaling.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported
from gnn_backend.graph import BlockSparse, Graph
from gnn_backend.graph.block_sparse import ENTRIES, TILE
from gnn_backend.graph.graph import Direction
from gnn_backend.runtime.block_units import DIMS, block_merge_unit, block_unit, fits_both
from gnn_backend.runtime.instances import BLOCK, MERGE_BLOCK
from gnn_backend.runtime.launch import sparse_engine
from gnn_backend.runtime.plan import MAX_GRID_Y
from gnn_backend.runtime.selection import DTYPE_NAMES, WARP

if TYPE_CHECKING:
    from gnn_backend.runtime.device import DeviceEngine

BLOCK_ARGS = struct.Struct("<21q2f")  # BlockArgs in kernels/block_sparse.cuh
MERGE_ARGS = struct.Struct("<11q")  # BlockMergeArgs in kernels/block_merge.cuh
MAX_HEADS = 65535  # rows of a grid
LOG2E = 1.4426950408889634
_WARPS = BLOCK // WARP
_STATS_ROWS = 8 * _WARPS  # rows a block of row_stats
_MERGE_ROWS = 8  # windows a merge block
_MERGE_COLUMNS = 4 * WARP  # of a merge warp


class Gradients(NamedTuple):
    """Gradients of the queries, keys, values and edge biases; None where not asked for."""

    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    edge_bias: Tensor | None = None


def allows_tf32() -> bool:
    """Whether torch multiplies matrices of float32 as tf32, by whichever of its switches."""
    matmul = torch.backends.cuda.matmul
    # The older switch raises once the newer one was used; before 2.9 there is no newer one.
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def cannot(dtype: torch.dtype, heads: int, dim: int) -> str | None:
    """Why there are no kernels for ``heads`` heads of ``dim`` values; None if there are.

    float32 is multiplied as tf32, and only where ``torch.backends.cuda.matmul.allow_tf32`` is set.
    """
    if dtype not in DTYPE_NAMES:
        return f"{dtype} has no product on tensor cores"
    if dtype == torch.float32 and not allows_tf32():
        return "float32 would be rounded to tf32, which torch.backends.cuda.matmul does not allow"
    if dim not in DIMS:
        return f"head dimension {dim} is not a multiple of 16 from 16 to 128"
    if heads > MAX_HEADS:
        return f"{heads} heads are more than {MAX_HEADS}"
    return None


def forward(
    graph: Graph, q: Tensor, k: Tensor, v: Tensor, scale: float, edge_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax of ``scale * <q_i, k_j> + b_e`` over the in-edges e = (j, i), weighted sum of v_j.

    Parameters
    ----------
    graph : Graph
    q : Tensor [num_dst, H, D]
    k, v : Tensor [num_src, H, D]
        bfloat16, float16, or float32 where tf32 is allowed; D a multiple of 16, 16 to 128.
    scale : float
    edge_bias : Tensor [E, H], optional
        b, of any floating dtype, in the caller's order of edges.

    Returns
    -------
    out : Tensor [num_dst, H, D]
    lse : float32 [num_dst, H]
        Base-2 log-sum-exp of the logits.

    Raises
    ------
    Unsupported
        ``tensor-cores``: see :func:`cannot`; ``device``, ``cpu-operators``.
    """
    call = _Call(graph, q, k, v, scale)
    call.add_bias(edge_bias)
    blocks = graph.block_sparse("dst")
    out, lse = call.rows(blocks), call.floats(graph.num_dst, call.heads)
    call.run("forward", "dst", (q, None), (k, v), lse=lse, outs=(out, None))
    return out, lse


def backward(
    graph: Graph,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    needs: frozenset[str] = frozenset("qkv"),
    edge_bias: Tensor | None = None,
) -> Gradients:
    """Gradients of :func:`forward` for ``grad_out`` [num_dst, H, D].

    ``out`` and ``lse`` are those of ``forward`` or of the traversal; ``needs`` names the wanted
    ones of q, k, v and edge_bias. Equal inputs give equal bits.
    """
    call = _Call(graph, q, k, v, scale)
    call.add_bias(edge_bias)
    grad_out = _aligned(grad_out)
    stats = call.row_stats(graph.num_dst, _aligned(out), lse.contiguous(), grad_out)
    dq = dk = dv = db = None
    if needs & {"q", "edge_bias"}:
        blocks = graph.block_sparse("dst")
        dq = call.rows(blocks)
        table = call.entries(blocks) if edge_bias is not None and "edge_bias" in needs else None
        tables, outs = (q, grad_out), (dq, None)
        call.run("backward_dst", "dst", tables, (k, v), outs, stats=stats, entries=table)
        if table is not None and edge_bias is not None:
            db = _edge_values(graph, "dst", table).to(edge_bias.dtype)
    if needs & {"k", "v"}:
        dk, dv = call.by_source((k, v), (q, grad_out), stats, needs)
    return Gradients(dq if "q" in needs else None, dk, dv, db)


def tile_values(graph: Graph, direction: Direction, values: Tensor) -> Tensor:
    """Spread values of edges [E, H] over the entries of the tiles: float32 [H, T * 256]."""
    csr, blocks = graph.ordered_rows(direction), graph.block_sparse(direction)
    values = values.float()
    if csr.edge_ids is not None:
        values = values[csr.edge_ids.long()]
    table = values.new_zeros(values.shape[1], blocks.num_tiles * ENTRIES)
    return table.index_copy_(1, graph.block_places(direction).long(), values.t())


def _edge_values(graph: Graph, direction: Direction, table: Tensor) -> Tensor:
    """Take the values of edges [E, H] out of the entries of the tiles."""
    csr = graph.ordered_rows(direction)
    values = table[:, graph.block_places(direction).long()].t()
    if csr.edge_ids is None:
        return values.contiguous()
    return torch.empty_like(values).index_copy_(0, csr.edge_ids.long(), values)


def _aligned(x: Tensor) -> Tensor:
    """Contiguous, at an address that 16-byte accesses take."""
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


class _Call:
    """What the launches of one call have in common."""

    def __init__(self, graph: Graph, q: Tensor, k: Tensor, v: Tensor, scale: float) -> None:
        heads, dim = q.shape[1:]
        if reason := cannot(q.dtype, heads, dim):
            raise Unsupported("tensor-cores", reason)
        self.engine: DeviceEngine = sparse_engine(q.device, q.dtype)
        self.heads, self.dim, self.scale = heads, dim, float(scale)
        self.dtype = DTYPE_NAMES[q.dtype]
        self.unit = block_unit(self.dtype, dim)
        self.graph, self.like = graph, q
        self.bias: Tensor | None = None

    def add_bias(self, edge_bias: Tensor | None) -> None:
        """Have a value an edge and head added to the logits."""
        if edge_bias is not None:
            self.bias = edge_bias.detach() * LOG2E
            self.unit = block_unit(self.dtype, self.dim, True)

    def entries(self, blocks: BlockSparse) -> Tensor:
        """Memory for a value of every entry of the tiles, for each head."""
        return self.floats(self.heads, blocks.num_tiles * ENTRIES)

    def rows(self, blocks: BlockSparse) -> Tensor:
        """An empty result of a direction's rows: [rows, H, D]."""
        return self.like.new_empty(blocks.num_rows, self.heads, self.dim)

    def run(
        self,
        which: str,
        direction: Direction,
        tables: tuple[Tensor, Tensor | None],
        gathered: tuple[Tensor, Tensor],
        outs: tuple[Tensor | None, Tensor | None],
        lse: Tensor | None = None,
        stats: Tensor | None = None,
        entries: Tensor | None = None,
    ) -> None:
        """One pass over the tiles, and the merge of split windows.

        The rows of a reordered graph's tiles are in its order: the direction's own tables are
        gathered, its results scattered. A tile has 256 edges at most for 32 rows, and tiles are
        taken where there are many, so that this is little beside them.
        """
        rows = self.graph.ordered_rows(direction).rows
        if rows is None:
            self._run(which, direction, tables, gathered, outs, lse, stats, entries)
            return
        order = rows.long()
        first, second = (None if t is None else t[order] for t in tables)
        assert first is not None
        if stats is not None and direction == "dst":  # else they are read at the other end
            stats = stats[order]
        results = (*outs, lse)
        placed = [None if t is None else torch.empty_like(t) for t in results]
        one, two, of_rows = placed
        self._run(which, direction, (first, second), gathered, (one, two), of_rows, stats, entries)
        for result, found in zip(results, placed, strict=True):
            if result is not None and found is not None:
                result.index_copy_(0, order, found)

    def _run(
        self,
        which: str,
        direction: Direction,
        tables: tuple[Tensor, Tensor | None],
        gathered: tuple[Tensor, Tensor],
        outs: tuple[Tensor | None, Tensor | None],
        lse: Tensor | None,
        stats: Tensor | None,
        entries: Tensor | None,
    ) -> None:
        blocks = self.graph.block_sparse(direction)
        splits = blocks.splits
        if not (splits.num_tasks and self.heads):
            return
        shape = (splits.num_slots, TILE, self.heads)
        split = [out is not None and splits.num_slots > 0 for out in outs]
        partials = [self.floats(*shape, self.dim) if some else None for some in split]
        softmax = lse is not None and splits.num_slots > 0
        partial_stats = self.floats(*shape, 2) if softmax else None
        # Copies of operands must outlive the launch.
        held = [None if t is None else _aligned(t) for t in (*tables, *gathered)]
        bias = None if self.bias is None else tile_values(self.graph, direction, self.bias)
        args = BLOCK_ARGS.pack(
            splits.tasks.data_ptr(),
            splits.num_tasks,
            blocks.columns.data_ptr(),
            blocks.masks.data_ptr(),
            blocks.occupied.data_ptr(),
            blocks.num_rows,
            self.heads,
            *map(_address, held),
            _address(stats),
            *map(_address, outs),
            _address(lse),
            *map(_address, partials),
            _address(partial_stats),
            blocks.num_tiles,
            _address(bias),
            _address(entries),
            self.scale,
            self.scale * LOG2E,
        )
        self._launch(which, -(-splits.num_tasks // _WARPS), args)
        for partial, out in zip(partials, outs, strict=True):
            if partial is not None and out is not None:
                self._merge(blocks, partial, out, partial_stats, lse)

    def by_source(
        self,
        tables: tuple[Tensor, Tensor],
        gathered: tuple[Tensor, Tensor],
        stats: Tensor,
        needs: frozenset[str],
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the keys and values, in one pass where both fit."""
        both, blocks = fits_both(self.dtype, self.dim), self.graph.block_sparse("src")
        dk = self.rows(blocks) if both or "k" in needs else None
        dv = self.rows(blocks) if both or "v" in needs else None
        runs = {"backward_src": (dk, dv)}
        if not both:
            runs = {"backward_key": (dk, None), "backward_value": (None, dv)}
        for which, outs in runs.items():
            if any(out is not None for out in outs):
                self.run(which, "src", tables, gathered, outs, stats=stats)
        return dk if "k" in needs else None, dv if "v" in needs else None

    def row_stats(self, num_rows: int, out: Tensor, lse: Tensor, grad_out: Tensor) -> Tensor:
        """(lse, <grad_out, out>) of every row and head: float32 [num_rows, H, 2]."""
        stats = self.floats(num_rows, self.heads, 2)
        if num_rows and self.heads:
            tables = (out.data_ptr(), grad_out.data_ptr(), 0, 0)
            where = (stats.data_ptr(), 0, 0, lse.data_ptr(), 0, 0, 0, 0, 0, 0)
            args = BLOCK_ARGS.pack(0, 0, 0, 0, 0, num_rows, self.heads, *tables, *where, 0, 0)
            self._launch("row_stats", -(-num_rows // _STATS_ROWS), args)
        return stats

    def _merge(
        self,
        blocks: BlockSparse,
        partial: Tensor,
        out: Tensor,
        partial_stats: Tensor | None,
        lse: Tensor | None,
    ) -> None:
        """Merge the partials of split windows into a result."""
        merge_windows(self.engine, blocks, partial, out, partial_stats, lse)

    def _launch(self, which: str, blocks: int, args: bytes) -> None:
        name = f"{self.unit.name}_{which}"
        self.engine.launch(self.unit, name, (blocks, self.heads), BLOCK, args)

    def floats(self, *shape: int) -> Tensor:
        """Float32 memory that is not filled."""
        return self.like.new_empty(shape, dtype=torch.float32)


def merge_windows(
    engine: DeviceEngine,
    blocks: BlockSparse,
    partial: Tensor,
    out: Tensor,
    partial_stats: Tensor | None = None,
    lse: Tensor | None = None,
) -> None:
    """Merge the partials of split windows [slots, 16, H, D] into a result [rows, H, D].

    ``partial_stats`` and ``lse``: of sums that are weighted by a softmax.
    """
    splits, (_, heads, dim) = blocks.splits, out.shape
    heavy = splits.heavy_rows.numel()
    args = MERGE_ARGS.pack(
        splits.heavy_rows.data_ptr(),
        splits.heavy_ptr.data_ptr(),
        heavy,
        blocks.occupied.data_ptr(),
        blocks.num_rows,
        heads,
        dim,
        partial.data_ptr(),
        out.data_ptr(),
        _address(partial_stats),
        _address(lse),
    )
    unit = block_merge_unit(DTYPE_NAMES[out.dtype])
    kind = "sum" if lse is None else "softmax"
    tiles = -(-TILE * heads * dim // _MERGE_COLUMNS)
    grid = (-(-heavy // _MERGE_ROWS), min(MAX_GRID_Y, tiles))
    engine.launch(unit, f"{unit.name}_{kind}", grid, MERGE_BLOCK, args)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
