"""Random small programs, of all operators, and random typed graphs, for property tests.

Functions are kept smooth at the points where programs evaluate them: operators with a kink or a
pole get arguments that are shifted off it, so that a value that is 0 up to rounding cannot change
an outcome. Ties of max and min among equal edges remain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain, join, reads
from gnn_backend.ir.interpret import evaluate
from gnn_backend.ir.values import Program, Value

HEADS, DIM = 2, 3
#: Rows of inputs, by domain; weights of types are the last two.
ROWS = ((), (HEADS,), (DIM,), (HEADS, DIM), (1, DIM), (HEADS * DIM,))
WEIGHTS = ((DIM, DIM), (HEADS, DIM, DIM))
NODE_DOMAINS = (Domain.SRC, Domain.DST)


# --------------------------------------------------------------------------- graphs


@st.composite
def relations(draw: st.DrawFn, max_nodes: int = 5, max_edges: int = 12) -> Relations:
    """A typed multigraph: isolated nodes, types without edges, repeated edges, no edges at all."""
    num_src, num_dst = draw(st.integers(1, max_nodes)), draw(st.integers(1, max_nodes))
    edge_types, node_types = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    edge = st.tuples(*(st.integers(0, n - 1) for n in (num_src, num_dst, edge_types)))
    edges = draw(st.lists(edge, max_size=max_edges))
    kind = st.integers(0, node_types - 1)
    src_types = draw(st.lists(kind, min_size=num_src, max_size=num_src))
    dst_types = draw(st.lists(kind, min_size=num_dst, max_size=num_dst))
    ends = torch.tensor(edges, dtype=torch.int64).reshape(-1, 3).T.contiguous()
    return Relations(
        Graph.from_edge_index(ends[:2], num_src, num_dst), ends[2], edge_types,
        torch.tensor(src_types), torch.tensor(dst_types), node_types,
    )  # fmt: skip


def tensors(
    program: Program, graph: Relations, seed: int = 0, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Normal numbers for every input of a program, that want gradients."""
    g = torch.Generator().manual_seed(seed)
    found = {}
    for value in program.inputs:
        rows = () if value.domain is Domain.PARAM else (graph.num(value.domain),)
        x = torch.randn((*rows, *value.shape), generator=g, dtype=torch.float64)
        found[str(value.attrs["name"])] = x.to(dtype).requires_grad_()
    return found


def gradients(
    program: Program, graph: Relations, inputs: dict[str, Tensor], seed: int = 1
) -> tuple[list[Tensor], dict[str, Tensor], list[Tensor]]:
    """Outputs, cotangents by the names that autodiff gives them, and gradients of all inputs.

    Cotangents of infinite rows, as the maximum of nothing is one, are 0.
    """
    outputs = evaluate(program, graph, inputs)
    g = torch.Generator().manual_seed(seed)
    cotangents = {
        f"grad:{k}": torch.randn(y.shape, generator=g, dtype=torch.float64).to(y.dtype)
        * y.detach().isfinite()
        for k, y in enumerate(outputs)
    }
    wanted = list(inputs.values())
    flowing = [(y, c) for y, c in zip(outputs, cotangents.values(), strict=True) if y.requires_grad]
    if not flowing:
        return outputs, cotangents, [torch.zeros_like(x) for x in wanted]
    found = torch.autograd.grad(
        [y for y, _ in flowing], wanted, [c for _, c in flowing],
        allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    return outputs, cotangents, list(found)


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor], what: object = "") -> None:
    """Equal but for rounding, relative to the largest element of each tensor."""
    assert len(found) == len(expected)
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        finite = b.detach()[b.detach().isfinite()].abs()
        scale = max(1.0, finite.max().item() if finite.numel() else 0.0)
        tolerance = 1e-9 if b.dtype == torch.float64 else 2e-5
        torch.testing.assert_close(
            a.detach(), b.detach(), rtol=0, atol=tolerance * scale, equal_nan=True,
            msg=lambda text, k=k: f"{k}: {text}\n{what}",
        )  # fmt: skip


# --------------------------------------------------------------------------- programs


class Pool:
    """Values that further ones are made of; ``draw`` of a strategy."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self.ends: list[Value] = []  # may have infinite rows: outputs alone

    def input(self, domain: Domain, shape: ir.Shape) -> Value:
        made = ir.input_value(f"in{len(self.inputs)}", domain, shape)
        self.inputs.append(made)
        return made

    def any(self, able: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value that can be used, if there is one; recent ones more often."""
        found = [v for v in self.values if able(v)]
        if not found:
            return None
        recent = found[-3:]
        return self.draw(st.sampled_from(recent + found))

    def pair(self, able: Callable[[Value, Value], bool]) -> tuple[Value, Value] | None:
        """Two different values that can be used together, in one domain."""
        a = self.any(lambda v: True)
        if a is None:
            return None
        b = self.any(lambda v: v is not a and joins(a.domain, v.domain) and able(a, v))
        return None if b is None else ir.lift([a, b])  # type: ignore[return-value]


