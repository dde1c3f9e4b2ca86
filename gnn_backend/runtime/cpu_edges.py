"""Dot products of both ends of edges, and the weighted sums that are their gradients, on the CPU.

16-bit operands are widened to float32 at entry and results rounded once. Results are the same bit
for bit on every run and with every number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from gnn_backend.runtime.aggregation import Message
from gnn_backend.runtime.cpu_aggregation_call import PARTS, AggregateCall
from gnn_backend.runtime.cpu_call import Call
from gnn_backend.runtime.pages import fresh

if TYPE_CHECKING:
    from gnn_backend.graph import Graph
    from gnn_backend.ops.functors import Functor


def edge_dots(functor: Functor, graph: Graph, x_src: Tensor, x_dst: Tensor, out: Tensor) -> None:
    """Write dot products in the caller's edge order.

    Parameters
    ----------
    functor : Functor
        That of dot products: keys, values and queries.
    graph : Graph
    x_src : Tensor [num_src, H, D]
    x_dst : Tensor [num_dst, H, D]
    out : Tensor [E, H]
        Contiguous, in the operands' dtype.

    Raises
    ------
    InvalidArgument
        The operands' dtypes differ.
    KernelCompileError
        The kernel does not compile, or there is no folder to write it to.
    """
    operands = {"k_src": x_src, "v_src": x_src, "q_dst": x_dst}
    call = Call(functor, graph, operands, dict.fromkeys(functor.scalars, 1.0))
    if not out.numel():
        return
    found = out if out.dtype == call.real else call.empty(*out.shape)
    call.launch("feature_sums", graph.by_dst, graph.num_dst, attention=found)
    if found is not out:
        out.copy_(found)


def weighted_sums(graph: Graph, weights: Tensor, table: Tensor, *, reverse: bool) -> Tensor:
    """Sum of the far ends' rows times the weights of the edges, at each destination.

    Parameters
    ----------
    graph : Graph
    weights : Tensor [E, H]
        In the caller's edge order.
    table : Tensor [num_src, H, D], or [num_dst, H, D] if reversed
    reverse : bool
        Sum at each source.

    Returns
    -------
    Tensor [num_dst, H, D], or [num_src, H, D] if reversed
        In the dtype of ``table``.

    Raises
    ------
    KernelCompileError
        The kernel does not compile, or there is no folder to write it to.
    """
    call = AggregateCall(graph, Message("mul", table, weights))
    csr = graph.by_src if reverse else graph.by_dst
    rows = graph.num_src if reverse else graph.num_dst
    found = fresh(rows, *call.shape, dtype=call.real)
    if found.numel():
        blocks = call.blocks(rows, PARTS)
        call.launch("aggregate_forward", csr, rows, blocks, {"sum": found}, parts=PARTS)
    return found.to(table.dtype)
