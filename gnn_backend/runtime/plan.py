"""What an operator's launches on one graph have in common, worked out once and kept with the graph.

A plan holds the lane layout, the kernels' names, the row splits and the grids of every pass, so
that an eager call only allocates, packs arguments and launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.graph.graph import Direction
from gnn_backend.runtime import selection
from gnn_backend.runtime.instances import BLOCK, PASSES, merge_unit, softmax_unit, weights_unit
from gnn_backend.runtime.options import PLAIN, Options

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor

MAX_GRID_Y = 65535
_MAX_ROW = 1 << 30  # values; row bytes are 32-bit in the kernels
_MAX_EDGES = 1 << 32  # whose numbers the kernels hold in 32 bits
_WARPS = BLOCK // selection.WARP
# Waves of blocks of the passes that keep parameter gradients: more balance better, but each block
# writes a row of partials. With three by destination as well, the peak memory of tolokers passes
# 1.2 times that of its inputs and results.
_WAVES = {"dst": 2, "src": 3}
_FEW_BLOCKS = 3  # that fit a multiprocessor where the schedule does not ask for any number
_MERGE_COLUMNS = 32  # lanes of a merge warp
MERGE_ROWS = 8  # split rows a merge block
REDUCE_COLUMNS = 8  # columns of parameter partials that a merge block sums


@dataclass(frozen=True)
class Side:
    """One direction of the graph, cut into tasks: pointers, counts and grids.

    Attributes
    ----------
    keep : tuple
        The tensors that the pointers point into.
    tasks, indices, edge_ids, heavy_rows, heavy_ptr : int
        Device addresses; that of the edges' numbers is 0 where no pass needs them, or they are
        the places in the CSR.
    wide_ids : bool
        The edges' numbers are 64-bit.
    num_tasks, num_slots, num_heavy, num_rows : int
    blocks, persistent_blocks : int
        A lane group a task; and a few waves at most, for passes that stride over the tasks.
    """

    keep: tuple[object, ...]
    tasks: int
    indices: int
    edge_ids: int
    wide_ids: bool
    heavy_rows: int
    heavy_ptr: int
    num_tasks: int
    num_slots: int
    num_heavy: int
    num_rows: int
    blocks: int
    persistent_blocks: int


class Plan:
    """Launch parameters of a functor on a graph at one dtype, head count and head dimension.

    Raises
    ------
    Unsupported
        ``head-dim``: no kernel for rows this wide.
    """

    def __init__(
        self,
        functor: Functor,
        graph: Graph,
        dtype: torch.dtype,
        heads: int,
        dim: int,
        multiprocessors: int,
        options: Options = PLAIN,
        chunk: int | None = None,
        mapping: str = selection.NEIGHBOURS,
    ) -> None:
        if dim > selection.MAX_HEAD_DIM:
            raise Unsupported("head-dim", f"{dim} > {selection.MAX_HEAD_DIM}")
        if heads * dim >= _MAX_ROW:
            raise Unsupported("head-dim", f"{heads} x {dim} >= {_MAX_ROW} values a row")
        self.heads, self.dim, self.width = heads, dim, heads * dim
        if heads * options.features >= _MAX_ROW or options.features > selection.MAX_HEAD_DIM:
            raise Unsupported("edge-dim", f"{heads} x {options.features} edge features")
        if options.numbered and graph.num_edges >= _MAX_EDGES:
            raise Unsupported("no-kernel", f"edge operands of {graph.num_edges} edges")
        name = selection.DTYPE_NAMES[dtype]
        self.options, self.features = options, options.features
        # The operands whose gradients either pass gives, and those that every call has.
        self.of_src = frozenset((*functor.src, *functor.params))
        self.of_dst = frozenset((*functor.dst, *functor.params))
        self.required = self.of_src | self.of_dst
        self.shape, self.fragment = _layouts(name, heads, dim, options.features, mapping)
        form = (functor.cuda_type, functor.cuda_header, name, self.shape)
        if options.weights:
            self.unit = weights_unit(*form, options, self.fragment)
            self.entries = {"weights": self.unit.name}
        else:
            self.unit = softmax_unit(*form, None, options, self.fragment)
            self.entries = {which: f"{self.unit.name}_{which}" for which in PASSES}
        schedule = selection.schedule_for(
            name, self.shape, functor.cuda_type, options, self.fragment
        )
        self._merge_vector = vector = 4 if dim % 4 == 0 else 1
        unit, wide = merge_unit(name), merge_unit("f32")
        #: Merge kernels by kind: unit and entry. "float": one float32 for each row and head.
        self.merges = {
            kind: (unit, f"{unit.name}_{kind}_v{vector}") for kind in ("softmax", "sum")
        } | {"float": (wide, f"{wide.name}_sum_v1")}
        self._grids: dict[tuple[int, ...], int] = {}
        self.grid_y = min(MAX_GRID_Y, heads // self.shape.heads)
        self.rows_a_block = _WARPS * self.shape.tasks
        self._most_blocks = {
            side: multiprocessors * _WAVES[side] * max(_FEW_BLOCKS, tuning.min_blocks)
            for side, tuning in schedule.backward.items()
        }
        self.tuned = chunk is not None
        self._unroll = schedule.forward.unroll
        #: Neighbours a task: the given number, or the fitted one.
        self.chunk = chunk or selection.chunk_for(graph.num_edges, self.shape.tasks)
        self.dst = self._side(graph, "dst")
        self._by_src: Side | None = None

    def describe(self, functor: Functor) -> str:
        """What a forward pass runs with, for people."""
        shape, heads = self.shape, "head" if self.shape.heads == 1 else "heads"
        edge = f" with {self.options.name}" if self.options.name else ""
        return (
            f"{functor.name}{edge}: rows, {shape.mapping}, at most {self.chunk} neighbours a task"
            f" ({'measured' if self.tuned else 'from the number of edges'}), {shape.lanes} lanes of"
            f" {shape.values} values a head, {shape.heads} {heads} side by side,"
            f" {self._unroll} edges in flight"
        )

    def src(self, graph: Graph) -> Side:
        """The side of the transposed adjacency, built at the first backward."""
        if self._by_src is None:
            self._by_src = self._side(graph, "src")
        return self._by_src

    def _side(self, graph: Graph, direction: Direction) -> Side:
        csr, splits = graph.csr(direction), graph.splits(direction, self.chunk)
        rows = graph.num_dst if direction == "dst" else graph.num_src
        blocks = -(-splits.num_tasks // self.rows_a_block) if rows * self.width else 0
        edge_ids = csr.edge_ids if self.options.numbered else None
        if direction == "src" and self.features:  # numbers what the pass by destination left
            edge_ids = graph.places_by_src()
        heavy = splits.heavy_rows.numel() if blocks else 0
        return Side(
            keep=(csr, splits, edge_ids),
            tasks=splits.tasks.data_ptr(),
            indices=csr.indices.data_ptr(),
            edge_ids=0 if edge_ids is None else edge_ids.data_ptr(),
            wide_ids=edge_ids is not None and edge_ids.dtype == torch.int64,
            heavy_rows=splits.heavy_rows.data_ptr(),
            heavy_ptr=splits.heavy_ptr.data_ptr(),
            num_tasks=splits.num_tasks,
            num_slots=splits.num_slots,
            num_heavy=heavy,
            num_rows=rows,
            blocks=blocks,
            persistent_blocks=min(blocks, self._most_blocks[direction]),
        )

    def merge_grid_y(self, dims: tuple[int, ...]) -> int:
        """Tiles of the widest of the merged tables, whose rows are heads of so many values."""
        found = self._grids.get(dims)
        if found is None:
            found = self._grids[dims] = self._merge_tiles(dims)
        return found

    def _merge_tiles(self, dims: tuple[int, ...]) -> int:
        vectors = (self._merge_vector if dim % self._merge_vector == 0 else 1 for dim in dims)
        tiles = (
            -(-self.heads * dim // (_MERGE_COLUMNS * vector))
            for dim, vector in zip(dims, vectors, strict=True)
        )
        return min(MAX_GRID_Y, max(tiles))

    @cached_property
    def reduce_blocks(self) -> int:
        """Blocks that sum the parameter partials."""
        return -(-self.width // REDUCE_COLUMNS)


def plan_for(
    functor: Functor,
    graph: Graph,
    dtype: torch.dtype,
    heads: int,
    dim: int,
    multiprocessors: int,
    options: Options = PLAIN,
) -> Plan:
    """The plan of a call, from the graph's cache."""
    key = plan_key(functor, dtype, heads, dim, multiprocessors, options)
    plan = graph.plans.get(key)
    if plan is None:
        plan = Plan(functor, graph, dtype, heads, dim, multiprocessors, options)
        graph.plans[key] = plan
    return plan


def plan_key(
    functor: Functor,
    dtype: torch.dtype,
    heads: int,
    dim: int,
    multiprocessors: int,
    options: Options = PLAIN,
) -> tuple[object, ...]:
    """What a graph keeps a plan under."""
    return functor.name, dtype, heads, dim, multiprocessors, options


def _layouts(
    dtype: str, heads: int, dim: int, features: int, mapping: str
) -> tuple[selection.Shape, selection.Shape | None]:
    """Lane layouts of the operands' rows, and of edge features where there are any."""
    if features and heads and dim:
        return selection.shapes_with_features(dtype, heads, dim, features)
    return selection.shape_for(dtype, heads, max(1, dim), mapping), None
