"""Generated traversals on the CPU, in Numba."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from gnn_backend.graph.relations import Relations
from gnn_backend.ir import emit_numba
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.emit_numba import Variant
from gnn_backend.ir.traversal import Traversal
from gnn_backend.runtime import cpu_call, cpu_module

_STEM = "traversal"  # files' names begin with it
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def run(
    traversal: Traversal, relations: Relations, inputs: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """Run a traversal; as :func:`gnn_backend.ops.traversal.traverse`.

    16-bit inputs are widened to float32, and results rounded once.
    """
    real = torch.float64 if dtype is torch.float64 else torch.float32
    tables = [t.to(real).contiguous() for t in inputs]
    work = _Work(traversal, relations, real)
    out = work.run(tables)
    return [o.to(dtype) for o in out]


def module_of(traversal: Traversal, relations: Relations, dtype: torch.dtype) -> tuple[str, str]:
    """Name and text of the module that :func:`run` runs.

    Parameters
    ----------
    traversal : Traversal
    relations : Relations
        Decide which indices are read: those of the row of the same number are not.
    dtype : torch.dtype
    """
    real = torch.float64 if dtype is torch.float64 else torch.float32
    text = emit_numba.source(traversal, _Work(traversal, relations, real).variant)
    return cpu_module.module_name(text, _STEM), text


class _Work:
    """One call."""

    def __init__(self, traversal: Traversal, relations: Relations, real: torch.dtype) -> None:
        self.traversal, self.relations, self.real = traversal, relations, real
        t = traversal
        self.num_elements = relations.num(t.elements)
        self.num_rows = 0 if t.rows is None else relations.num(t.rows)
        self.arrays: dict[str, Tensor] = {}
        identity: set[Domain] = set()
        row_identity: set[Domain] = set()
        if t.rows is None:
            at = {d: relations.index(t.elements, d) for d in t.indices()}
        else:
            incidence = relations.incidence(t.rows, t.elements)
            self.arrays["indptr"] = incidence.indptr
            at = {d: incidence.index(d) for d in t.indices()}
            for d in t.row_indices():
                found = relations.index(t.rows, d)
                _put(self.arrays, row_identity, f"row_by_{d.name.lower()}", d, found)
        for d, found in at.items():
            _put(self.arrays, identity, f"by_{d.name.lower()}", d, found)
        offset = self.arrays["indptr"].dtype if t.rows is not None else torch.int32
        self.variant = Variant(
            str(real).removeprefix("torch."), str(offset).removeprefix("torch."),
            frozenset(identity), frozenset(row_identity),
        )  # fmt: skip

    def run(self, tables: Sequence[Tensor]) -> list[Tensor]:
        t = self.traversal
        rows = self.num_elements if t.rows is None else self.num_rows
        out = [torch.empty(rows, o.heads, o.dim, dtype=self.real) for o in t.outputs]
        stored = {s.table for s in t.stores} if t.rows is not None else set()
        for place in stored:
            shape = self.num_elements, t.outputs[place].heads, t.outputs[place].dim
            out[place] = torch.empty(shape, dtype=self.real)
        if rows == 0 and not self.num_elements:
            return out
        blocks = self._blocks()
        held = dict(self.arrays)
        held |= {f"in{n}": table for n, table in enumerate(tables)}
        held |= {f"out{n}": table for n, table in enumerate(out)}
        size = max(1, emit_numba.buffer_size(t))
        held["buffers"] = torch.empty(blocks * size, dtype=self.real)
        if t.rows is not None:
            held |= self._partition(blocks)
            held["slots"] = torch.empty(
                2 * blocks * max(1, emit_numba.slot_size(t)), dtype=self.real
            )
            held["slot_row"] = torch.empty(2 * blocks, dtype=torch.int64)
        values = {name: tensor.data_ptr() for name, tensor in held.items()}
        values |= {"rows": self.num_rows, "blocks": blocks, "elements": self.num_elements}
        names = [name for name, _ in emit_numba.arguments(t)]
        packed = torch.tensor([values.get(name, 0) for name in names], dtype=torch.int64)
        module = _module(t, self.variant)
        cpu_call.Call.run(module, "forward", blocks, packed.data_ptr())
        if t.rows is not None:
            cpu_call.Call.run(module, "merge", 1, packed.data_ptr())
        return out

    def _blocks(self) -> int:
        """From sizes alone, so that results do not depend on the number of threads."""
        t = self.traversal
        work = (self.num_elements + self.num_rows) * t.heads * t.dim
        memory = emit_numba.slot_size(t) * self.real.itemsize if t.rows is not None else 1
        limit = max(16, cpu_call.PARTIAL_BYTES // max(1, memory))
        return int(max(1, min(work // cpu_call.BLOCK_WORK, cpu_call.MAX_BLOCKS, limit)))

    def _partition(self, blocks: int) -> dict[str, Tensor]:
        """Rows finished, and elements passed, where each block begins; kept with the relations."""
        t = self.traversal
        key = ("partition", t.rows, t.elements, blocks)
        found = self.relations.plans.get(key)
        if found is None:
            ends = self.arrays["indptr"][1:].long() + torch.arange(1, self.num_rows + 1)
            length = self.num_rows + self.num_elements
            places = torch.arange(blocks + 1) * length // blocks
            rows = torch.searchsorted(ends, places, right=True)
            found = self.relations.plans[key] = {
                "first_rows": rows, "first_elements": places - rows
            }  # fmt: skip
        return found  # type: ignore[no-any-return]


def _put(
    arrays: dict[str, Tensor], same: set[Domain], name: str, domain: Domain, index: Tensor | None
) -> None:
    if index is None:
        same.add(domain)
    else:
        arrays[name] = index.to(torch.int32)


def _module(traversal: Traversal, variant: Variant) -> ModuleType:
    return cpu_module.generated_module(
        _STEM, (traversal, variant), lambda: emit_numba.source(traversal, variant)
    )
