"""One call of the CPU's aggregations: its operands as the kernels read them, and the launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.runtime import cpu_call, cpu_module
from gnn_backend.runtime.cpu_vector import VECTOR_BYTES

if TYPE_CHECKING:
    from gnn_backend.graph import Graph
    from gnn_backend.graph.graph import CSR
    from gnn_backend.runtime.aggregation import Message

KINDS = ("copy", "mul", "add", "add_relu")
EDGES = 64  # as in ``aggregate_backward.py``
LINE = 16  # as in ``aggregate_winners.py``
PARTS, FIRST_PARTS = 12, 2  # as in ``aggregate_forward.py``
MAX_WIDE = 8  # registers of a wide tile
_REGISTERS = 24 if VECTOR_BYTES == 64 else 12  # of 32 and 16, for what is summed
#: What a kernel keeps in registers; ``softmax`` is summed by a loop of its own.
_SUMMED = (
    "sum", "square", "max", "max_ties", "max_first", "min", "min_ties", "min_first",
    "mul", "mul_rest", "mul_rest",
)  # fmt: skip


class AggregateCall:
    """One call: its operands as the kernels read them, and the launches.

    Attributes
    ----------
    shape : tuple of int
        (H, D) of the messages.
    features : int
        H * D.
    heads, width : int
        As the kernels see them: one head, unless each has a number of its own on every edge.
    """

    def __init__(
        self, graph: Graph, message: Message, temperature: Tensor | float | None = None
    ) -> None:
        if message.kind not in KINDS:
            raise invalid("message", "unknown kind", message.kind, f"one of {KINDS}")
        self.graph = graph
        self.path = cpu_module.functor_path(f"message_{message.kind}")
        self.real = torch.float64 if message.x.dtype == torch.float64 else torch.float32
        # Copied rows are what they were; others have as many digits as stock's messages.
        self.compared = self.real if message.kind == "copy" else message.x.dtype
        self.shape = message.x.shape[1:]
        heads, width = self.shape
        self.features = heads * width
        self.tensors = {"x": self.dense(message.x)}
        self.edge_name = None
        self.heads, self.width = 1, self.features
        if message.edge is not None:
            self.edge_name = "edge_rows" if message.edge.dim() == 3 else "edge_numbers"
            self.tensors[self.edge_name] = self.dense(message.edge)
            if message.edge.dim() == 2:
                self.heads, self.width = heads, width
        if temperature is not None:
            table = torch.as_tensor(temperature, dtype=self.real).detach().reshape(-1)
            self.tensors["temperature"] = table.expand(self.features).contiguous()

    def dense(self, tensor: Tensor) -> Tensor:
        """The tensor in the computing type, contiguous."""
        return tensor.detach().to(self.real).contiguous()

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.real)

    @property
    def position(self) -> torch.dtype:
        """Of positions in the CSR."""
        return self.graph.by_dst.indptr.dtype

    def blocks(self, rows: int, parts: int) -> int:
        """Blocks of a traversal, from sizes alone, so that results do not depend on threads."""
        work = (self.graph.num_edges + rows) * self.features
        row = parts * self.features * self.real.itemsize
        limit = max(16, cpu_call.PARTIAL_BYTES // max(row, 1))
        return max(1, min(work // cpu_call.BLOCK_WORK, cpu_call.MAX_BLOCKS, limit))

    def launch(
        self,
        name: str,
        csr: CSR,
        rows: int,
        blocks: int,
        tensors: dict[str, Tensor],
        *,
        nan_wins: bool = True,
        parts: int = 0,
    ) -> None:
        """Run a kernel over all blocks, and the one that merges its partial rows, if it has one.

        Parameters
        ----------
        tensors : dict of str to Tensor
            Under the names of ``Aggregation``.
        parts : int
            Partial rows of a slot.
        """
        held = self.tensors | tensors
        ids = csr.edge_ids if self.edge_name else None
        given = frozenset(held) & frozenset(cpu_module.AGGREGATE_OPTIONAL)
        variant = cpu_module.AggregateVariant(
            self.real,
            csr.indptr.dtype,
            self._wide(name, given),
            given,
            None if ids is None else ids.dtype,
            nan_wins,
            self.compared,
            csr.rows is not None,
        )
        module = cpu_module.aggregate_module(self.path, variant)
        slots = 2 * blocks if blocks > 1 else 0
        held |= {
            "indptr": csr.indptr,
            "indices": csr.indices,
            "slots": self.empty(slots * parts, self.features),
            "first_slots": torch.empty(slots * FIRST_PARTS, self.features, dtype=self.position),
            "slot_row": torch.empty(2 * blocks, dtype=torch.int64),
            "buffers": self.empty(blocks, EDGES),
        }
        if ids is not None:
            held["edge_ids"] = ids
        if csr.rows is not None:
            held["row_ids"] = csr.rows
        values = {key: tensor.data_ptr() for key, tensor in held.items()}
        values |= {"rows": rows, "edges": self.graph.num_edges, "blocks": blocks}
        values |= {"heads": self.heads, "width": self.width}
        order = module.Aggregation._fields
        block = torch.tensor([values.get(field, 0) for field in order], dtype=torch.int64)
        cpu_call.Call.run(module, name, blocks, block.data_ptr())
        if blocks > 1 and hasattr(module, f"merge_{name}"):
            cpu_call.Call.run(module, f"merge_{name}", 1, block.data_ptr())

    def _wide(self, name: str, given: frozenset[str]) -> int:
        """Registers of a wide tile: as many as the features fill and the sums leave room for."""
        sums = sum(1 for which in _SUMMED if which in given)
        if name == "aggregate_backward":  # x, message, slope and the sum
            tables = given & {"grad_square", "grad_max", "grad_min", "grad_mul", "grad_softmax"}
            sums = 4 if tables or self.edge_name else 1
        if "softmax" in given:
            sums = max(sums, 4)
        filled = self.width * self.real.itemsize // VECTOR_BYTES
        most = min(MAX_WIDE, _REGISTERS // max(sums, 1), max(filled, 1))
        return 1 << (most.bit_length() - 1) if most else 1
