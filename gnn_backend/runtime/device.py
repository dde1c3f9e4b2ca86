"""The device engine: launch sequence of the softmax-weighted passes, for CUDA and the emulator.

It allocates, sizes grids, packs arguments and merges split rows; the kernels run on
the GPU or in the host emulator. Operands arrive contiguous and checked (``ops``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph, Splits
from gnn_backend.graph.graph import Direction
from gnn_backend.profile import count_launch
from gnn_backend.runtime import cuda, selection
from gnn_backend.runtime.instances import (
    BLOCK,
    MERGE_BLOCK,
    Unit,
    merge_unit,
    softmax_unit,
)

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor

_TRAVERSAL = struct.Struct("<11q4f8q")  # TraversalArgs in kernels/traversal.cuh
_MERGE = struct.Struct("<17q")  # MergeArgs in kernels/merge.cuh
_MAX_GRID_Y = 65535
_MAX_ROW = 1 << 30  # values; row bytes are 32-bit in the kernels
_WARPS = BLOCK // selection.WARP
_PERSISTENT_BLOCKS = 12  # blocks a multiprocessor of the passes that keep parameter gradients
_MERGE_COLUMNS = 32  # lanes of a merge warp
_REDUCE_COLUMNS = 8  # columns of parameter partials a merge block sums
_FEW_EDGES = 1 << 24  # below, launches count more than the memory of partials kept longer


class DeviceEngine:
    """Runs the traversal kernels on one device.

    Parameters
    ----------
    device : torch.device
        ``cuda:i``, or ``cpu`` for the host emulator.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.emulated = device.type != "cuda"
        self.multiprocessors = 1 if self.emulated else cuda.multiprocessors(device.index)

    # ------------------------------------------------------------------ passes

    def softmax_forward(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
    ) -> tuple[Tensor, Tensor]:
        """Weighted sum [N_dst, H, D] and its base-2 log-sum-exp [N_dst, H] float32."""
        call = _Call(self, functor, graph, operands, scalars)
        out = operands[functor.src[0]].new_empty(graph.num_dst, call.heads, call.dim)
        lse = torch.empty(graph.num_dst, call.heads, dtype=torch.float32, device=self.device)
        call.merge_softmax(call.rows("dst", "forward", out=out, lse=lse, into=out), lse)
        return out, lse

    def softmax_backward(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        out: Tensor,
        lse: Tensor,
        grad_out: Tensor,
        needs: frozenset[str],
    ) -> dict[str, Tensor]:
        """Gradients of the operands named in ``needs``; no work for the others."""
        call = _Call(self, functor, graph, operands, scalars)
        stats = torch.empty(graph.num_dst, call.heads, 2, dtype=torch.float32, device=self.device)
        saved = {"out": out, "lse": lse, "grad_out": grad_out, "row_stats": stats}
        (src,), (dst,), (param,) = functor.src, functor.dst, functor.params
        grads = {name: torch.empty_like(operands[name]) for name in needs}
        params = call.param_partials() if param in needs else {}
        merges: list[_Merge] = []
        if dst in needs or params:
            merges += call.rows(
                "dst", "backward_dst", into=grads.get(dst), param=params.get("dst"), **saved
            )
        else:
            call.row_stats(**saved)
        if graph.num_edges >= _FEW_EDGES:
            call.merge(merges)
            merges = []
        if src in needs or params:
            merges += call.rows(
                "src", "backward_src", into=grads.get(src), param=params.get("src"), **saved
            )
        call.merge(merges, params.get("all"), grads.get(param))
        return grads

    # ------------------------------------------------------------------ launching

    def launch(
        self, unit: Unit, entry: str, grid: tuple[int, int], block: int, args: bytes
    ) -> None:
        full_grid, full_block = (grid[0], grid[1], 1), (block, 1, 1)
        if not self.emulated:
            cuda.launch(unit, entry, full_grid, full_block, args, self.device.index)
            return
        from gnn_backend.runtime import emulator

        emulator.launch(unit.source, entry, full_grid, full_block, args)
        count_launch("emulator", entry)


@dataclass
class _Merge:
    """Split rows whose partials are still to be merged into their output."""

    splits: Splits
    partial: Tensor
    into: Tensor
    stats: Tensor | None

    def pack(self) -> tuple[int, ...]:
        rows = self.splits.heavy_rows
        pointers = (rows.data_ptr(), self.splits.heavy_ptr.data_ptr(), rows.numel())
        return (*pointers, self.partial.data_ptr(), self.into.data_ptr())


