"""The device engine: launch sequence of the softmax-weighted passes, for CUDA and the emulator.

It allocates, sizes grids, packs arguments and merges split rows; the kernels run on
the GPU or in the host emulator. Operands arrive contiguous and checked (``ops``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
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
    REDUCE_BLOCK,
    Unit,
    merge_unit,
    softmax_unit,
)

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor

_TRAVERSAL = struct.Struct("<11q4f8q")  # TraversalArgs in kernels/traversal.cuh
_MERGE = struct.Struct("<9q")  # MergeArgs in kernels/merge.cuh
_MAX_GRID_Y = 65535
_MAX_ROW = 1 << 30  # values; row bytes are 32-bit in the kernels
_WARPS = BLOCK // selection.WARP
_PERSISTENT_BLOCKS = 4  # blocks a multiprocessor of the passes that keep parameter gradients
_MERGE_COLUMNS = 32  # lanes of a merge warp


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
        call.rows("dst", "forward", out=out, lse=lse, into=out)
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
        if dst in needs or params:
            call.rows("dst", "backward_dst", into=grads.get(dst), param=params.get("dst"), **saved)
        else:
            call.row_stats(**saved)
        if src in needs or params:
            call.rows("src", "backward_src", into=grads.get(src), param=params.get("src"), **saved)
        if params:
            call.reduce(params["all"], grads[param])
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
    ) -> None:
        """Run one pass over the rows of ``direction`` and merge its split rows into ``into``."""
        blocks = self._blocks(direction)
        if not blocks:
            return
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
        if splits.num_slots and into is not None:
            self._merge("softmax" if which == "forward" else "sum", splits, held, into)

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

    def reduce(self, partials: Tensor, into: Tensor) -> None:
        """Sum the rows of ``partials`` into ``into``, in order."""
        if into.numel() == 0:
            return
        tiles = -(-self.heads * self.dim // _MERGE_COLUMNS)
        args = self._pack_merge(None, {"partial": partials}, into)
        unit = merge_unit(self.dtype)
        grid = (1, min(_MAX_GRID_Y, tiles))
        self.engine.launch(unit, f"{unit.name}_reduce", grid, REDUCE_BLOCK, args)

    def row_stats(self, **tensors: Tensor) -> None:
        """Write (log-sum-exp, <grad_out, out>) of every row, without traversing edges."""
        if self.graph.num_dst * self.heads * self.dim == 0:
            return
        args = self._pack(None, self.graph.num_dst, None, tensors)
        rows = _WARPS * self.shape.tasks
        grid = (-(-self.graph.num_dst // rows), self._grid_y())
        self.engine.launch(self.unit, f"{self.unit.name}_row_stats", grid, BLOCK, args)

    def _merge(
        self, kind: str, splits: Splits, held: Mapping[str, Tensor | None], into: Tensor
    ) -> None:
        vector = 4 if self.dim % 4 == 0 else 1
        tiles = -(-self.heads * self.dim // (_MERGE_COLUMNS * vector))
        unit = merge_unit(self.dtype)
        grid = (splits.heavy_rows.numel(), min(_MAX_GRID_Y, tiles))
        args = self._pack_merge(splits, held, into)
        self.engine.launch(unit, f"{unit.name}_{kind}_v{vector}", grid, MERGE_BLOCK, args)

    def _pack_merge(
        self, splits: Splits | None, held: Mapping[str, Tensor | None], into: Tensor
    ) -> bytes:
        partial = held["partial"]
        return _MERGE.pack(
            _pointer(splits.heavy_rows if splits else None),
            _pointer(splits.heavy_ptr if splits else None),
            self.heads,
            self.dim,
            _pointer(partial),
            _pointer(held.get("partial_stats")),
            into.data_ptr(),
            _pointer(held.get("lse")),
            0 if partial is None else partial.shape[0],
        )

    def _float(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.float32, device=self.engine.device)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _two_pointers(operands: Mapping[str, Tensor], names: tuple[str, ...]) -> tuple[int, int]:
    pointers = [operands[name].data_ptr() for name in names] + [0, 0]
    return pointers[0], pointers[1]
