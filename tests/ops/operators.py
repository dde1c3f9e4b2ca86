"""Problems for the sparse operators and the float64 oracles to judge them by; without pytest."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from tests.ops.scenarios import GRAPHS
from tests.ops.support import edges_with_hubs

OPS = ("add", "sub", "mul", "div", "copy_lhs", "copy_rhs")
REDUCES = ("sum", "mean", "max", "min")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: Largest error relative to the largest reference value: half a unit of 16 bits, or rounding.
LIMIT = {
    torch.float64: 1e-14,
    torch.float32: 2e-6,
    torch.float16: 5e-4,
    torch.bfloat16: 4e-3,
}
#: Trailing shapes: every access (row, head, table), both vector widths, tails and several tiles.
SHAPES = [
    ((), ()),
    ((128,), (128,)),
    ((2, 64), (2, 1)),
    ((64,), ()),
    ((4, 1), (4, 8)),
    ((7,), (1,)),
    ((1,), (33,)),
    ((3, 1, 5), (1, 4, 1)),
    ((2, 3), (2, 3)),
    ((5, 1), (1, 8)),
    ((136,), (136,)),
    ((3, 100), (3, 1)),
    ((260,), (1,)),
    ((2, 8), (8,)),
]
#: Every pair of (shape, operator), dtypes and reductions in turn.
TABLE = [
    (op, REDUCES[(i + j) % 4], DTYPES[(i + 2 * j + i // 4) % 4], u, e)
    for i, (u, e) in enumerate(SHAPES)
    for j, op in enumerate(OPS)
]
#: Every (reduction, dtype) at the fast layouts, with the operators that have kernels of their own.
FAST = [
    (op, reduce, dtype, u, e)
    for reduce in REDUCES
    for dtype in DTYPES
    for op, u, e in (("copy_lhs", (128,), ()), ("mul", (2, 64), (2, 1)), ("copy_rhs", (), (8,)))
]
ALL_GRAPHS = {"hubs both ways": edges_with_hubs(), **GRAPHS}


def draw(rows: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Seeded values away from 0, with few distinct ones, so that there are ties."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 9, (rows, *shape), generator=generator).double() / 4
    sign = torch.randint(0, 2, (rows, *shape), generator=generator) * 2 - 1
    return (values * sign).to(dtype)


def padded(table: Tensor, rank: int) -> Tensor:
    """The table with ones before its trailing shape."""
    ones = (1,) * (rank - table.dim())
    return table.reshape(table.shape[0], *ones, *table.shape[1:])


def combine(op: str, left: Tensor | None, right: Tensor | None) -> Tensor:
    """``op`` of edge-wise rows in plain torch."""
    if op == "copy_lhs":
        assert left is not None
        return left
    if op == "copy_rhs":
        assert right is not None
        return right
    assert left is not None and right is not None
    rank = max(left.dim(), right.dim())
    a, b = padded(left, rank), padded(right, rank)
    if op == "dot":
        return (a * b).sum(-1, keepdim=True)
    return {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b}[op]


def messages(edges: Tensor, op: str, u: Tensor | None, e: Tensor | None) -> Tensor:
    """The message of each edge, float64 [E, *]."""
    left = None if u is None else u.double()[edges[0]]
    return combine(op, left, None if e is None else e.double())


def reduced(edges: Tensor, num_dst: int, reduce: str, message: Tensor) -> Tensor:
    """Messages reduced at destinations, float64; rows without edges as the operator has them."""
    rows = edges[1]
    out = message.new_zeros(num_dst, *message.shape[1:])
    if reduce in ("sum", "mean"):
        out.index_add_(0, rows, message)
        degree = torch.bincount(rows, minlength=num_dst).clamp(min=1)
        return out / degree.view(-1, *(1,) * (message.dim() - 1)) if reduce == "mean" else out
    index = rows.view(-1, *(1,) * (message.dim() - 1)).expand_as(message)
    out.fill_(-torch.inf if reduce == "max" else torch.inf)
    return out.scatter_reduce(0, index, message, "amax" if reduce == "max" else "amin")


def winners(edges: Tensor, num_dst: int, best: Tensor, message: Tensor, order: Tensor) -> Tensor:
    """The edge that is first in ``order`` with the best message of its row, else 0; int64."""
    index = edges[1].view(-1, *(1,) * (message.dim() - 1)).expand_as(message)
    count = message.shape[0]
    places = torch.empty_like(order)
    places[order] = torch.arange(count, device=message.device)
    places = places.view(-1, *(1,) * (message.dim() - 1)).expand_as(message)
    places = torch.where(message == best.gather(0, index), places, count)
    first = torch.full_like(best, count, dtype=torch.int64)
    first = first.scatter_reduce(0, index, places, "amin")
    return torch.cat([order, order.new_zeros(1)])[first]


def close(got: Tensor, want: Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    """Shape, dtype, infinities at the same places, the rest near beside the largest value."""
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, not {tuple(want.shape)}"
    assert got.dtype == dtype, f"dtype {got.dtype}"
    finite = want.isfinite()
    assert torch.equal(got[~finite].double(), want[~finite]), "infinities differ"
    if not finite.any():
        return
    error = (got.double() - want)[finite].abs().max().item()
    most = max(want[finite].abs().max().item(), 1e-30)
    assert error <= LIMIT[dtype] * factor * most, f"relative error {error / most:.2e}"


def check_gspmm(
    graph: Graph,
    edges: Tensor,
    op: str,
    reduce: str,
    u: Tensor | None,
    e: Tensor | None,
    *,
    reverse: bool = False,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Run the operator and compare everything with the oracle; return what it gave."""
    from gnn_backend.ops.spmm import gspmm

    given = (None if op == "copy_rhs" else u, None if op == "copy_lhs" else e)
    out, arg_u, arg_e = gspmm(graph, op, reduce, u, e, reverse=reverse)
    ends = edges.flip(0) if reverse else edges
    rows = graph.num_src if reverse else graph.num_dst
    message = messages(ends, op, *given)
    want = reduced(ends, rows, reduce, message)
    if graph.num_edges == 0:
        want = torch.zeros_like(want)
    dtype = next(t.dtype for t in given if t is not None)
    close(out, want, dtype, factor)
    expected = reduce in ("max", "min")
    assert (arg_u is not None) == (expected and op != "copy_rhs")
    assert (arg_e is not None) == (expected and op != "copy_lhs")
    if expected:
        # Of the messages as the kernel rounds them: float32 may have more ties than float64.
        wide = torch.promote_types(dtype, torch.float32)
        rounded = combine(op, None if given[0] is None else given[0].to(wide)[ends[0]],
                          None if given[1] is None else given[1].to(wide))  # fmt: skip
        best = reduced(ends, rows, reduce, rounded.double()).to(wide)
        # Rows of the reversed graph are in the order of destinations.
        order = edges[1].argsort(stable=True) if reverse else torch.arange(edges.shape[1])
        edge = winners(ends, rows, best, rounded, order.to(edges.device))
        if arg_e is not None:
            assert torch.equal(arg_e.long(), edge)
        if arg_u is not None and graph.num_edges:
            empty = best.isinf()
            assert torch.equal(arg_u.long(), torch.where(empty, 0, ends[0][edge]))
    return out, arg_u, arg_e


