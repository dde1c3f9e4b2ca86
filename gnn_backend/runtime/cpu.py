"""The CPU engine: softmax-weighted traversals in Numba, forward and two-pass backward.

Nothing edge-wise is stored. 16-bit operands are widened to float32 at entry and results are
rounded once; float32 and float64 are computed as they are. Results are the same bit for bit on
every run and with every number of threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.profile import count_launch
from gnn_backend.runtime import cpu_module, cpu_threads

if TYPE_CHECKING:
    from gnn_backend.graph import Graph
    from gnn_backend.ops.functors import Functor

BLOCK_WORK = 1 << 17  # features (edges x heads x width) a block should at least hold
MAX_BLOCKS = 256
PARTIAL_BYTES = 4 << 20  # all partial rows together


class _Call:
    """Operands of one call as flat arrays, in the order that the kernels take them."""

    def __init__(
        self,
        functor: Functor,
        graph: Graph,
        operands: Mapping[str, Tensor],
        scalars: Mapping[str, float],
    ) -> None:
        self.graph = graph
        self.parallel = cpu_threads.parallel_available()
        self.module = cpu_module.load(cpu_module.functor_path(functor.name), self.parallel)
        module = self.module
        value = operands[module.VALUE]
        self.dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
        for name, tensor in operands.items():
            if tensor.dtype != value.dtype:
                raise invalid(name, "mixed dtypes", tensor.dtype, f"{value.dtype}")
        self.heads, self.width = value.shape[1], value.shape[2]
        self.key_width = operands[module.KEY].shape[2]
        self.features = self.heads * self.key_width
        self.outputs = self.heads * self.width
        self.key = self.flat(operands[module.KEY])
        self.query = self.flat(operands[module.QUERY])
        self.value = self.key if module.VALUE_IS_KEY else self.flat(value)
        self.param = (
            self.flat(operands[module.PARAM])
            if module.PARAM
            else self.flat(torch.zeros(self.features, dtype=self.dtype))
        )
        number = self.key.dtype.type
        self.scalars = tuple(number(scalars[s]) for s in functor.scalars) or (number(0),)
        work = (graph.num_edges + max(graph.num_src, graph.num_dst)) * self.outputs
        limit = PARTIAL_BYTES // (3 * max(self.features, self.outputs, 1) * self.key.itemsize)
        self.blocks = max(1, min(work // BLOCK_WORK, MAX_BLOCKS, max(limit, 16)))

    def flat(self, tensor: Tensor) -> Any:
        """The tensor as a flat contiguous array of the computing type."""
        return tensor.detach().to(self.dtype).contiguous().view(-1).numpy()

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype)

    def scratch(self, count: int) -> Any:
        return np.empty(count, self.key.dtype)

    def slot_rows(self) -> Any:
        return np.empty(2 * self.blocks, np.int64)

    def size(self, rows: int) -> tuple[int, int, int, int]:
        return rows, self.heads, self.key_width, self.width

    def launch(self, name: str, *args: Any) -> None:
        """Run a kernel of the module on torch's number of threads."""
        kernel = getattr(self.module, name)
        args = (self.blocks, *args)
        cpu_module.ensure_compiled(kernel, args)
        count_launch("numba", name)
        with cpu_threads.torch_threads() if self.parallel else contextlib.nullcontext():
            kernel(*args)


def _csr(csr: Any) -> tuple[Any, Any]:
    return csr.indptr.numpy(), csr.indices.numpy()


