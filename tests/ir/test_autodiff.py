"""Gradients as programs, against torch's own through the interpreter."""

from __future__ import annotations

import hypothesis
import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir import values as ir
from gnn_backend.ir.autodiff import RULES, differentiate
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.interpret import OPERATORS, evaluate
from gnn_backend.ir.values import Program, Value
from tests.ir.strategies import assert_close, gradients, programs, relations, tensors

EDGE, SRC, DST = Domain.EDGE, Domain.SRC, Domain.DST


def graph() -> Relations:
    ends = torch.tensor([[0, 0, 2, 1, 0, 2], [1, 1, 0, 1, 3, 0]])
    return Relations(Graph.from_edge_index(ends, 3, 5), torch.tensor([0, 0, 2, 3, 0, 2]), 4)


def value(name: str, domain: Domain, *shape: int) -> Value:
    return ir.input_value(name, domain, shape)


def made_of(*outputs: Value) -> Program:
    given = [v for v in Program((), outputs).values() if v.op == "input"]
    return Program(tuple(given), outputs)


def check(program: Program, on: Relations) -> Program:
    """Compare all gradients; the program of them."""
    names = [str(v.attrs["name"]) for v in program.inputs]
    inputs = tensors(program, on)
    _, cotangents, expected = gradients(program, on, inputs)
    backward = differentiate(program, names)
    found = evaluate(backward, on, {**inputs, **cotangents})
    assert_close(found, expected, f"{program}\n\n{backward}")
    return backward


@hypothesis.settings(max_examples=120, deadline=None)
@hypothesis.given(programs(), relations())
def test_random_programs(program: Program, on: Relations) -> None:
    check(program, on)


def test_a_weighted_softmax() -> None:
    logit, x = value("logit", EDGE, 2), value("x", SRC, 2, 3)
    total = ir.gather(ir.reduce("lse", logit, DST), EDGE)
    weight = ir.unary("exp", ir.binary("sub", logit, total))
    backward = check(
        made_of(ir.reduce("sum", ir.binary("mul", weight, ir.gather(x, EDGE)), DST)), graph()
    )
    assert "row_sum" not in {v.op for v in backward.values()}  # a dot product instead


@pytest.mark.parametrize("op", sorted(ir.UNARY))
def test_unary(op: str) -> None:
    x = value("x", SRC, 3)
    x = ir.binary("mul", x, x) if op in ("log", "sqrt") else x
    check(made_of(ir.unary(op, x, **dict.fromkeys(ir.UNARY[op], 0.2))), graph())


@pytest.mark.parametrize("op", ir.BINARY)
@pytest.mark.parametrize("a, b", [((2,), (2, 3)), ((2, 3), ()), ((1, 3), (2, 1)), ((3,), (3,))])
def test_binary_and_its_broadcasting(op: str, a: ir.Shape, b: ir.Shape) -> None:
    check(made_of(ir.binary(op, value("a", SRC, *a), value("b", SRC, *b))), graph())


@pytest.mark.parametrize("op", ["dot", "outer"])
@pytest.mark.parametrize("a, b", [((3,), (3,)), ((2, 3), (1, 3)), ((1, 1, 3), (2, 4, 3))])
def test_dot_and_outer(op: str, a: ir.Shape, b: ir.Shape) -> None:
    check(made_of(getattr(ir, op)(value("a", SRC, *a), value("b", SRC, *b))), graph())


@pytest.mark.parametrize("how", ir.REDUCTIONS)
@pytest.mark.parametrize("fine, coarse", [
    (EDGE, DST), (EDGE, Domain.SRC_PAIR), (Domain.DST_PAIR, DST), (SRC, Domain.PARAM),
])  # fmt: skip
def test_reductions(how: str, fine: Domain, coarse: Domain) -> None:
    check(made_of(ir.reduce(how, value("x", fine, 2), coarse)), graph())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape, weight", [((3,), (3, 2)), ((4, 3), (3, 2)), ((4, 3), (4, 3, 2))])
@pytest.mark.parametrize("types", [Domain.EDGE_TYPE, Domain.PARAM])
def test_linear(shape: ir.Shape, weight: ir.Shape, types: Domain, transposed: bool) -> None:
    given = (*weight[:-2], *weight[:-3:-1]) if transposed else weight
    x = ir.linear(value("x", EDGE, *shape), value("w", types, *given), transposed=transposed)
    check(made_of(x), graph())


def test_slices_that_do_not_overlap_share_one_row() -> None:
    x = value("x", SRC, 2, 6)
    first, second = ir.part(x, 0, 3), ir.part(x, 3, 6)
    backward = check(made_of(ir.binary("mul", first, second)), graph())
    assert "const" not in {v.op for v in backward.values()}
    overlapping = ir.binary("mul", ir.part(x, 0, 4), ir.part(x, 2, 6))
    check(made_of(overlapping, ir.part(x, 1, 2, dim=0), ir.part(x, 5, 6)), graph())


def test_all_uses_add_up_and_what_flows_nowhere_is_zero() -> None:
    x, y, unused = value("x", SRC, 2), value("y", SRC, 2), value("z", EDGE, 3)
    both = ir.binary("add", ir.binary("mul", x, x), x)
    program = Program((x, y, unused), (both, ir.unary("neg", both), x))
    backward = check(program, graph())
    assert [v.attrs["name"] for v in backward.inputs] == ["x", "y", "z"] + [
        f"grad:{k}" for k in range(3)
    ]
    assert backward.outputs[2].shape == (3,) and backward.outputs[2].domain is EDGE


def test_ties_share_the_gradient() -> None:
    x, y = value("x", EDGE), value("y", EDGE)
    program = made_of(
        ir.reduce("max", x, DST), ir.reduce("min", x, DST), ir.binary("maximum", x, y),
        ir.binary("minimum", x, y), ir.unary("relu", x), ir.unary("leaky_relu", x, slope=0.1),
    )  # fmt: skip
    given = {"x": torch.tensor([3.0, 3, 1, 0, 2, 1]), "y": torch.tensor([3.0, 1, 2, 0, 2, 1])}
    inputs = {k: v.double().requires_grad_() for k, v in given.items()}
    _, cotangents, expected = gradients(program, graph(), inputs)
    found = evaluate(differentiate(program, ["x", "y"]), graph(), {**inputs, **cotangents})
    assert_close(found, expected)


def test_only_what_is_asked_for_is_made() -> None:
    x, w = value("x", EDGE, 3), value("w", Domain.PARAM, 3, 2)
    backward = differentiate(made_of(ir.linear(x, w)), ["w"])
    assert [v.op for v in backward.values()].count("linear") == 0


def test_unknown_names_are_an_error() -> None:
    with pytest.raises(InvalidArgument, match="wrt: no input"):
        differentiate(made_of(value("x", EDGE)), ["y"])


def test_every_operator_has_a_rule() -> None:
    assert set(RULES) == set(OPERATORS) - {"slice"}
