"""One call of the CPU engine: its operands as the kernels read them, and the launches."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.profile import count_launch
from gnn_backend.runtime import cpu_module, cpu_threads
from gnn_backend.runtime.cpu_vector import VECTOR_BYTES
from gnn_backend.runtime.pages import fresh

if TYPE_CHECKING:
    from gnn_backend.graph import Graph
    from gnn_backend.graph.csr import CSR
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.random import Dropout

BLOCK_WORK = 1 << 17  # features (edges x heads x width) that a block should at least hold
MAX_BLOCKS = 256
PARTIAL_BYTES = 4 << 20  # of all partial rows together
MAX_SCALARS = 4  # three of the functor, and dropout's
BUFFERS = 10  # of ``EDGES`` numbers that a block needs at most, and two more a head

_TERMS = frozenset({"edge", "edge_bias", "edge_query", "edge_features", "dropout"})
_SCORES = frozenset({"key_term", "query_term"})
#: What a kernel is compiled with, of what a call has.
_USES = {
    "forward": _TERMS | _SCORES | {"out_edge"},
    "weights": _TERMS | _SCORES | {"attention"},
    "feature_sums": frozenset({"attention"}),
    "stats": frozenset({"out_edge", "grad_out_edge", "attention", "grad_attention"}),
    "backward_dst": _TERMS
    | _SCORES
    | {"grad_out_edge", "grad_attention", "grad_query", "grad_query_term", "grad_param"}
    | {"grad_edge", "grad_edge_bias", "grad_edge_features", "grad_edge_query"},
    "backward_src": _TERMS
    | _SCORES
    | {"grad_out_edge", "grad_attention", "grad_key", "grad_key_term", "grad_value"},
}
#: What makes a kernel read or write by edge.
_BY_EDGE = _TERMS | {"out_edge", "attention", "grad_attention"}


class Call:
    """One call: its operands as the kernels read them, and the launches."""

    def __init__(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        dropout: Dropout | None = None,
    ) -> None:
        self.graph = graph
        self.functor = cpu_module.functor_path(functor.name)
        first = next(iter(operands.values()))
        self.dtype = first.dtype
        self.real = torch.float64 if first.dtype == torch.float64 else torch.float32
        for name, tensor in operands.items():
            if tensor.dtype != first.dtype:
                raise invalid(name, "mixed dtypes", tensor.dtype, f"{first.dtype}")
        self.wide = 1
        self.module = self.variant()
        self.roles = roles(self.module)
        value, features = operands[self.module.VALUE], operands.get("edge_features")
        self.heads, self.width = value.shape[1:]
        self.key_width = 1 if self.module.KEY_IS_SCALAR else self.width
        self.keys, self.outputs = self.heads * self.key_width, self.heads * self.width
        self.shared_features = features is not None and features.dim() == 2
        self.feature_width = 0 if features is None else features.shape[-1]
        self.features = self.heads * self.feature_width
        self.wide = _wide_registers(max(self.width, self.feature_width) * self.real.itemsize)
        numbers = torch.zeros(MAX_SCALARS, dtype=self.real)
        for index, name in enumerate(functor.scalars):
            numbers[index] = scalars[name]
        # Everything whose address is handed over, kept alive by this object.
        self.tensors = {
            role: self.dense(operands[name])
            for role, name in self.roles.items()
            if name in operands
        }
        self.tensors.setdefault("param", torch.zeros(self.keys, dtype=self.real))
        self.tensors["scalars"] = numbers
        self.numbers: dict[str, int] = {}
        if dropout is not None:
            self._draw(dropout, numbers)
        self.blocks = self._blocks()

    def _draw(self, dropout: Dropout, numbers: Tensor) -> None:
        numbers[MAX_SCALARS - 1] = dropout.scale
        self.tensors["dropout"] = numbers  # it has no address of its own
        self.numbers = {
            "dropout_seed": _signed(dropout.seed),
            "dropout_offset": dropout.offset & 0xFFFFFFFF,
            "dropout_threshold": dropout.threshold,
        }

    def _blocks(self) -> int:
        graph = self.graph
        work = (graph.num_edges + max(graph.num_src, graph.num_dst)) * self.outputs
        row = max(self.keys, self.outputs, self.features) * self.real.itemsize
        limit = max(16, PARTIAL_BYTES // (3 * row)) if row else 1
        return max(1, min(work // BLOCK_WORK, MAX_BLOCKS, limit))

    def variant(
        self,
        given: frozenset[str] = frozenset(),
        edge_id: torch.dtype | None = None,
        row_ids: bool = False,
    ) -> ModuleType:
        indptr = self.graph.by_dst.indptr
        variant = cpu_module.Variant(self.real, indptr.dtype, self.wide, given, edge_id, row_ids)
        return cpu_module.softmax_module(self.functor, variant)

    def dense(self, tensor: Tensor) -> Tensor:
        """The tensor in the computing type, contiguous."""
        return tensor.detach().to(self.real).contiguous()

    def empty(self, *shape: int) -> Tensor:
        return fresh(*shape, dtype=self.real)

    def slots(self, features: int) -> Tensor:
        """Two partial rows a block; one block has none."""
        return self.empty(2 * self.blocks if self.blocks > 1 else 0, features)

    def launch(self, name: str, csr: CSR, rows: int, **tensors: Tensor) -> None:
        """Run a kernel over all blocks, and the one that adds their partial rows."""
        held = self.tensors | tensors
        given = _USES[name] & set(held)
        if not given & {"edge_query", "out_edge", "grad_out_edge"}:
            given -= {"edge_features"}  # nothing reads them
        ids = csr.edge_ids if given & _BY_EDGE else None
        module = self.variant(given, None if ids is None else ids.dtype, csr.rows is not None)
        # Blocks write to their own cache lines.
        stride = -(-(BUFFERS * module.EDGES + 2 * self.heads) // 16) * 16
        held |= {
            "indptr": csr.indptr,
            "indices": csr.indices,
            "slot_row": torch.empty(2 * self.blocks, dtype=torch.int64),
            "buffers": self.empty(self.blocks, stride),
        }
        if ids is not None:
            held["edge_ids"] = ids
        if csr.rows is not None:
            held["row_ids"] = csr.rows
        values = {key: tensor.data_ptr() for key, tensor in held.items()}
        values |= self.numbers | self._sizes(rows) | {"buffer_stride": stride}
        order = module.Arguments._fields
        block = torch.tensor([values.get(field, 0) for field in order], dtype=torch.int64)
        self.run(module, name, self.blocks, block.data_ptr())
        merge = f"merge_{name}"
        if self.blocks > 1 and hasattr(module, merge):
            self.run(module, merge, 1, block.data_ptr())

    def _sizes(self, rows: int) -> dict[str, int]:
        shared = self.shared_features
        return {
            "rows": rows,
            "edges": self.graph.num_edges,
            "heads": self.heads,
            "key_width": self.key_width,
            "width": self.width,
            "blocks": self.blocks,
            "feature_width": self.feature_width,
            "feature_stride": self.feature_width if shared else self.features,
            "feature_head": 0 if shared else self.feature_width,
        }

    @staticmethod
    def run(module: ModuleType, name: str, blocks: int, arguments: int) -> None:
        kernel = cpu_module.kernel_address(module, name)
        count_launch("numba", name)
        cpu_threads.run(kernel, blocks, arguments)


def roles(module: ModuleType) -> dict[str, str]:
    """Which operand a kernel reads in which role."""
    named = {
        "key": module.KEY,
        "query": module.QUERY,
        "param": module.PARAM,
        "value": module.VALUE,
        "edge": module.EDGE_ROWS,
        "key_term": module.KEY_SCORE,
        "query_term": module.QUERY_SCORE,
        "edge_bias": module.EDGE_TERM,
        "edge_features": "edge_features",
        "edge_query": "edge_query",
    }
    return {role: name for role, name in named.items() if name is not None}


def _signed(number: int) -> int:
    """64 bits as a signed integer."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _wide_registers(row_bytes: int) -> int:
    """Registers of a wide tile: as many as the features fill, 4 at most."""
    filled = row_bytes // VECTOR_BYTES
    return 4 if filled >= 4 else 2 if filled >= 2 else 1
