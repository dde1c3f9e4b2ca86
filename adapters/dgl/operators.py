"""DGL's sparse operators on resident graphs.

Each function here takes the place of the function of the same name in ``dgl._sparse_ops`` (or of
``edge_softmax`` in DGL's PyTorch backend), gets the stock function first, and keeps its contract.
On a CPU graph the stock function runs; on a resident one, an operator over
:class:`gnn_backend.graph.Graph` out of :data:`gnn_backend.adapters.dgl.kernels.OPERATORS`. DGL's
autograd functions call these again for gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.dgl.autocast import without_autocast
from gnn_backend.adapters.dgl.kernels import OPERATORS
from gnn_backend.adapters.dgl.pending import settled, values_of
from gnn_backend.adapters.dgl.residence import boundary
from gnn_backend.adapters.dgl.residence.support import is_resident
from gnn_backend.graph.build import expand_rows
from gnn_backend.ops import csr

TARGETS = {0: "u", 1: "e", 2: "v", "src": "u", "edge": "e", "dst": "v"}


def relation_of(index: Any) -> Any:
    """The relation of a resident index with one edge type, or None for an index of DGL's own."""
    if type(index) is not boundary._kinds.get("index"):
        return None
    if len(index.relations) != 1:
        raise _error(f"expected a graph with one edge type, got {len(index.relations)}")
    return index.relations[0]


