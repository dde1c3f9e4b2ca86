"""The interpreter against the same thing written down row by row."""

from __future__ import annotations

import math

import hypothesis
import pytest
import torch
from torch import Tensor

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain, reads
from gnn_backend.ir.interpret import OPERATORS, apply, evaluate
from gnn_backend.ir.values import Program, Value
from tests.ir import strategies

READABLE = [(f, c) for f in Domain for c in Domain if reads(f, c) and f is not c]
NODE, TYPED = Domain.SRC, Domain.EDGE


def graph() -> Relations:
    """Repeated edges, a type without edges, nodes without."""
    ends = torch.tensor([[0, 0, 2, 1, 0, 2], [1, 1, 0, 1, 3, 0]])
    types = torch.tensor([0, 0, 2, 3, 0, 2])
    return Relations(
        Graph.from_edge_index(ends, 4, 5), types, 4, torch.tensor([1, 0, 1, 1]),
        torch.tensor([0, 2, 2, 0, 1]), 3,
    )  # fmt: skip


def rows(domain: Domain, *shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    count = () if domain is Domain.PARAM else (graph().num(domain),)
    return torch.randn((*count, *shape), generator=g, dtype=torch.float64)


def run(output: Value, **inputs: Tensor) -> Tensor:
    given = [v for v in Program((), (output,)).values() if v.op == "input"]
    return evaluate(Program(tuple(given), (output,)), graph(), inputs)[0]


def members(fine: Domain, coarse: Domain) -> list[list[int]]:
    """Rows of ``fine`` that belong to each row of ``coarse``."""
    index = graph().index(fine, coarse).tolist()
    return [[i for i, r in enumerate(index) if r == row] for row in range(graph().num(coarse))]


EXPECTED = {
    "sum": (0.0, sum),
    "mean": (0.0, lambda x: sum(x) / len(x)),
    "max": (-math.inf, max),
    "min": (math.inf, min),
    "lse": (-math.inf, lambda x: math.log(sum(map(math.exp, x)))),
}


@pytest.mark.parametrize("how", ir.REDUCTIONS)
def test_reductions_and_gathers_between_all_domains(how: str) -> None:
    empty, of = EXPECTED[how]
    for fine, coarse in READABLE:
        x = rows(fine, 2)
        found = run(ir.reduce(how, ir.input_value("x", fine, (2,)), coarse), x=x)
        belong = members(fine, coarse)
        for column in range(2):
            values = x[:, column].tolist()
            expected = [of([values[i] for i in own]) if own else empty for own in belong]
            got = found.reshape(-1, 2)[:, column].tolist()
            assert got == pytest.approx(expected), (fine, coarse)
        y = rows(coarse, 2, seed=1)
        read = run(ir.gather(ir.input_value("y", coarse, (2,)), fine), y=y).reshape(-1, 2)
        for row, own in enumerate(belong):
            for i in own:
                assert torch.equal(read[i], y.reshape(-1, 2)[row])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape, weight", [((3,), (3, 2)), ((4, 3), (3, 2)), ((4, 3), (4, 3, 2))])
def test_linear_takes_the_weight_of_the_type(
    shape: ir.Shape, weight: ir.Shape, transposed: bool
) -> None:
    for types in ir.TYPES:
        domains = [d for d in Domain if reads(d, types)]
        for domain in domains:
            given = (*weight[:-2], *weight[:-3:-1]) if transposed else weight
            x, w = rows(domain, *shape), rows(types, *given, seed=1)
            out = ir.linear(
                ir.input_value("x", domain, shape), ir.input_value("w", types, given),
                transposed=transposed,
            )  # fmt: skip
            found = run(out, x=x, w=w).reshape(-1, *out.shape)
            index = graph().index(domain, types)
            count = graph().num(domain)
            kinds = list(range(count)) if index is None else index.tolist()
            w = w.reshape(-1, *given)
            for row, kind in enumerate(kinds):
                own = w[kind].mT if transposed else w[kind]
                x_row = x.reshape(-1, *shape)[row]
                equation = "hi,hio->ho" if len(weight) == 3 else "...i,io->...o"
                expected = torch.einsum(equation, x_row, own)
                torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("heads", [False, True])
def test_weight_grad_is_the_gradient_of_linear(heads: bool) -> None:
    for types, domain in (
        (Domain.EDGE_TYPE, Domain.EDGE), (Domain.EDGE_TYPE, Domain.SRC_PAIR),
        (Domain.NODE_TYPE, Domain.SRC), (Domain.PARAM, Domain.DST),
    ):  # fmt: skip
        shape = (2, 3, 4) if heads else (3, 4)
        x, w = rows(domain, 2, 3), rows(types, *shape).requires_grad_()
        names = ir.input_value("x", domain, (2, 3)), ir.input_value("w", types, shape)
        y = run(ir.linear(*names), x=x, w=w)
        cotangent = torch.randn_like(y)
        (expected,) = torch.autograd.grad(y, w, cotangent)
        grad = ir.input_value("g", domain, (2, 4))
        found = run(ir.weight_grad(names[0], grad, types, heads=heads), x=x, g=cotangent)
        torch.testing.assert_close(found, expected)


def test_rows_broadcast_from_the_left() -> None:
    a, b = ir.input_value("a", NODE, (2,)), ir.input_value("b", NODE, (2, 3))
    x, y = rows(NODE, 2), rows(NODE, 2, 3)
    assert torch.equal(run(ir.binary("mul", a, b), a=x, b=y), x[:, :, None] * y)
    c = ir.input_value("c", NODE, (1, 3))
    z = rows(NODE, 1, 3)
    assert torch.equal(run(ir.binary("sub", c, b), c=z, b=y), z - y)
    assert torch.equal(run(ir.dot(c, b), c=z, b=y), (z * y).sum(-1))
    lifted = ir.binary("add", b, ir.gather(ir.const(2), NODE))
    assert torch.equal(run(lifted, b=y), y + 2)


def test_operators_on_a_row() -> None:
    x = ir.input_value("x", NODE, (2, 3))
    given = rows(NODE, 2, 3)
    assert torch.equal(run(ir.row_sum(x, 0), x=given), given.sum(1))
    assert torch.equal(run(ir.row_sum(x, -1), x=given), given.sum(2))
    assert torch.equal(run(ir.transpose(x), x=given), given.mT)
    assert torch.equal(run(ir.concat(x, x), x=given), torch.cat([given, given], 2))
    assert torch.equal(run(ir.part(x, 1, 2, 0), x=given), given[:, 1:2])
    assert torch.equal(run(ir.reshape(x, (3, 2)), x=given), given.reshape(-1, 3, 2))
    product = ir.matmul(x, ir.transpose(x))
    torch.testing.assert_close(run(product, x=given), given @ given.mT)
    first = ir.reshape(ir.part(x, 0, 1, 0), (3,))
    assert torch.equal(run(ir.outer(first, first), x=given),
                       given[:, 0, :, None] * given[:, 0, None, :])  # fmt: skip


@pytest.mark.parametrize("op", sorted(ir.UNARY))
def test_unary(op: str) -> None:
    attrs = dict.fromkeys(ir.UNARY[op], 0.3)
    given = rows(NODE, 5).abs() if op in ("log", "sqrt") else rows(NODE, 5)
    expected = {
        "leaky_relu": lambda x: torch.where(x > 0, x, 0.3 * x),
        "slope": lambda x: torch.where(x > 0, torch.ones_like(x), 0.3),
        "relu": lambda x: x.clamp(min=0),
    }.get(op) or getattr(torch, op)
    assert torch.equal(run(ir.unary(op, ir.input_value("x", NODE, (5,)), **attrs), x=given),
                       expected(given))  # fmt: skip


@pytest.mark.parametrize("op", ir.BINARY)
def test_binary(op: str) -> None:
    a, b = rows(NODE, 3), rows(NODE, 3, seed=1)
    b[:2] = a[:2]
    names = ir.input_value("a", NODE, (3,)), ir.input_value("b", NODE, (3,))
    expected = {"equal": lambda: (a == b).double(), "greater": lambda: (a > b).double()}
    own = expected.get(op, lambda: getattr(torch, op)(a, b))()
    assert torch.equal(run(ir.binary(op, *names), a=a, b=b), own)


def test_log_sum_exp_of_large_infinite_and_undefined_values() -> None:
    x = rows(TYPED).mul_(0) + torch.tensor([1e4, 1e4, -math.inf, 0, math.inf, -math.inf])
    out = ir.reduce("lse", ir.input_value("x", TYPED, ()), Domain.DST)
    found = run(out, x=x.double())
    assert found.tolist() == [-math.inf, pytest.approx(1e4 + math.log(2)), -math.inf, math.inf,
                              -math.inf]  # fmt: skip
    x[0] = math.nan
    assert run(out, x=x.double())[1].isnan()


def test_gradient_of_a_maximum_is_shared_among_ties() -> None:
    x = torch.tensor([3.0, 3, 1, 0, 2, 1], dtype=torch.float64, requires_grad=True)
    out = run(ir.reduce("max", ir.input_value("x", TYPED, ()), Domain.DST), x=x)
    (grad,) = torch.autograd.grad(out[[0, 1, 3]].sum(), x)
    assert grad.tolist() == [0.5, 0.5, 0.5, 0, 1, 0.5]


def test_sixteen_bits_are_summed_in_thirty_two() -> None:
    ends = torch.zeros(2, 1000, dtype=torch.int64)
    relations = Relations(Graph.from_edge_index(ends, 1, 1))
    x = ir.input_value("x", TYPED, ())
    program = Program((x,), (ir.reduce("sum", x, Domain.DST),))
    ones = torch.ones(1000, dtype=torch.bfloat16)
    (found,) = evaluate(program, relations, {"x": ones})
    assert found.dtype == torch.bfloat16 and found.item() == 1000


def test_degrees_and_constants() -> None:
    assert run(ir.degree(Domain.DST)).tolist() == [2, 3, 0, 1, 0]
    assert apply(ir.degree(Domain.SRC), [], graph()).tolist() == [3, 1, 2, 0]
    filled = apply(ir.const(2.5, (2, 3)), [], graph(), torch.float16)
    assert filled.shape == (1, 2, 3) and filled.dtype == torch.float16 and (filled == 2.5).all()


def test_parameters_have_no_row_dimension_outside() -> None:
    p = ir.input_value("p", Domain.PARAM, (2,))
    assert torch.equal(run(ir.unary("neg", p), p=torch.ones(2)), -torch.ones(2))


@pytest.mark.parametrize("given", [{}, {"x": torch.ones(3, 2)}, {"x": torch.ones(4)}])
def test_wrong_inputs_are_named(given: dict[str, Tensor]) -> None:
    with pytest.raises(InvalidArgument, match=r"^x: "):
        run(ir.unary("neg", ir.input_value("x", NODE, (2,))), **given)


def test_every_operator_is_in_the_table() -> None:
    assert set(ir.UNARY) | set(ir.BINARY) < set(OPERATORS)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(strategies.programs(), strategies.relations())
def test_random_programs_have_the_declared_shapes(program: Program, relations: Relations) -> None:
    outputs = evaluate(program, relations, strategies.tensors(program, relations))
    for value, out in zip(program.outputs, outputs, strict=True):
        count = () if value.domain is Domain.PARAM else (relations.num(value.domain),)
        assert out.shape == (*count, *value.shape), value
        assert out.dtype == torch.float64 and not out.isnan().any()
