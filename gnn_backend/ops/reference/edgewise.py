"""One result for each edge."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows
from gnn_backend.ops.reference.broadcast import binary

TARGETS = ("u", "v", "e")


def gsddmm(
    graph: Graph,
    op: str,
    lhs: Tensor | None,
    rhs: Tensor | None,
    lhs_target: str = "u",
    rhs_target: str = "v",
) -> Tensor:
    """Combine features of source (u), destination (v) or edge (e) on each edge.

    Parameters
    ----------
    graph : Graph
    op : {"add", "sub", "mul", "div", "dot", "copy_lhs", "copy_rhs"}
    lhs, rhs : Tensor [num_src, num_dst or E, *] or None
    lhs_target, rhs_target : {"u", "v", "e"}

    Returns
    -------
    Tensor [E, *]
        In the caller's edge order.

    Raises
    ------
    InvalidArgument
        An unknown operation or target, or shapes that do not fit.
    """
    left = None if op == "copy_rhs" else _rows(graph, lhs, lhs_target)
    right = None if op == "copy_lhs" else _rows(graph, rhs, rhs_target)
    return binary(op, left, right)


def _rows(graph: Graph, features: Tensor | None, target: str) -> Tensor | None:
    if features is None or target == "e":
        return features
    if target not in TARGETS:
        raise invalid("target", "unknown", repr(target), f"one of {', '.join(TARGETS)}")
    csr = graph.by_dst
    ends = csr.indices if target == "u" else expand_rows(csr.indptr, graph.num_edges)
    ends = ends.long()
    if csr.edge_ids is not None:
        ends = ends.new_empty(ends.shape).scatter_(0, csr.edge_ids.long(), ends)
    return features[ends]
