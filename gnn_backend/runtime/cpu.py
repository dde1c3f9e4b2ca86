"""The CPU engine: softmax-weighted traversals in Numba, forward and two-pass backward.

Nothing edge-wise is stored. 16-bit operands are widened to float32 at entry and results are
rounded once; float32 and float64 are computed as they are. Results are the same bit for bit on
every run and with every number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported, invalid
from gnn_backend.profile import count_launch
from gnn_backend.runtime import cpu_module, cpu_threads
from gnn_backend.runtime.cpu_vector import VECTOR_BYTES

if TYPE_CHECKING:
    from gnn_backend.graph import Graph
    from gnn_backend.graph.graph import CSR
    from gnn_backend.ops.functors import Functor
    from gnn_backend.runtime.launch import Cotangents, Saved
    from gnn_backend.runtime.random import Dropout

BLOCK_WORK = 1 << 17  # features (edges x heads x width) that a block should at least hold
MAX_BLOCKS = 256
PARTIAL_BYTES = 4 << 20  # of all partial rows together
MAX_SCALARS = 4


class _Call:
    """One call: its operands as the kernels read them, and the launches."""

    def __init__(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
        needs: frozenset[str] = frozenset(),
    ) -> None:
        self.graph = graph
        self.functor = cpu_module.functor_path(functor.name)
        first = operands[functor.operands[0]]
        self.real = torch.float64 if first.dtype == torch.float64 else torch.float32
        for name, tensor in operands.items():
            if tensor.dtype != first.dtype:
                raise invalid(name, "mixed dtypes", tensor.dtype, f"{first.dtype}")
        self.wide = _wide_registers(operands, self.real)
        self.module = module = self.variant()
        gradients = {name for name, role in _roles(module).items() if role in needs}
        if module.VALUE_IS_KEY and "grad_value" in gradients:
            gradients.add("grad_key")  # a scratch row a block
        self.gradients = frozenset(gradients)
        value, key = operands[module.VALUE], operands[module.KEY]
        self.heads, self.width = value.shape[1:]
        self.key_width = key.shape[2]
        self.features = self.heads * self.key_width
        self.outputs = self.heads * self.width
        numbers = torch.zeros(MAX_SCALARS, dtype=self.real)
        for index, name in enumerate(functor.scalars):
            numbers[index] = scalars[name]
        no_param = torch.zeros(self.features if module.PARAM is None else 0)
        # Everything whose address is handed over, kept alive by this object.
        self.tensors = {
            "key": self.dense(key),
            "query": self.dense(operands[module.QUERY]),
            "value": self.dense(value),
            "param": self.dense(operands.get(module.PARAM, no_param)),
            "scalars": numbers,
        }
        work = (graph.num_edges + max(graph.num_src, graph.num_dst)) * self.outputs
        row = max(self.features, self.outputs) * numbers.element_size()
        limit = max(16, PARTIAL_BYTES // (3 * row)) if row else 1
        self.blocks = max(1, min(work // BLOCK_WORK, MAX_BLOCKS, limit))

    def variant(self, gradients: frozenset[str] = frozenset()) -> ModuleType:
        indptr = self.graph.by_dst.indptr
        variant = cpu_module.Variant(self.real, indptr.dtype, self.wide, gradients)
        return cpu_module.softmax_module(self.functor, variant)

    def dense(self, tensor: Tensor) -> Tensor:
        """The tensor in the computing type, contiguous."""
        return tensor.detach().to(self.real).contiguous()

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.real)

    def slots(self, features: int) -> Tensor:
        """Two partial rows a block; one block has none."""
        return self.empty(2 * self.blocks if self.blocks > 1 else 0, features)

    def launch(self, name: str, csr: CSR, rows: int, **tensors: Tensor) -> None:
        """Run a kernel over all blocks, and the one that adds their partial rows."""
        module = self.variant(self.gradients & set(tensors))
        # Blocks write to their own cache lines.
        stride = -(-(4 * module.EDGES + 2 * self.heads) // 16) * 16
        held = {
            **self.tensors,
            **tensors,
            "indptr": csr.indptr,
            "indices": csr.indices,
            "slot_row": torch.empty(2 * self.blocks, dtype=torch.int64),
            "buffers": self.empty(self.blocks, stride),
        }
        numbers = {
            "rows": rows,
            "edges": self.graph.num_edges,
            "heads": self.heads,
            "key_width": self.key_width,
            "width": self.width,
            "blocks": self.blocks,
            "buffer_stride": stride,
        }
        values = {key: tensor.data_ptr() for key, tensor in held.items()} | numbers
        order = module.Arguments._fields
        block = torch.tensor([values.get(field, 0) for field in order], dtype=torch.int64)
        self.run(module, name, self.blocks, block.data_ptr())
        merge = f"merge_{name}"
        if self.blocks > 1 and hasattr(module, merge):
            self.run(module, merge, 1, block.data_ptr())

    @staticmethod
    def run(module: ModuleType, name: str, blocks: int, arguments: int) -> None:
        kernel = cpu_module.kernel_address(module, name)
        count_launch("numba", name)
        cpu_threads.run(kernel, blocks, arguments)


def _wide_registers(operands: Mapping[str, Tensor], real: torch.dtype) -> int:
    """Registers of a wide tile: as many as the features fill, 4 at most."""
    filled = max(t.shape[-1] for t in operands.values()) * real.itemsize // VECTOR_BYTES
    return 4 if filled >= 4 else 2 if filled >= 2 else 1


def _roles(module: ModuleType) -> dict[str, str]:
    return {
        "grad_query": module.QUERY,
        "grad_param": module.PARAM,
        "grad_key": module.VALUE if module.VALUE_IS_KEY else module.KEY,
        "grad_value": module.VALUE,
    }


def softmax_forward(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    dropout: Dropout | None = None,
    *,
    aggregate: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Softmax-weighted sum over the in-edges of every destination.

    Parameters
    ----------
    functor : Functor
        What an edge computes; its Numba source is ``numba_templates/<name>.py``.
    graph : Graph
    operands : mapping of str to Tensor
        Node tables [N, H, D] and parameters [H, D], of one floating dtype.
    scalars : mapping of str to float

    Returns
    -------
    out : Tensor [num_dst, H, D]
        In the operands' dtype; rows without in-edges are 0.
    lse : Tensor [num_dst, H]
        Log-sum-exp of each row's logits (-inf for rows without in-edges), float32, or float64
        for float64 operands.
    out_edge : None

    Raises
    ------
    InvalidArgument
        The operands' dtypes differ.
    KernelCompileError
        The kernel does not compile, or there is no folder to write it to.
    """
    _refuse(dropout, aggregate)
    call = _Call(functor, graph, operands, scalars)
    rows, dtype = graph.num_dst, operands[call.module.VALUE].dtype
    out, lse = call.empty(rows, call.heads, call.width), call.empty(rows, call.heads)
    if graph.num_edges == 0 or out.numel() == 0:
        return out.zero_().to(dtype), lse.fill_(-torch.inf), None
    call.launch(
        "forward",
        graph.by_dst,
        rows,
        out=out,
        lse=lse,
        slot_sums=call.slots(call.outputs),
        slot_more=call.slots(2 * call.heads),
    )
    return out.to(dtype), lse, None