class _Call:
    """One operator call: its layout, its graph and the launches of a pass."""

    def __init__(
        self,
        engine: DeviceEngine,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
    ) -> None:
        first = operands[functor.src[0]]
        self.engine, self.graph = engine, graph
        self.heads, self.dim = first.shape[1], first.shape[2]
        if self.dim > selection.MAX_HEAD_DIM:
            raise Unsupported("head-dim", f"{self.dim} > {selection.MAX_HEAD_DIM}")
        if self.heads * self.dim >= _MAX_ROW:
            raise Unsupported("head-dim", f"{self.heads} x {self.dim} >= {_MAX_ROW} values a row")
        self.dtype = selection.DTYPE_NAMES[first.dtype]
        self.shape = selection.shape_for(self.dtype, self.heads, max(1, self.dim))
        self.unit = softmax_unit(functor.cuda_type, functor.cuda_header, self.dtype, self.shape)
        self.tables = [
            pointer
            for names in (functor.src, functor.dst, functor.params)
            for pointer in _two_pointers(operands, names)
        ]
        numbers = [float(scalars[name]) for name in functor.scalars]
        self.scalars = numbers + [0.0] * (4 - len(numbers))

    def _grid_y(self) -> int:
        return min(_MAX_GRID_Y, self.heads // self.shape.heads)

    def _pack(
        self,
        splits: Splits | None,
        count: int,
        indices: Tensor | None,
        tensors: Mapping[str, Tensor | None],
    ) -> bytes:
        fields = ("out", "lse", "grad_out", "row_stats", "grad")
        fields += ("param_partials", "partial", "partial_stats")
        return _TRAVERSAL.pack(
            _pointer(splits.tasks if splits else None),
            count,
            _pointer(indices),
            self.heads,
            self.dim,
            *self.tables,
            *self.scalars,
            *(_pointer(tensors.get(name)) for name in fields),
        )

    def rows(
        self,
        direction: Direction,
        which: str,
        *,
        into: Tensor | None,
        param: Tensor | None = None,
        **tensors: Tensor,
    ) -> list[_Merge]:
        """Run one pass over the rows of ``direction``; returns what is to be merged."""
        blocks = self._blocks(direction)
        if not blocks:
            return []
        splits = self._splits(direction)
        held: dict[str, Tensor | None] = dict(tensors)
        if which != "forward":
            held["grad"] = into
        if param is not None:
            blocks = param.shape[0]
            held["param_partials"] = param
        if splits.num_slots and into is not None:
            held["partial"] = self._float(splits.num_slots, self.heads, self.dim)
            if which == "forward":
                held["partial_stats"] = self._float(splits.num_slots, self.heads, 2)
        args = self._pack(splits, splits.num_tasks, self.graph.csr(direction).indices, held)
        entry = f"{self.unit.name}_{which}"
        self.engine.launch(self.unit, entry, (blocks, self._grid_y()), BLOCK, args)
        partial = held.get("partial")
        if partial is None or into is None:
            return []
        return [_Merge(splits, partial, into, held.get("partial_stats"))]

    def _splits(self, direction: Direction) -> Splits:
        return self.graph.splits(direction, selection.chunk_for(self.graph.num_edges))

    def _blocks(self, direction: Direction) -> int:
        """Blocks that give every task a lane group; 0 where there is nothing to do."""
        rows = self.graph.num_dst if direction == "dst" else self.graph.num_src
        if rows * self.heads * self.dim == 0:
            return 0
        return -(-self._splits(direction).num_tasks // (_WARPS * self.shape.tasks))

    def param_partials(self) -> dict[str, Tensor]:
        """Partials of the parameter gradient, a row a block: of both passes and each one's."""
        most = self.engine.multiprocessors * _PERSISTENT_BLOCKS
        by_dst, by_src = (min(self._blocks(d), most) for d in ("dst", "src"))
        partials = self._float(by_dst + by_src, self.heads, self.dim)
        return {"all": partials, "dst": partials[:by_dst], "src": partials[by_dst:]}

    def row_stats(self, **tensors: Tensor) -> None:
        """Write (log-sum-exp, <grad_out, out>) of every row, without traversing edges."""
        if self.graph.num_dst * self.heads * self.dim == 0:
            return
        args = self._pack(None, self.graph.num_dst, None, tensors)
        rows = _WARPS * self.shape.tasks
        grid = (-(-self.graph.num_dst // rows), self._grid_y())
        self.engine.launch(self.unit, f"{self.unit.name}_row_stats", grid, BLOCK, args)

    def merge_softmax(self, merges: list[_Merge], lse: Tensor) -> None:
        """Merge the partials of a forward pass."""
        for merge in merges:
            sides = (*merge.pack(), 0, 0, 0, 0, 0)
            numbers = (_pointer(merge.stats), lse.data_ptr(), 0, 0, 0)
            self._launch_merge("softmax", merge.splits.heavy_rows.numel(), sides, numbers)

    def merge(
        self, merges: list[_Merge], partials: Tensor | None = None, param: Tensor | None = None
    ) -> None:
        """Merge the partials of backward passes, and sum parameter partials, in one launch."""
        blocks = sum(m.splits.heavy_rows.numel() for m in merges)
        sides = [number for m in merges for number in m.pack()]
        sides += [0] * (10 - len(sides))
        numbers = (0, 0, 0, 0, 0)
        if partials is not None and param is not None:
            blocks += -(-param.numel() // _REDUCE_COLUMNS)
            numbers = (0, 0, partials.data_ptr(), partials.shape[0], param.data_ptr())
        if blocks:
            self._launch_merge("sum", blocks, tuple(sides), numbers)

    def _launch_merge(
        self, kind: str, blocks: int, sides: tuple[int, ...], numbers: tuple[int, ...]
    ) -> None:
        vector = 4 if self.dim % 4 == 0 else 1
        tiles = -(-self.heads * self.dim // (_MERGE_COLUMNS * vector))
        unit = merge_unit(self.dtype)
        grid = (blocks, min(_MAX_GRID_Y, tiles))
        args = _MERGE.pack(*sides, self.heads, self.dim, *numbers)
        self.engine.launch(unit, f"{unit.name}_{kind}_v{vector}", grid, MERGE_BLOCK, args)

    def _float(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.float32, device=self.engine.device)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _two_pointers(operands: Mapping[str, Tensor], names: tuple[str, ...]) -> tuple[int, int]:
    pointers = [operands[name].data_ptr() for name in names] + [0, 0]
    return pointers[0], pointers[1]