def run(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call an operator out of the table, and count it as answered on the device."""
    boundary.counts[name] += 1
    return OPERATORS[name](*args, **kwargs)


def _error(message: str) -> Exception:
    from dgl.base import DGLError

    return DGLError(message)


# ---------------------------------------------------------------------- checks


def check_operands(
    index: Any, form: str, op: str, *operands: tuple[str, Tensor | None, int]
) -> None:
    """Raise DGLError for operands that a kernel could not read; ``(name, tensor, rows)`` each."""
    if form not in index.allowed and "coo" not in index.allowed:
        raise _error(f"the graph is restricted to {', '.join(index.allowed)}; allow 'coo' or "
                     f"{form!r} in g.formats()")  # fmt: skip
    given = [(name, tensor, rows) for name, tensor, rows in operands if tensor is not None]
    for name, tensor, rows in given:
        if tensor.device != index.device:
            raise _error(f"{name} features are on {tensor.device}, the graph is on {index.device}; "
                         "move one to the other")  # fmt: skip
        if tensor.shape[0] != rows:
            raise _error(f"{name} features have {tensor.shape[0]} rows, expected {rows}")
        if not tensor.is_floating_point():
            raise _error(f"{name} features are of {tensor.dtype}, expected a floating-point type")
    if len(given) == 2:
        lhs, rhs = given[0][1], given[1][1]
        if lhs.dtype != rhs.dtype:
            raise _error(f"the features' data types {lhs.dtype} and {rhs.dtype} differ; convert "
                         "them to the same type")  # fmt: skip
        if lhs.shape[1:] != rhs.shape[1:]:
            from dgl._sparse_ops import infer_broadcast_shape

            infer_broadcast_shape(op, tuple(lhs.shape[1:]) or (1,), tuple(rhs.shape[1:]) or (1,))


# ---------------------------------------------------------------------- messages to nodes


def gspmm(
    stock: Any, gidx: Any, op: str, reduce_op: str, u: Tensor | None, e: Tensor | None
) -> Any:
    """``_gspmm``: (out, (arg_u, arg_e))."""
    relation = relation_of(gidx)
    if relation is None:
        return stock(gidx, op, reduce_op, u, e)
    u = None if op == "copy_rhs" else u
    e = None if op == "copy_lhs" else e
    check_operands(
        gidx, "csc", op, ("source", u, relation.num_src), ("edge", e, relation.num_edges)
    )
    out, arg_u, arg_e = run("gspmm", relation.graph, op, reduce_op, u, e)
    dtype = relation.dtype
    arg_u = None if arg_u is None else arg_u.to(dtype)
    arg_e = None if arg_e is None else arg_e.to(dtype)
    return out, (arg_u, arg_e)


def gspmm_hetero(
    stock: Any, gidx: Any, op: str, reduce_op: str, u_len: int, u_and_e_tuple: Any
) -> Any:
    """``_gspmm_hetero``: results of each node type, and for max and min who won."""
    if type(gidx) is not boundary._kinds.get("index"):
        return stock(gidx, op, reduce_op, u_len, u_and_e_tuple)
    sources, edges = u_and_e_tuple[:u_len], u_and_e_tuple[u_len:]
    found: list[Any] = [None] * gidx.num_types
    for etype, (src, dst) in enumerate(gidx.ends):
        u = None if op == "copy_rhs" else sources[src]
        e = None if op == "copy_lhs" else edges[etype]
        unit = gidx.get_relation_graph(etype)
        out, (arg_u, arg_e) = gspmm(stock, unit, op, reduce_op, u, e)
        new = (out, arg_u, arg_e, *_names(out, src, etype, gidx.idtype, arg_u, arg_e))
        if found[dst] is None:
            found[dst] = new
        elif reduce_op == "sum":
            found[dst] = (found[dst][0] + out, None, None, None, None)
        else:
            found[dst] = _better(reduce_op, found[dst], new)
    none = (torch.tensor([], device=gidx.device), None, None, None, None)
    outs, arg_u, arg_e, ntypes, etypes = zip(*(f or none for f in found), strict=True)
    return tuple(outs), (list(arg_u), list(arg_e), list(ntypes), list(etypes))


def _names(
    out: Tensor, ntype: int, etype: int, dtype: torch.dtype, arg_u: Any, arg_e: Any
) -> tuple[Tensor | None, Tensor | None]:
    """The node type and the edge type that every winner of one relation belongs to."""
    of = {"size": out.shape, "dtype": dtype, "device": out.device}
    return (
        None if arg_u is None else torch.full(fill_value=ntype, **of),  # type: ignore[call-overload]
        None if arg_e is None else torch.full(fill_value=etype, **of),  # type: ignore[call-overload]
    )


def _better(reduce_op: str, old: Any, new: Any) -> Any:
    """Whichever of two results is larger (smaller), element by element; the first of equal ones."""
    wins = new[0] > old[0] if reduce_op == "max" else new[0] < old[0]
    wins |= new[0].isnan()
    return tuple(
        None if a is None else torch.where(wins, b, a) for a, b in zip(old, new, strict=True)
    )


def update_grad_minmax_hetero(
    stock: Any, gidx: Any, op: str, list_x: Any, list_idx: Any, list_idx_etype: Any, list_dX: Any
) -> Any:
    """``_update_grad_minmax_hetero``: gradients handed to the winners; ``gidx`` is reversed."""
    if type(gidx) is not boundary._kinds.get("index") or op not in ("copy_lhs", "copy_rhs"):
        return stock(gidx, op, list_x, list_idx, list_idx_etype, list_dX)
    out: list[Tensor | None] = [None] * len(list_dX)
    handed = set()
    for etype, (dst, src) in enumerate(gidx.ends):  # reversed: from destination to source
        to = src if op == "copy_lhs" else etype
        x = list_x[dst]
        if out[to] is None:
            out[to] = torch.zeros((len(list_dX[to]), *x.shape[1:]), dtype=x.dtype, device=x.device)
        if (dst, to) not in handed:
            handed.add((dst, to))
            mine = list_idx_etype[dst] == to  # an index of another type may lie beyond this one
            rows = torch.where(mine, list_idx[dst], 0).long()
            out[to].scatter_add_(0, rows, torch.where(mine, x, 0))  # type: ignore[union-attr]
    return tuple(out)


# ---------------------------------------------------------------------- results on edges


def rows_at(relation: Any, target: str) -> int:
    """Rows of a table of sources (u), destinations (v) or edges (e) of a relation."""
    return {"u": relation.num_src, "v": relation.num_dst, "e": relation.num_edges}[target]


def gsddmm(
    stock: Any, gidx: Any, op: str, lhs: Tensor | None, rhs: Tensor | None,
    lhs_target: Any = "u", rhs_target: Any = "v",
) -> Tensor:  # fmt: skip
    """``_gsddmm``: a result [E, *]."""
    relation = relation_of(gidx)
    if relation is None:
        return stock(gidx, op, lhs, rhs, lhs_target, rhs_target)
    lhs_target, rhs_target = (TARGETS.get(t, t) for t in (lhs_target, rhs_target))
    lhs = None if op == "copy_rhs" else lhs
    rhs = None if op == "copy_lhs" else rhs
    check_operands(
        gidx, "csr", op,
        ("left-hand", lhs, rows_at(relation, lhs_target)),
        ("right-hand", rhs, rows_at(relation, rhs_target)),
    )  # fmt: skip
    return run("gsddmm", relation.graph, op, lhs, rhs, lhs_target, rhs_target)


def gsddmm_hetero(
    stock: Any, gidx: Any, op: str, lhs_len: int, lhs_target: Any = "u", rhs_target: Any = "v",
    lhs_and_rhs_tuple: Any = None,
) -> Any:  # fmt: skip
    """``_gsddmm_hetero``: a result for each edge type."""
    if type(gidx) is not boundary._kinds.get("index"):
        return stock(gidx, op, lhs_len, lhs_target, rhs_target, lhs_and_rhs_tuple)
    left, right = lhs_and_rhs_tuple[:lhs_len], lhs_and_rhs_tuple[lhs_len:]
    lhs_target, rhs_target = (TARGETS.get(t, t) for t in (lhs_target, rhs_target))
    out = []
    for etype, (src, dst) in enumerate(gidx.ends):
        of = {"u": src, "v": dst, "e": etype}
        lhs = None if op == "copy_rhs" else left[of[lhs_target]]
        rhs = None if op == "copy_lhs" else right[of[rhs_target]]
        if lhs is None and rhs is None:
            out.append(torch.tensor([], device=gidx.device))
            continue
        unit = gidx.get_relation_graph(etype)
        out.append(gsddmm(stock, unit, op, lhs, rhs, lhs_target, rhs_target))
    return tuple(out)


# ---------------------------------------------------------------------- edge softmax


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, index: Any, logits: Tensor, norm_by: str) -> Tensor:
        out = run("edge_softmax", index.relations[0].graph, logits, norm_by)
        ctx.index, ctx.norm_by = index, norm_by
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        index, norm_by = ctx.index, ctx.norm_by
        if not torch.is_grad_enabled():
            graph = index.relations[0].graph
            return None, run("edge_softmax_backward", graph, out, grad, norm_by), None
        # A gradient of this gradient is wanted: DGL's operators have one.
        from dgl import backend

        index = index if norm_by == "dst" else index.reverse()
        product = out * grad
        total = backend.gspmm(index, "copy_rhs", "sum", None, product)
        return None, product - backend.gsddmm(index, "mul", out, total, "e", "v"), None


def edge_softmax(
    stock: Any, gidx: Any, logits: Tensor, eids: Any = "__ALL__", norm_by: str = "dst"
) -> Tensor:
    """``edge_softmax`` of DGL's PyTorch backend."""
    logits = settled(logits)
    relation = relation_of(gidx)
    if relation is None:
        return stock(gidx, logits, eids, norm_by)
    from dgl.base import is_all

    if not is_all(eids):
        gidx = gidx.edge_subgraph([eids], True).graph
        relation = gidx.relations[0]
    check_operands(gidx, "csc", "copy_rhs", ("edge", logits, relation.num_edges))
    with without_autocast(logits.device) as cast:
        return _EdgeSoftmax.apply(gidx, cast(logits), norm_by)


def edge_softmax_forward(stock: Any, gidx: Any, e: Tensor, op: str) -> Tensor:
    """``_edge_softmax_forward``, which DGL calls for CPU tensors."""
    relation = relation_of(gidx)
    if relation is None:
        return stock(gidx, e, op)
    return run("edge_softmax", relation.graph, e, "dst")


def edge_softmax_backward(stock: Any, gidx: Any, out: Tensor, sds: Tensor) -> Tensor:
    """``_edge_softmax_backward``: ``sds`` is the product of the result and its gradient."""
    relation = relation_of(gidx)
    if relation is None:
        return stock(gidx, out, sds)
    graph = relation.graph
    total = run("gspmm", graph, "copy_rhs", "sum", None, sds)[0]
    return sds - run("gsddmm", graph, "mul", out, total, "e", "v")


# ---------------------------------------------------------------------- segments and products


def segment_reduce(stock: Any, op: str, feat: Tensor, offsets: Tensor) -> Any:
    """``_segment_reduce``: (out, arg)."""
    feat = values_of(feat)
    if not is_resident(feat):
        return stock(op, feat, offsets)
    return run("segment_reduce", op, feat, offsets.to(feat.device))


def bwd_segment_cmp(stock: Any, feat: Tensor, arg: Tensor, m: int) -> Tensor:
    """``_bwd_segment_cmp``."""
    if not is_resident(feat):
        return stock(feat, arg, m)
    return run("segment_reduce_backward", feat, arg, int(m))


def scatter_add(stock: Any, x: Tensor, idx: Tensor, m: int) -> Tensor:
    """``_scatter_add``."""
    if not is_resident(x):
        return stock(x, idx, m)
    if idx.numel():
        low, high = torch.stack(torch.aminmax(idx)).tolist()
        if low < 0 or high >= m:
            raise _error(f"expected rows in the range [0, {m}), got {low} to {high}")
    return run("scatter_add", x, idx, int(m))


def segment_mm(
    stock: Any, A: Tensor, B: Tensor, out: Tensor, seglen_A: Tensor, b_trans: bool = False
) -> Tensor:
    """``_segment_mm``; fills ``out``."""
    if not is_resident(A):
        return stock(A, B, out, seglen_A, b_trans)
    return out.copy_(run("segment_mm", A, B, seglen_A, transposed=b_trans))


def segment_mm_backward_B(stock: Any, A: Tensor, dC: Tensor, dB: Tensor, seglen: Tensor) -> Tensor:
    """``_segment_mm_backward_B``; fills ``dB``."""
    if not is_resident(A):
        return stock(A, dC, dB, seglen)
    return dB.copy_(run("segment_mm_backward_weight", A, dC, seglen))


def gather_mm(
    stock: Any, A: Tensor, B: Tensor, out: Tensor, idx_a: Any = None, idx_b: Any = None
) -> Tensor:
    """``_gather_mm``; fills ``out``."""
    if not is_resident(A):
        return stock(A, B, out, idx_a, idx_b)
    return out.copy_(run("gather_mm", A, B, idx_a, idx_b))


def gather_mm_scatter(
    stock: Any, A: Tensor, B: Tensor, out: Tensor,
    idx_a: Any = None, idx_b: Any = None, idx_c: Any = None,
) -> Tensor:  # fmt: skip
    """``_gather_mm_scatter``; adds to ``out``."""
    if not is_resident(A):
        return stock(A, B, out, idx_a, idx_b, idx_c)
    return out.add_(run("gather_mm_scatter", A, B, len(out), idx_a, idx_b, idx_c))


# ---------------------------------------------------------------------- sparse matrices


def _weights(relation: Any, weights: Tensor) -> Tensor:
    if weights.shape != (relation.num_edges,):
        raise _error(f"expected edge weights of shape ({relation.num_edges},), got "
                     f"{tuple(weights.shape)}")  # fmt: skip
    return weights


def _as_index(matrix: csr.SparseMatrix, like: Any, one_type: bool) -> Any:
    """(index, weights) of a matrix; ids of the type of the relation ``like``."""
    from gnn_backend.adapters.dgl.residence.index import ResidentIndex
    from gnn_backend.adapters.dgl.residence.mirror import Relation

    src = expand_rows(matrix.indptr, matrix.indices.numel()).to(like.dtype)
    dst = matrix.indices.to(like.dtype)
    relation = Relation.from_ends(src, dst, matrix.num_rows, matrix.num_cols, one_type)
    return ResidentIndex.of_relation(relation), matrix.weights


def csrmm(stock: Any, A: Any, A_weights: Tensor, B: Any, B_weights: Tensor, num_vtypes: int) -> Any:
    """``_csrmm``: (index, weights) of the product."""
    a, b = relation_of(A), relation_of(B)
    if a is None or b is None:
        return stock(A, A_weights, B, B_weights, num_vtypes)
    if a.num_dst != b.num_src:
        raise _error(f"expected B to have {a.num_dst} source nodes, got {b.num_src}")
    boundary.counts["csrmm"] += 1
    found = csr.csrmm(a.graph, _weights(a, A_weights), b.graph, _weights(b, B_weights))
    return _as_index(found, a, num_vtypes == 1)


def csrsum(stock: Any, As: Any, A_weights: Any) -> Any:
    """``_csrsum``: (index, weights) of the sum."""
    relations = [relation_of(A) for A in As]
    if any(relation is None for relation in relations):
        return stock(As, A_weights)
    first = relations[0]
    shape = (first.num_src, first.num_dst)
    if any((r.num_src, r.num_dst) != shape for r in relations):
        raise _error(f"expected all graphs to have {shape} nodes")
    boundary.counts["csrsum"] += 1
    weights = [_weights(r, w) for r, w in zip(relations, A_weights, strict=True)]
    return _as_index(csr.csrsum([r.graph for r in relations], weights), first, first.same_type)


def csrmask(stock: Any, A: Any, A_weights: Tensor, B: Any) -> Tensor:
    """``_csrmask``: weights of A at the edges of B."""
    a, b = relation_of(A), relation_of(B)
    if a is None or b is None:
        return stock(A, A_weights, B)
    boundary.counts["csrmask"] += 1
    return csr.csrmask(a.graph, _weights(a, A_weights), b.graph)