def softmax_backward(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    saved: Saved,
    cotangents: Cotangents,
    needs: frozenset[str],
    dropout: Dropout | None = None,
) -> dict[str, Tensor]:
    """Gradients of ``softmax_forward`` towards the operands named in ``needs``.

    Parameters
    ----------
    functor, graph, operands, scalars
        As in the forward.
    saved : Saved
        What the forward returned.
    cotangents : Cotangents
    needs : frozenset of str
        Operand names; no work is done for the others.

    Returns
    -------
    dict of str to Tensor
        A gradient in the shape and dtype of each operand in ``needs``.

    Raises
    ------
    InvalidArgument
        An unknown name in ``needs``, or operands of different dtypes.
    KernelCompileError
        A kernel does not compile, or there is no folder to write it to.
    """
    _refuse(dropout, cotangents.attention is not None)
    out, lse, grad_out = saved.out, saved.lse, cotangents.out
    unknown = needs - set(operands)
    if unknown:
        raise invalid("needs", "unknown operands", sorted(unknown), f"names of {sorted(operands)}")
    call = _Call(functor, graph, operands, scalars, needs)
    if graph.num_edges == 0 or out.numel() == 0 or not needs:
        return {name: torch.zeros_like(operands[name]) for name in sorted(needs)}
    call.tensors |= {"out": call.dense(out), "lse": call.dense(lse)}
    call.tensors |= {"grad_out": call.dense(grad_out)}
    call.tensors |= {"stats": call.empty(graph.num_dst, call.heads, 2)}
    call.launch("stats", graph.by_dst, graph.num_dst)
    module = call.module
    gradients: dict[str, Tensor] = {}
    if needs & {module.QUERY, module.PARAM}:
        gradients |= _backward_dst(call, needs)
    if needs & {module.KEY, module.VALUE}:
        gradients |= _backward_src(call, needs)
    return {
        name: gradient.view(operands[name].shape).to(operands[name].dtype)
        for name, gradient in gradients.items()
    }


def softmax_weights(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    lse: Tensor,
    dropout: Dropout | None = None,
) -> Tensor:
    """Attention weights: not on this target.

    Raises
    ------
    Unsupported
        ``returns-attention``.
    """
    raise Unsupported("returns-attention", "there is no CPU kernel for the weights")


def _refuse(dropout: Dropout | None, more: bool) -> None:
    if dropout is not None:
        raise Unsupported("attention-dropout", "there is no CPU kernel with dropout")
    if more:
        raise Unsupported("returns-attention", "there is no CPU kernel for it")


def _backward_dst(call: _Call, needs: frozenset[str]) -> dict[str, Tensor]:
    module, rows = call.module, call.graph.num_dst
    targets: dict[str, Tensor] = {}
    if module.QUERY in needs:
        targets["grad_query"] = call.empty(rows, call.features)
        targets["slot_sums"] = call.slots(call.features)
    if module.PARAM in needs:
        targets["grad_param"] = call.empty(call.blocks, call.features)
    call.launch("backward_dst", call.graph.by_dst, rows, **targets)
    gradients = {}
    if module.QUERY in needs:
        gradients[module.QUERY] = targets["grad_query"]
    if module.PARAM in needs:
        gradients[module.PARAM] = targets["grad_param"][0].clone()
    return gradients


def _backward_src(call: _Call, needs: frozenset[str]) -> dict[str, Tensor]:
    module, rows = call.module, call.graph.num_src
    targets: dict[str, Tensor] = {}
    if module.VALUE in needs:
        targets["grad_value"] = call.empty(rows, call.outputs)
        targets["slot_sums"] = call.slots(call.outputs)
    if module.VALUE_IS_KEY:
        targets["grad_key"] = call.empty(call.blocks, call.features)
    elif module.KEY in needs:
        targets["grad_key"] = call.empty(rows, call.features)
        targets["slot_more"] = call.slots(call.features)
    call.launch("backward_src", call.graph.by_src, rows, **targets)
    gradients = {}
    if module.VALUE in needs:
        gradients[module.VALUE] = targets["grad_value"]
    if not module.VALUE_IS_KEY and module.KEY in needs:
        gradients[module.KEY] = targets["grad_key"]
    return gradients
