"""Generated traversals on CUDA and in the emulator: units, launches, partials of split rows."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported
from gnn_backend.graph.relations import Relations
from gnn_backend.graph.splits import MAX_CHUNK, Splits
from gnn_backend.ir import emit_cuda
from gnn_backend.ir.accumulators import Accumulators
from gnn_backend.ir.traversal import Traversal
from gnn_backend.runtime import selection
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import BLOCK, Unit
from gnn_backend.runtime.plan import MAX_GRID_Y
from gnn_backend.runtime.selection import DTYPE_NAMES, DTYPE_TYPES, WARP, Shape, shape_for

MERGE_THREADS, MERGED_ROWS = 256, 8  # kernels/split_rows.cuh
_FEW_ROWS = 4096  # rows of types: with more tasks than this the merge takes longer than it saves
_WARPS = BLOCK // WARP


@lru_cache(maxsize=1024)
def unit_of(traversal: Traversal, dtype: str) -> tuple[Unit, Shape]:
    """The unit of a traversal at a storage type (``f32``, ``bf16``, ``f16``), and its lane layout.

    Raises
    ------
    Unsupported
        ``head-dim``: no kernel for rows this wide.
    """
    if traversal.dim > selection.MAX_HEAD_DIM:
        raise Unsupported("head-dim", f"{traversal.dim} > {selection.MAX_HEAD_DIM}")
    shape = shape_for(dtype, traversal.heads, traversal.dim)
    kind = DTYPE_TYPES[dtype]
    kind = kind if kind == "float" else f"gnnb::{kind}"
    text = emit_cuda.source(traversal, "NAME", kind, shape, BLOCK)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    name = f"{'map' if traversal.rows is None else 'traversal'}_{digest}"
    entries = (name,) if traversal.rows is None else (name, f"{name}_merge")
    return Unit(name, entries, text.replace("NAME", name)), shape


def run(
    engine: DeviceEngine, traversal: Traversal, relations: Relations, inputs: Sequence[Tensor],
    dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    """Run a traversal on the device of ``engine``; as :func:`gnn_backend.ops.traversal.traverse`.

    Inputs are contiguous and aligned to 16 bytes.

    Raises
    ------
    Unsupported
        ``head-dim``.
    """
    key = ("traversal", traversal, dtype)
    plan = relations.plans.get(key)
    if plan is None:
        plan = relations.plans[key] = _Plan(traversal, relations, dtype)
    found: list[Tensor] = plan.run(engine, inputs)
    return found


class _Plan:
    """What launches over one graph have in common: kernels, indices, tasks and grids."""

    def __init__(self, traversal: Traversal, relations: Relations, dtype: torch.dtype) -> None:
        t = self.traversal = traversal
        self.dtype = dtype
        self.unit, shape = unit_of(t, DTYPE_NAMES[dtype])
        self.num_elements = relations.num(t.elements)
        self.num_rows = 0 if t.rows is None else relations.num(t.rows)
        self.arrays: dict[str, Tensor] = {}
        self.splits: Splits | None = None
        groups = -(-self.num_elements // emit_cuda.in_flight(t, shape))
        if t.rows is None:
            at = {d: relations.index(t.elements, d) for d in t.indices()}
        else:
            incidence = relations.incidence(t.rows, t.elements)
            at = {d: incidence.index(d) for d in t.indices()}
            for domain in t.row_indices():
                self._keep(f"row_by_{domain.name.lower()}", relations.index(t.rows, domain))
            self.splits = incidence.splits(self._chunk(shape))
            groups = self.splits.num_tasks
        for domain, index in at.items():
            self._keep(f"by_{domain.name.lower()}", index)
        per_block = _WARPS * shape.tasks
        head_blocks = t.heads // shape.heads
        self.grid = -(-groups // per_block), min(MAX_GRID_Y, head_blocks)
        stored = {s.table for s in t.stores}
        self.shapes = [
            (self.num_elements if n in stored else self.num_rows, table.heads, table.dim)
            for n, table in enumerate(t.outputs)
        ]
        self._lay_out([name for name, _ in emit_cuda.arguments(t)])

    def _keep(self, name: str, index: Tensor | None) -> None:
        if index is not None:
            if index.dtype != torch.int32:
                raise Unsupported("no-kernel", "more than 2^31 elements")
            self.arrays[name] = index

    def _chunk(self, shape: Shape) -> int:
        chunk = selection.chunk_for(self.num_elements, shape.tasks)
        if self.num_rows < _FEW_ROWS:
            chunk = max(chunk, self.num_elements // _FEW_ROWS)
        return min(chunk, MAX_CHUNK)

    def _lay_out(self, names: list[str]) -> None:
        """The arguments that stay, and where those of a call go."""
        fixed = self._fixed()
        self.fixed = [fixed.get(name, 0) for name in names]
        self.pack = struct.Struct(f"<{len(names)}q").pack
        places = {name: place for place, name in enumerate(names)}
        self.inputs = [places[f"in{n}"] for n in range(len(self.traversal.inputs))]
        self.outputs = [places[f"out{n}"] for n in range(len(self.traversal.outputs))]
        self.partial = places.get("partial", 0)
        self.partials = 0
        if self.splits is not None and self.splits.num_slots:
            self.partials = self.slots * Accumulators(self.traversal).total

    def _fixed(self) -> dict[str, int]:
        values = {name: array.data_ptr() for name, array in self.arrays.items()}
        values |= {"heads": self.traversal.heads, "dim": self.traversal.dim}
        if self.splits is None:
            values["num_tasks"] = self.num_elements
            return values
        self.slots = -(-self.splits.num_slots // 4) * 4  # parts begin at multiples of 16 bytes
        values |= {
            "tasks": self.splits.tasks.data_ptr(),
            "num_tasks": self.splits.num_tasks,
            "slots": self.slots,
            "heavy_rows": self.splits.heavy_rows.data_ptr(),
            "heavy_ptr": self.splits.heavy_ptr.data_ptr(),
            "num_heavy": self.splits.heavy_rows.numel(),
        }
        return values

    def run(self, engine: DeviceEngine, inputs: Sequence[Tensor]) -> list[Tensor]:
        t, words = self.traversal, self.fixed.copy()
        out = [torch.empty(s, dtype=self.dtype, device=engine.device) for s in self.shapes]
        for place, x in zip(self.inputs, inputs, strict=True):
            words[place] = x.data_ptr()
        for place, x in zip(self.outputs, out, strict=True):
            words[place] = x.data_ptr()
        partial = None
        if self.partials:
            partial = engine.floats(self.partials)
            words[self.partial] = partial.data_ptr()
        args = self.pack(*words)
        if self.grid[0]:
            engine.launch(self.unit, self.unit.entries[0], self.grid, BLOCK, args)
        if partial is not None:
            assert self.splits is not None
            tiles = -(-t.heads * t.dim // WARP)
            grid = -(-self.splits.heavy_rows.numel() // MERGED_ROWS), min(MAX_GRID_Y, tiles)
            engine.launch(self.unit, self.unit.entries[1], grid, MERGE_THREADS, args)
        return out
