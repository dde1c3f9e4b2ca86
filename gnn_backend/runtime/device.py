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

from gnn_backend.config import get_config
from gnn_backend.graph import Graph
from gnn_backend.profile import count_launch, note_choice
from gnn_backend.runtime import cuda, tiles, tuning
from gnn_backend.runtime.edge_args import NO_EDGES, EdgeTerms
from gnn_backend.runtime.instances import BLOCK, MERGE_BLOCK, Unit
from gnn_backend.runtime.options import LOGIT_TERMS, PLAIN, Options, options_of
from gnn_backend.runtime.plan import MERGE_ROWS, Plan, Side, plan_for

if TYPE_CHECKING:
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.launch import Cotangents, Saved
    from gnn_backend.runtime.random import Dropout

TRAVERSAL_ARGS = struct.Struct("<11q4f10q")  # TraversalArgs in kernels/traversal.cuh, but its last
MERGE_SIDES = 4  # kernels/merge.cuh
MERGE_ARGS = struct.Struct("<35q")  # MergeArgs there
_FEW_EDGES = 1 << 24  # below, launches count more than the memory of partials kept longer
_NO_SIDE = (0,) * 7
_NO_PARAMS = (0, 0, 0)
_NO_ROWS = (0,) * 10
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
        """Weighted sum [N_dst, H, D], base-2 log-sum-exp [N_dst, H] float32, sum of edge features.

        The log-sum-exp is up to a constant of the row that the functor leaves out of its scores.
        With a term of the logit it is [N_dst, H, 2], the maximum and the logarithm of the sum.
        The last result is [N_dst, H, F], or None without ``aggregate``.
        """
        options = options_of(functor, operands, dropout, aggregate=aggregate)
        tileable = tiles.possible(functor, options)
        if tileable and tiles.chosen(graph, "dst", operands):
            note_choice(lambda: f"{functor.name}: tiles, {tiles.why(graph, operands)}")
            return tiles.forward(graph, operands, scalars)
        if options is PLAIN and get_config().autotune:
            tuning.tune(self, functor, graph, operands, scalars)
        plan = self._plan(functor, graph, operands, options)
        note_choice(
            lambda: (
                plan.describe(functor)
                + (f"; not tiles, {tiles.why(graph, operands)}" if tileable else "")
            )
        )
        fixed = _fixed(functor, operands, scalars)
        side, heads = plan.dst, plan.heads
        out = operands[functor.value].new_empty(graph.num_dst, heads, plan.dim)
        lse = self.floats(graph.num_dst, heads, *((2,) if options.logit else ()))
        out_edge = out.new_empty(graph.num_dst, heads, plan.features) if aggregate else None
        if not side.blocks:
            return out, lse, out_edge if out_edge is None else out_edge.zero_()
        dims = (plan.dim,) if out_edge is None else (plan.dim, plan.features)
        partial = stats = edge_partial = 0
        if side.num_slots:
            # Whole 16 bytes each: the kernels write four floats at once.
            leading = -(-2 * side.num_slots * heads // 4) * 4
            sums = -(-side.num_slots * plan.width // 4) * 4
            of_edges = side.num_slots * heads * plan.features if aggregate else 0
            scratch = self.floats(leading + sums + of_edges)
            stats = scratch.data_ptr()
            partial = stats + 4 * leading
            edge_partial = partial + 4 * sums
        edges = NO_EDGES
        if options.numbered:
            terms = EdgeTerms(options, operands, dropout)
            terms.set(out=out_edge)
            edges = terms.pack(side, edge_partial)
        rows = (out.data_ptr(), lse.data_ptr(), 0, 0, 0, 0, partial, stats, 0, 0)
        self.traverse(plan, side, "forward", side.blocks, fixed, rows, edges)
        if side.num_slots:
            sides = [_merged(side, partial, out, plan.dim, lse)]
            if out_edge is not None:
                sides.append(_merged(side, edge_partial, out_edge, plan.features))
            self.merge(plan, "softmax", sides, dims, stats)
        return out, lse, out_edge

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
        options = options_of(
            functor,
            operands,
            dropout,
            aggregate=cotangents.out_edge is not None,
            cotangent=cotangents.attention is not None,
        )
        done: dict[str, Tensor] = {}
        if tiles.possible(functor, options):
            done = tiles.backward(graph, operands, scalars, saved, cotangents, needs)
            needs -= done.keys()
            if not needs:
                return done
        plan = self._plan(functor, graph, operands, options)
        grads = {name: torch.empty_like(operands[name]) for name in needs}
        further = needs - plan.required
        if not plan.dst.blocks:
            for name in further:
                grads[name].zero_()
        elif "edge_features" in further and not options.features:  # of a sum that nobody used
            grads["edge_features"].zero_()
        by_src = not needs.isdisjoint(plan.of_src)
        # By source, features are not read again: the pass by destination leaves what they give.
        left = by_src and options.features > 0
        by_dst = left or bool(further) or not needs.isdisjoint(plan.of_dst)
        few = graph.num_edges < _FEW_EDGES
        work = _Backward(self, plan, _fixed(functor, operands, scalars), few)
        work.reads(saved.out, saved.lse, cotangents.out)
        if options.numbered:
            work.edges = terms = EdgeTerms(options, operands, dropout)
            if cotangents.attention is not None:
                work.row_sums = self._weighted_gradients(
                    functor, graph, operands, scalars, saved.lse, cotangents.attention, dropout
                )
                terms.set(row_sums=work.row_sums, grad_weights=cotangents.attention)
            if options.features:
                work.pairs = self.floats(graph.num_edges * plan.heads * 2)
                terms.set(pairs=work.pairs, out=saved.out_edge, grad_out=cotangents.out_edge)
            for name in LOGIT_TERMS:
                terms.set(grad_logit=grads.get(name))
            terms.set(grad_rows=grads.get("edge"))
            terms.set(grad_rows=grads.get("edge_features"), grad_query=grads.get("edge_query"))
            # Heads that share features are summed one block of heads after the other.
            work.heads_in_turn = options.shared and "edge_features" in needs
        if functor.params and functor.params[0] in needs:
            work.sums_params(grads[functor.params[0]], plan.src(graph))
        if by_dst:
            of_row = grads.get(functor.dst[0])
            second = grads.get(functor.dst[1]) if len(functor.dst) > 1 else None
            work.rows("backward_dst", plan.dst, (of_row, second, grads.get("edge_query")), 0)
        elif graph.num_dst * plan.width:
            work.row_stats(graph.num_dst)
        if not few:
            work.merge(last=False)
        if by_src:
            first = plan.dst.persistent_blocks
            second = grads.get(functor.src[1]) if len(functor.src) > 1 else None
            of_rows = (grads.get(functor.src[0]), second, None)
            work.rows("backward_src", plan.src(graph), of_rows, first)
        work.merge(last=True)
        return grads | done

    def softmax_weights(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        lse: Tensor,
        dropout: Dropout | None = None,
    ) -> Tensor:
        """Attention weights [E, H] after dropout, in the caller's edge order."""
        options = options_of(functor, operands, dropout, weights=True)
        plan = self._plan(functor, graph, operands, options)
        weights = operands[functor.value].new_empty(graph.num_edges, plan.heads)
        if not plan.dst.blocks:
            return weights.zero_()
        terms = EdgeTerms(options, operands, dropout)
        terms.set(weights=weights)
        rows = (0, lse.data_ptr(), *_NO_ROWS[2:])
        self.traverse(
            plan, plan.dst, "weights", plan.dst.blocks, _fixed(functor, operands, scalars), rows,
            terms.pack(plan.dst),
        )  # fmt: skip
        return weights

    def _weighted_gradients(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        lse: Tensor,
        grad_weights: Tensor,
        dropout: Dropout | None,
    ) -> Tensor:
        """Sum over a row of the weights times their gradients, float32 [N_dst, H]."""
        options = options_of(functor, operands, dropout, weights=True, cotangent=True)
        plan = self._plan(functor, graph, operands, options)
        side, sums = plan.dst, self.floats(graph.num_dst, plan.heads)
        if not side.blocks:
            return sums
        partials = self.floats(side.num_slots * plan.heads)
        terms = EdgeTerms(options, operands, dropout)
        terms.set(row_sums=sums, grad_weights=grad_weights)
        rows = (0, lse.data_ptr(), 0, 0, 0, 0, partials.data_ptr(), 0, 0, 0)
        self.traverse(
            plan, side, "weights", side.blocks, _fixed(functor, operands, scalars), rows,
            terms.pack(side),
        )  # fmt: skip
        if side.num_slots:
            merged = [_merged(side, partials.data_ptr(), sums, 1)]
            self.merge(plan, "float", merged, (1,))
        return sums

    def _plan(
        self, functor: Functor, graph: Graph, operands: Mapping[str, Tensor], options: Options
    ) -> Plan:
        first = operands[functor.value]
        heads, dim = first.shape[1:]
        return plan_for(functor, graph, first.dtype, heads, dim, self.multiprocessors, options)

    def traverse(
        self,
        plan: Plan,
        side: Side,
        which: str,
        blocks: int,
        fixed: tuple[float, ...],
        rows: tuple[int, ...],
        edges: bytes,
        grid_y: int = 0,
    ) -> None:
        """Launch a pass over the tasks of ``side``."""
        args = TRAVERSAL_ARGS.pack(side.tasks, side.num_tasks, side.indices, *fixed, *rows) + edges
        grid = (blocks, grid_y or plan.grid_y)
        self.launch(plan.unit, plan.entries[which], grid, BLOCK, args)

    def merge(
        self,
        plan: Plan,
        kind: str,
        sides: list[tuple[int, ...]],
        dims: tuple[int, ...],
        stats: int = 0,
        params: tuple[int, int, int] = _NO_PARAMS,
    ) -> None:
        """Launch the merge of split rows, and of parameter partials where there are any."""
        blocks = 0
        for side in sides:
            blocks += -(-side[2] // MERGE_ROWS)
        if params[2]:
            blocks, dims = blocks + plan.reduce_blocks, (*dims, plan.dim)
        if not blocks:
            return
        numbers = [n for side in sides for n in side]
        numbers += _NO_SIDE * (MERGE_SIDES - len(sides))
        args = MERGE_ARGS.pack(*numbers, plan.heads, plan.dim, plan.options.logit, stats, *params)
        unit, entry = plan.merges[kind]
        self.launch(unit, entry, (blocks, plan.merge_grid_y(dims)), MERGE_BLOCK, args)

    def floats(self, *shape: int) -> Tensor:
        """Scratch memory."""
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
        self.edges: EdgeTerms | None = None
        self.pairs: Tensor | None = None
        self.row_sums: Tensor | None = None
        self.heads_in_turn = False
        self.scratch: list[Tensor] = []  # keeps partials alive until merged
        self.sides: list[tuple[int, ...]] = []
        self.dims: tuple[int, ...] = ()
        self.params = self.param_rows = self.param_out = 0
        self.param_scratch: Tensor | None = None

    def reads(self, out: Tensor, lse: Tensor, grad_out: Tensor) -> None:
        """Take the saved tensors, and make room for row statistics (``RowStats``)."""
        words = 4 if self.plan.options.logit else 2
        self.row_statistics = self.engine.floats(out.shape[0] * self.plan.heads * words)
        held = (out, lse, grad_out, self.row_statistics)
        self.saved = tuple(tensor.data_ptr() for tensor in held)

    def sums_params(self, grad: Tensor, src: Side) -> None:
        """Have both passes write parameter partials, one row a block."""
        self.param_rows = self.plan.dst.persistent_blocks + src.persistent_blocks
        self.param_scratch = self.engine.floats(self.param_rows * self.plan.width)
        self.params, self.param_out = self.param_scratch.data_ptr(), grad.data_ptr()

    def rows(
        self,
        which: str,
        side: Side,
        grads: tuple[Tensor | None, Tensor | None, Tensor | None],
        first_param: int,
    ) -> None:
        """Run one pass; its split rows are merged later.

        ``grads``: of the rows of the first and second table, and of the edges' queries.
        """
        if not side.blocks:
            return
        plan = self.plan
        into, partials = [0, 0, 0], [0, 0, 0]
        for place, grad in enumerate(grads):
            if grad is not None:
                into[place] = grad.data_ptr()
                if side.num_slots:
                    partials[place] = self._partial(side, grad)
        params = self.params + 4 * first_param * plan.width if self.params else 0
        rows = (*self.saved, into[0], params, partials[0], 0, into[1], partials[1])
        edges = NO_EDGES if self.edges is None else self.edges.pack(side, partials[2])
        grid_y = 1 if self.heads_in_turn and which == "backward_dst" else 0
        blocks = side.persistent_blocks
        self.engine.traverse(plan, side, which, blocks, self.fixed, rows, edges, grid_y)

    def _partial(self, side: Side, grad: Tensor) -> int:
        """Where the split rows of a gradient [N, H] or [N, H, dim] go until they are merged."""
        dim = grad.shape[2] if grad.dim() > 2 else 1
        scratch = self.engine.floats(side.num_slots * self.plan.heads * dim)
        self.scratch.append(scratch)
        self.sides.append(_merged(side, scratch.data_ptr(), grad, dim))
        self.dims += (dim,)
        return scratch.data_ptr()

    def row_stats(self, num_rows: int) -> None:
        """Write (log-sum-exp, <grad_out, out>) of every row, without traversing edges."""
        plan = self.plan
        args = TRAVERSAL_ARGS.pack(0, num_rows, 0, *self.fixed, *self.saved, *_NO_ROWS[4:])
        args += NO_EDGES if self.edges is None else self.edges.pack(plan.dst)
        grid = (-(-num_rows // plan.rows_a_block), plan.grid_y)
        self.engine.launch(plan.unit, plan.entries["row_stats"], grid, BLOCK, args)

    def merge(self, last: bool) -> None:
        """Merge split rows and, at the end, sum the parameter partials, in one launch."""
        params = _NO_PARAMS
        if last and self.param_out:
            params = (self.params, self.param_rows, self.param_out)
        elif not self.sides:
            return
        self.engine.merge(self.plan, "sum", self.sides, self.dims, 0, params)
        self.scratch, self.sides, self.dims = [], [], ()


def _fixed(
    functor: Functor, operands: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> tuple[float, ...]:
    """The arguments that are the same for all passes of a call."""
    fixed: list[float] = [*operands[functor.value].shape[1:]]
    for names in (functor.src, functor.dst, functor.params):
        fixed += [operands[name].data_ptr() for name in names]
        fixed += _ABSENT_TABLES[len(names)]
    fixed += [float(scalars[name]) for name in functor.scalars]
    return (*fixed, *_ABSENT_SCALARS[len(functor.scalars)])


def _merged(
    side: Side, partial: int, out: Tensor, dim: int, lse: Tensor | None = None
) -> tuple[int, ...]:
    """A ``Side`` of the merge kernels."""
    log_sums = 0 if lse is None else lse.data_ptr()
    rows = (side.heavy_rows, side.heavy_ptr, side.num_heavy)
    return (*rows, partial, out.data_ptr(), dim, log_sums)
