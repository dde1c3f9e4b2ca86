"""The device engine: launch sequence of the softmax-weighted passes, for CUDA and the emulator.

It allocates, packs arguments, launches, and merges split rows; the kernels run on the GPU or in
the host emulator. Operands arrive contiguous and checked (``ops``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.profile import count_launch
from gnn_backend.runtime import cuda
from gnn_backend.runtime.instances import BLOCK, MERGE_BLOCK, Unit
from gnn_backend.runtime.plan import Plan, Side, plan_for

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.launch import Cotangents, Saved
    from gnn_backend.runtime.random import Dropout

TRAVERSAL_ARGS = struct.Struct("<11q4f8q")  # TraversalArgs in kernels/traversal.cuh
MERGE_ARGS = struct.Struct("<17q")  # MergeArgs in kernels/merge.cuh
_FEW_EDGES = 1 << 24  # below, launches count more than the memory of partials kept longer
_NO_SIDE = (0, 0, 0, 0, 0)
_ABSENT_TABLES = ((0, 0), (0,), ())  # what fills a kind's two pointers up, by how many are used
_ABSENT_SCALARS = tuple((0.0,) * (4 - used) for used in range(5))


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

    def softmax_forward(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        dropout: Dropout | None = None,
        *,
        aggregate: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Weighted sum [N_dst, H, D] and its base-2 log-sum-exp [N_dst, H] float32.

        The log-sum-exp is up to a constant of the row that the functor leaves out of its scores.
        """
        plan, fixed = self._prepare(functor, graph, operands, scalars)
        side, heads = plan.dst, plan.heads
        out = operands[functor.src[0]].new_empty(graph.num_dst, heads, plan.dim)
        lse = self._floats(graph.num_dst, heads)
        if not side.blocks:
            return out, lse, None
        partial, stats = 0, 0
        if side.num_slots:
            leading = -(-2 * side.num_slots * heads // 4) * 4  # keeps the partials aligned
            scratch = self._floats(leading + side.num_slots * plan.width)
            stats = scratch.data_ptr()
            partial = stats + 4 * leading
        rows = (out.data_ptr(), lse.data_ptr(), 0, 0, 0, 0, partial, stats)
        self._traverse(plan, side, "forward", side.blocks, fixed, rows)
        if side.num_slots:
            merged = _merged(side, partial, out.data_ptr())
            numbers = (plan.heads, plan.dim, stats, lse.data_ptr(), 0, 0, 0)
            args = MERGE_ARGS.pack(*merged, *_NO_SIDE, *numbers)
            self._merge(plan, "softmax", side.merge_blocks, args)
        return out, lse, None

    def softmax_backward(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        saved: Saved,
        cotangents: Cotangents,
        needs: frozenset[str],
        dropout: Dropout | None = None,
    ) -> dict[str, Tensor]:
        """Gradients of the operands named in ``needs``; no work for the others."""
        plan, fixed = self._prepare(functor, graph, operands, scalars)
        grads = {name: torch.empty_like(operands[name]) for name in needs}
        (src,), (dst,), (param,) = functor.src, functor.dst, functor.params
        by_dst = dst in needs or param in needs
        by_src = src in needs or param in needs
        few = graph.num_edges < _FEW_EDGES
        work = _Backward(self, plan, fixed, few)
        work.reads(saved.out, saved.lse, cotangents.out)
        if param in needs:
            work.sums_params(grads[param], plan.src(graph))
        if by_dst:
            work.rows("backward_dst", plan.dst, grads.get(dst), 0)
        elif graph.num_dst * plan.width:
            work.row_stats(graph.num_dst)
        if not few:
            work.merge(last=False)
        if by_src:
            first = plan.dst.persistent_blocks
            work.rows("backward_src", plan.src(graph), grads.get(src), first)
        work.merge(last=True)
        return grads

    def softmax_weights(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        lse: Tensor,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """Attention weights [E, H] after dropout: not yet."""
        raise Unsupported("returns-attention")

    def _prepare(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
    ) -> tuple[Plan, tuple[float, ...]]:
        """The plan, and the arguments that are the same for all passes of a call."""
        first = operands[functor.src[0]]
        heads, dim = first.shape[1:]
        plan = plan_for(functor, graph, first.dtype, heads, dim, self.multiprocessors)
        fixed: list[float] = [heads, dim]
        for names in (functor.src, functor.dst, functor.params):
            fixed += [operands[name].data_ptr() for name in names]
            fixed += _ABSENT_TABLES[len(names)]
        fixed += [float(scalars[name]) for name in functor.scalars]
        return plan, (*fixed, *_ABSENT_SCALARS[len(functor.scalars)])

    def _traverse(
        self,
        plan: Plan,
        side: Side,
        which: str,
        blocks: int,
        fixed: tuple[float, ...],
        rows: tuple[int, ...],
    ) -> None:
        args = TRAVERSAL_ARGS.pack(side.tasks, side.num_tasks, side.indices, *fixed, *rows)
        self.launch(plan.unit, plan.entries[which], (blocks, plan.grid_y), BLOCK, args)

    def _merge(self, plan: Plan, kind: str, blocks: int, args: bytes) -> None:
        grid = (blocks, plan.merge_grid_y)
        self.launch(plan.merge_unit, plan.merge_entries[kind], grid, MERGE_BLOCK, args)

    def _floats(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def launch(
        self, unit: Unit, entry: str, grid: tuple[int, int], block: int, args: bytes
    ) -> None:
        """Launch one kernel of ``unit`` with one struct argument."""
        if not self.emulated:
            cuda.launch(unit, entry, (*grid, 1), (block, 1, 1), args, self.device.index)
            return
        from gnn_backend.runtime import emulator

        emulator.launch(unit.source, entry, (*grid, 1), (block, 1, 1), args)
        count_launch("emulator", entry)


class _Backward:
    """The passes of one backward call; holds their scratch memory until it is merged."""

    def __init__(
        self, engine: DeviceEngine, plan: Plan, fixed: tuple[float, ...], few: bool
    ) -> None:
        self.engine, self.plan, self.fixed, self.few = engine, plan, fixed, few
        self.scratch: list[Tensor] = []  # keeps partials alive until merged
        self.sides: list[tuple[int, ...]] = []
        self.blocks = 0
        self.params = self.param_rows = self.param_out = 0
        self.param_scratch: Tensor | None = None

    def reads(self, out: Tensor, lse: Tensor, grad_out: Tensor) -> None:
        """Take the saved tensors; row statistics are [N_dst, H, 2]."""
        self.row_statistics = self.engine._floats(out.shape[0] * self.plan.heads * 2)
        held = (out, lse, grad_out, self.row_statistics)
        self.saved = tuple(tensor.data_ptr() for tensor in held)

    def sums_params(self, grad: Tensor, src: Side) -> None:
        """Have both passes write parameter partials, one row a block."""
        self.param_rows = self.plan.dst.persistent_blocks + src.persistent_blocks
        self.param_scratch = self.engine._floats(self.param_rows * self.plan.width)
        self.params, self.param_out = self.param_scratch.data_ptr(), grad.data_ptr()

    def rows(self, which: str, side: Side, grad: Tensor | None, first_param: int) -> None:
        """Run one pass; its split rows are merged later."""
        if not side.blocks:
            return
        plan = self.plan
        partial = 0
        if grad is not None and side.num_slots:
            scratch = self.engine._floats(side.num_slots * plan.width)
            partial = scratch.data_ptr()
            self.scratch.append(scratch)
            self.sides.append(_merged(side, partial, grad.data_ptr()))
            self.blocks += side.merge_blocks
        into = 0 if grad is None else grad.data_ptr()
        params = self.params + 4 * first_param * plan.width if self.params else 0
        rows = (*self.saved, into, params, partial, 0)
        blocks = side.persistent_blocks
        self.engine._traverse(plan, side, which, blocks, self.fixed, rows)

    def row_stats(self, num_rows: int) -> None:
        """Write (log-sum-exp, <grad_out, out>) of every row, without traversing edges."""
        plan = self.plan
        args = TRAVERSAL_ARGS.pack(0, num_rows, 0, *self.fixed, *self.saved, 0, 0, 0, 0)
        grid = (-(-num_rows // plan.rows_a_block), plan.grid_y)
        self.engine.launch(plan.unit, plan.entries["row_stats"], grid, BLOCK, args)

    def merge(self, last: bool) -> None:
        """Merge split rows and, at the end, sum the parameter partials, in one launch."""
        plan = self.plan
        blocks, params = self.blocks, (0, 0, 0)
        if last and self.param_out:
            blocks += plan.reduce_blocks
            params = (self.params, self.param_rows, self.param_out)
        if blocks:
            sides = [n for side in self.sides for n in side] + [0] * (10 - 5 * len(self.sides))
            args = MERGE_ARGS.pack(*sides, plan.heads, plan.dim, 0, 0, *params)
            self.engine._merge(plan, "sum", blocks, args)
        self.scratch, self.sides, self.blocks = [], [], 0


def _merged(side: Side, partial: int, out: int) -> tuple[int, ...]:
    return (side.heavy_rows, side.heavy_ptr, side.num_heavy, partial, out)