def joins(a: Domain, b: Domain) -> bool:
    """Whether one domain reads both."""
    try:
        join([a, b])
    except ValueError:
        return False
    return True


def number(value: float, like: Value) -> Value:
    """A constant in the domain of a value."""
    return ir.gather(ir.const(value), like.domain)


def shifted(x: Value) -> Value:
    """Off the points where an operator has a kink, also where x is 0."""
    return ir.binary("add", x, number(0.3719, x))


def positive(x: Value) -> Value:
    return ir.binary("add", ir.binary("mul", x, x), number(0.5, x))


def _unary(pool: Pool) -> Value | None:
    x = pool.any()
    if x is None:
        return None
    op = pool.draw(st.sampled_from(sorted(ir.UNARY)))
    if op == "exp":
        return ir.unary(op, ir.unary("tanh", x))
    if op in ("log", "sqrt", "reciprocal"):
        return ir.unary(op, positive(x))
    if op in ("relu", "leaky_relu", "slope"):
        attrs = dict.fromkeys(ir.UNARY[op], 0.2)
        return ir.unary(op, shifted(x), **attrs)
    return ir.unary(op, x)


def _fit(a: ir.Shape, b: ir.Shape) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(a, b, strict=False))


def _binary(pool: Pool) -> Value | None:
    found = pool.pair(lambda a, b: _fit(a.shape, b.shape))
    if found is None:
        return None
    a, b = found
    op = pool.draw(st.sampled_from(ir.BINARY))
    if op == "div":
        return ir.binary(op, a, positive(b))
    return ir.binary(op, a, b if op in ("add", "sub", "mul") else shifted(b))


def _dot(pool: Pool) -> Value | None:
    found = pool.pair(
        lambda a, b: (
            bool(a.shape)
            and len(a.shape) == len(b.shape)
            and a.shape[-1] == b.shape[-1]
            and _fit(a.shape, b.shape)
        )
    )
    return None if found is None else ir.dot(*found)


def _outer(pool: Pool) -> Value | None:
    found = pool.pair(
        lambda a, b: 0 < len(a.shape) == len(b.shape) <= 2 and _fit(a.shape[:-1], b.shape[:-1])
    )
    return None if found is None else ir.outer(*found)


def _is_weight(x: Value, w: Value) -> bool:
    able = w.domain in ir.TYPES and len(w.shape) in (2, 3) and bool(x.shape)
    heads = len(w.shape) == 3
    return (
        able
        and joins(x.domain, w.domain)
        and (not heads or (len(x.shape) == 2 and x.shape[0] == w.shape[0]))
        and x.shape[-1] in w.shape[-2:]
    )


def _linear(pool: Pool) -> Value | None:
    x = pool.any(lambda v: len(v.shape) in (1, 2))
    if x is None:
        return None
    w = pool.any(lambda v: v is not x and _is_weight(x, v))
    if w is None:
        domain = pool.draw(st.sampled_from([t for t in ir.TYPES if joins(x.domain, t)]))
        lead = (x.shape[0],) if len(x.shape) == 2 and pool.draw(st.booleans()) else ()
        w = pool.input(domain, (*lead, x.shape[-1], DIM))
    transposed = w.shape[-2] != x.shape[-1] or (
        w.shape[-1] == w.shape[-2] and pool.draw(st.booleans())
    )
    return ir.linear(ir.gather(x, join([x.domain, w.domain])), w, transposed=transposed)


def _weight_grad(pool: Pool) -> Value | None:
    found = pool.pair(
        lambda a, b: len(a.shape) in (1, 2) and bool(b.shape) and a.shape[:-1] == b.shape[:-1]
    )
    if found is None:
        return None
    types = [t for t in ir.TYPES if reads(found[0].domain, t)]
    heads = len(found[0].shape) == 2 and pool.draw(st.booleans())
    return ir.weight_grad(*found, pool.draw(st.sampled_from(types)), heads=heads)


def _matmul(pool: Pool) -> Value | None:
    found = pool.pair(
        lambda a, b: (
            len(a.shape) == len(b.shape) in (2, 3)
            and a.shape[-1] == b.shape[-2]
            and _fit(a.shape[:-2], b.shape[:-2])
            and {a.domain, b.domain} <= set(ir.TYPES)
        )
    )
    return None if found is None else ir.matmul(*found)