def softmax_forward(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
) -> tuple[Tensor, Tensor]:
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

    Raises
    ------
    InvalidArgument
        The operands' dtypes differ.
    KernelCompileError
        The kernel does not compile, or the cache folder cannot be written.
    """
    call = _Call(functor, graph, operands, scalars)
    rows, dtype = graph.num_dst, operands[call.module.VALUE].dtype
    out, lse = call.empty(rows, call.heads, call.width), call.empty(rows, call.heads)
    if graph.num_edges == 0 or out.numel() == 0:
        return out.zero_().to(dtype), lse.fill_(-torch.inf)
    slots = 2 * call.blocks
    call.launch(
        "forward",
        *_csr(graph.by_dst),
        call.key,
        call.query,
        call.param,
        call.value,
        call.scalars,
        out.view(-1).numpy(),
        lse.view(-1).numpy(),
        (
            call.scratch(slots * call.outputs),
            call.scratch(slots * call.heads * 2),
            call.slot_rows(),
        ),
        call.scratch(call.blocks * (2 * call.module.EDGES + 2 * call.heads)),
        call.size(rows),
    )
    return out.to(dtype), lse


def softmax_backward(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """Gradients of ``softmax_forward`` towards the operands named in ``needs``.

    Parameters
    ----------
    functor, graph, operands, scalars
        As in the forward.
    out, lse : Tensor
        What the forward returned.
    grad_out : Tensor [num_dst, H, D]
    needs : frozenset of str
        Operand names; no work is done for the others.

    Returns
    -------
    dict of str to Tensor
        A gradient in the shape and dtype of each operand in ``needs``.
    """
    unknown = needs - set(operands)
    if unknown:
        raise invalid("needs", "unknown operands", sorted(unknown), f"names of {sorted(operands)}")
    call = _Call(functor, graph, operands, scalars)
    if graph.num_edges == 0 or out.numel() == 0 or not needs:
        return {name: torch.zeros_like(operands[name]) for name in sorted(needs)}
    grad = call.flat(grad_out)
    stats = call.scratch(graph.num_dst * call.heads * 2)
    call.launch("delta", call.flat(out), grad, call.flat(lse), stats, call.size(graph.num_dst))
    module = call.module
    gradients: dict[str, Tensor] = {}
    if needs & {module.QUERY, module.PARAM}:
        gradients |= _backward_dst(call, module, needs, grad, stats)
    if needs & {module.KEY, module.VALUE}:
        gradients |= _backward_src(call, module, needs, grad, stats)
    return {
        name: gradient.view(operands[name].shape).to(operands[name].dtype)
        for name, gradient in gradients.items()
    }


def _backward_dst(
    call: _Call, module: ModuleType, needs: frozenset[str], grad: Any, stats: Any
) -> dict[str, Tensor]:
    graph, gradients = call.graph, {}
    query = param = None
    if module.QUERY in needs:
        gradients[module.QUERY] = call.empty(graph.num_dst, call.features)
        query = gradients[module.QUERY].view(-1).numpy()
    if module.PARAM in needs:
        blocks = call.empty(call.blocks, call.features)
        gradients[module.PARAM] = blocks[0]
        param = blocks.view(-1).numpy()
    call.launch(
        "backward_dst",
        *_csr(graph.by_dst),
        call.key,
        call.query,
        call.param,
        call.value,
        call.scalars,
        grad,
        stats,
        query,
        param,
        (
            None if query is None else call.scratch(2 * call.blocks * call.features),
            call.slot_rows(),
        ),
        call.scratch(call.blocks * 2 * module.EDGES),
        call.size(graph.num_dst),
    )
    if param is not None:
        gradients[module.PARAM] = gradients[module.PARAM].clone()
    return gradients


def _backward_src(
    call: _Call, module: ModuleType, needs: frozenset[str], grad: Any, stats: Any
) -> dict[str, Tensor]:
    graph, gradients = call.graph, {}
    slots = 2 * call.blocks
    key = value = slot_key = slot_value = None
    if module.VALUE_IS_KEY:
        key = call.scratch(call.blocks * call.features)
    elif module.KEY in needs:
        gradients[module.KEY] = call.empty(graph.num_src, call.features)
        key = gradients[module.KEY].view(-1).numpy()
    if key is not None:
        slot_key = call.scratch(slots * call.features)
    if module.VALUE in needs:
        gradients[module.VALUE] = call.empty(graph.num_src, call.outputs)
        value = gradients[module.VALUE].view(-1).numpy()
        slot_value = call.scratch(slots * call.outputs)
    call.launch(
        "backward_src",
        *_csr(graph.by_src),
        call.key,
        call.query,
        call.param,
        call.value,
        call.scalars,
        grad,
        stats,
        key,
        value,
        (slot_key, slot_value, call.slot_rows()),
        call.scratch(call.blocks * 2 * module.EDGES),
        call.size(graph.num_src),
    )
    return gradients