def rows_of_target(edges: Tensor, table: Tensor, target: str) -> Tensor:
    """An operand's row for each edge."""
    return table if target == "e" else table[edges["uv".index(target)]]


def check_gsddmm(
    graph: Graph,
    edges: Tensor,
    op: str,
    lhs: Tensor,
    rhs: Tensor,
    targets: tuple[str, str],
    factor: float = 1.0,
) -> Tensor:
    """Run the operator and compare it with the oracle; return what it gave."""
    from gnn_backend.ops.edgewise import gsddmm

    out = gsddmm(graph, op, lhs, rhs, *targets)
    scalars = op == "dot" and lhs.dim() == rhs.dim() == 1
    tables = [t.double().unsqueeze(-1) if scalars else t.double() for t in (lhs, rhs)]
    left, right = (
        rows_of_target(edges, t, target) for t, target in zip(tables, targets, strict=True)
    )
    want = combine(op, left, right)
    close(out, want.squeeze(-1) if scalars else want, lhs.dtype, factor)
    return out


def softmax_oracle(edges: Tensor, rows: int, logits: Tensor, by: int) -> Tensor:
    """Softmax over the edges that share ``edges[by]``, in the dtype of the logits."""
    index = edges[by].view(-1, *(1,) * (logits.dim() - 1)).expand_as(logits)
    top = logits.new_full((rows, *logits.shape[1:]), -torch.inf)
    top = top.scatter_reduce(0, index, logits.detach(), "amax")
    weights = (logits - top.gather(0, index)).exp()
    total = torch.zeros_like(top).scatter_add(0, index, weights)
    return weights / total.gather(0, index)


def check_edge_softmax(
    graph: Graph, edges: Tensor, logits: Tensor, grad: Tensor, norm_by: str, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Run both passes and compare them with torch's autograd in float64."""
    from gnn_backend.ops.edge_softmax import edge_softmax, edge_softmax_backward

    out = edge_softmax(graph, logits, norm_by)
    rows, by = (graph.num_dst, 1) if norm_by == "dst" else (graph.num_src, 0)
    leaf = logits.double().requires_grad_()
    want = softmax_oracle(edges, rows, leaf, by)
    close(out, want.detach(), logits.dtype, 2 * factor)
    # The gradient of the rounded output, as stock computes it.
    rounded, g = out.double(), grad.double()
    index = edges[by].view(-1, *(1,) * (logits.dim() - 1)).expand_as(logits)
    sums = rounded.new_zeros(rows, *logits.shape[1:]).scatter_add(0, index, rounded * g)
    expected = rounded * g - rounded * sums.gather(0, index)
    found = edge_softmax_backward(graph, out, grad, norm_by)
    close(found, expected, logits.dtype, 4 * factor)
    if logits.dtype == torch.float64:
        (exact,) = torch.autograd.grad(want, leaf, g)
        close(found, exact, logits.dtype, 8 * factor)
    return out, found