def _transpose(pool: Pool) -> Value | None:
    x = pool.any(lambda v: len(v.shape) >= 2)
    return None if x is None else ir.transpose(x)


def _row_sum(pool: Pool) -> Value | None:
    x = pool.any(lambda v: bool(v.shape))
    return None if x is None else ir.row_sum(x, pool.draw(st.integers(0, len(x.shape) - 1)))


def _concat(pool: Pool) -> Value | None:
    found = pool.pair(lambda a, b: bool(a.shape) and a.shape[:-1] == b.shape[:-1] and bool(b.shape))
    return None if found is None else ir.concat(*found)


def _slice(pool: Pool) -> Value | None:
    x = pool.any(lambda v: any(n > 1 for n in v.shape))
    if x is None:
        return None
    dim = pool.draw(st.sampled_from([d for d, n in enumerate(x.shape) if n > 1]))
    start = pool.draw(st.integers(0, x.shape[dim] - 1))
    return ir.part(x, start, pool.draw(st.integers(start + 1, x.shape[dim])), dim)


def _reshape(pool: Pool) -> Value | None:
    x = pool.any(lambda v: v.size == HEADS * DIM)
    shapes = [(HEADS, DIM), (HEADS * DIM,), (DIM, HEADS), (HEADS, DIM, 1)]
    return None if x is None else ir.reshape(x, pool.draw(st.sampled_from(shapes)))


def _gather(pool: Pool) -> Value | None:
    x = pool.any(lambda v: v.domain is not Domain.EDGE)
    if x is None:
        return None
    return ir.gather(x, pool.draw(st.sampled_from([d for d in Domain if reads(d, x.domain)])))


def _reduce(pool: Pool) -> Value | None:
    x = pool.any(lambda v: v.domain is not Domain.PARAM)
    if x is None:
        return None
    to = [d for d in Domain if reads(x.domain, d) and d is not x.domain]
    how = pool.draw(st.sampled_from(ir.REDUCTIONS))
    found = ir.reduce(how, x, pool.draw(st.sampled_from(to)))
    if how in ("sum", "mean"):
        return found
    pool.ends.append(found)
    return ir.gather(found, x.domain)  # rows that have an element


def _softmax(pool: Pool) -> Value | None:
    """A sum weighted by the softmax over a coarser domain."""
    found = pool.pair(lambda a, b: b.shape[: len(a.shape)] == a.shape)
    if found is None or found[0].domain is Domain.PARAM:
        return None
    logit, x = found
    fine = logit.domain
    to = pool.draw(st.sampled_from([d for d in Domain if reads(fine, d) and d is not fine]))
    total = ir.gather(ir.reduce("lse", logit, to), fine)
    weight = ir.unary("exp", ir.binary("sub", logit, total))
    return ir.reduce("sum", ir.binary("mul", weight, x), to)


def _degree(pool: Pool) -> Value | None:
    return ir.degree(pool.draw(st.sampled_from([d for d in Domain if reads(Domain.EDGE, d)])))


_MAKERS = (
    _unary, _unary, _binary, _binary, _binary, _dot, _dot, _outer, _linear, _linear, _linear,
    _weight_grad, _matmul, _transpose, _row_sum, _concat, _slice, _reshape, _gather, _gather,
    _reduce, _reduce, _reduce, _softmax, _softmax, _degree,
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn, max_steps: int = 10, max_size: int = 24) -> Program:
    """A random program of one to three outputs in any domains.

    Parameters
    ----------
    max_steps : int
        Operators, those that keep others off their kinks apart.
    max_size : int
        Numbers in a row, of any value.
    """
    pool = Pool(draw)
    wide = draw(st.sampled_from([shape for shape in ROWS if len(shape) > 0]))
    pool.values += [pool.input(d, wide) for d in (Domain.SRC, Domain.DST, Domain.EDGE_TYPE)]
    for domain in draw(st.lists(st.sampled_from(list(Domain)), min_size=2, max_size=4)):
        shapes = ROWS + WEIGHTS if domain in ir.TYPES else ROWS
        pool.values.append(pool.input(domain, draw(st.sampled_from(shapes))))
    steps = draw(st.lists(st.sampled_from(_MAKERS), min_size=4, max_size=max_steps))
    for maker in steps:
        made = maker(pool)
        if made is not None and made.size <= max_size:
            pool.values.append(made)
    more = st.sampled_from(pool.values[-4:] + pool.ends[-1:])
    outputs = [pool.values[-1], *draw(st.lists(more, max_size=2))]
    return Program(tuple(pool.inputs), tuple(dict.fromkeys(outputs)))
