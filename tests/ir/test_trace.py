"""What functions over symbolic tables become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnn_backend.errors import InvalidArgument
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.trace import Traced, trace
from gnn_backend.program import (
    concat,
    dot,
    exp,
    flat,
    heads,
    linear,
    maximum,
    outer,
    relu,
    reshape,
    softmax,
    split,
)

EDGE, DST = Domain.EDGE, Domain.DST
Function = Callable[..., Any]


def traced(function: Function, constants: dict[str, Any] | None = None, **shapes: Any) -> Traced:
    return trace(function, shapes, constants or {})


def result(function: Function, **shapes: Any) -> ir.Value:
    return traced(function, **shapes).program.outputs[0]


@pytest.mark.parametrize("read, name, domain, rows", [
    (lambda e, t: t[e.src], "t[edge.src]", Domain.SRC, EDGE),
    (lambda e, t: t[e.dst], "t[edge.dst]", DST, EDGE),
    (lambda e, t: t[e.node], "t[edge.dst]", DST, DST),
    (lambda e, t: t[e], "t[edge]", EDGE, EDGE),
    (lambda e, t: t[e.type], "t[edge.type]", Domain.EDGE_TYPE, Domain.EDGE_TYPE),
    (lambda e, t: t[e.src.type], "t[node.type]", Domain.NODE_TYPE, EDGE),
    (lambda e, t: t[e.dst.type], "t[node.type]", Domain.NODE_TYPE, EDGE),
    (lambda e, t: t[e.node.type], "t[node.type]", Domain.NODE_TYPE, DST),
    (lambda e, t: t, "t", Domain.PARAM, Domain.PARAM),
])  # fmt: skip
def test_how_a_table_is_read_gives_its_domain(
    read: Function, name: str, domain: Domain, rows: Domain
) -> None:
    found = traced(read, t=(5, 3))
    (given,) = found.program.inputs
    assert (given.attrs["name"], given.domain) == (name, domain)
    assert given.shape == ((5, 3) if domain is Domain.PARAM else (3,))
    assert found.program.outputs[0].domain is rows and found.single
    assert found.indexed == (set() if domain is Domain.PARAM else {"t"})


def test_node_types_are_read_by_the_node_that_is_named() -> None:
    by_src = result(lambda e, t: t[e.src.type], t=(2, 3))
    by_dst = result(lambda e, t: t[e.dst.type], t=(2, 3))
    assert by_src is not by_dst
    assert by_src.args[0] is ir.gather(ir.input_value("t[node.type]", Domain.NODE_TYPE, (3,)),
                                       Domain.SRC)  # fmt: skip
    both = traced(lambda e, t: t[e.src.type] * t[e.dst.type] + t[e.node.type], t=(2, 3))
    assert len(both.program.inputs) == 1 and both.program.outputs[0].domain is EDGE


def test_a_table_of_both_ends_is_two_inputs() -> None:
    found = traced(lambda e, w, x: dot(x[e.src], x[e.dst]) * w, x=(5, 3), w=())
    assert found.arguments == ("x", "x", "w")
    assert [v.attrs["name"] for v in found.program.inputs] == ["x[edge.src]", "x[edge.dst]", "w"]


def test_the_weight_of_a_type_is_not_read_row_by_row() -> None:
    out = result(lambda e, x, w: linear(x[e.src], w[e.type]), x=(5, 3), w=(2, 3, 4))
    assert out.op == "linear" and out.domain is EDGE and out.args[1].op == "input"
    at_node = result(lambda e, x, w: e.sum(linear(relu(x[e.src]), w[e.src.type])),
                     x=(5, 3), w=(2, 3, 4))  # fmt: skip
    gathered = at_node.args[0]
    assert gathered.op == "gather" and gathered.args[0].domain is Domain.SRC
    after = result(lambda e, x, w: linear(e.sum(x[e.src]), w[e.node.type]), x=(5, 3), w=(2, 3, 4))
    assert after.domain is DST
    made = result(lambda e, x, c, b: linear(x[e.src], reshape(linear(c[e.type], b), (3, 4))),
                  x=(5, 3), c=(2, 6), b=(6, 12))  # fmt: skip
    assert made.args[1].domain is Domain.EDGE_TYPE


def test_sums_within_a_type_and_then_across_types() -> None:
    out = result(lambda e, x, w: e.sum(linear(e.mean(x[e.src], within=e.type), w[e.type])),
                 x=(5, 3), w=(2, 3, 4))  # fmt: skip
    assert (out.domain, out.args[0].domain) == (DST, Domain.DST_PAIR)
    assert out.args[0].args[0].attrs["how"] == "mean"
    within = result(lambda e, s: softmax(s[e], within=e.type), s=(9, 2))
    lse = next(v for v in traced(lambda e, s: softmax(s[e], within=e.type), s=(9, 2))
               .program.values() if v.op == "reduce")  # fmt: skip
    assert lse.domain is Domain.DST_PAIR and within.domain is EDGE


def test_aggregated_values_can_be_read_again_by_the_destination() -> None:
    out = result(lambda e, x: e.sum(exp(x[e.src] - e.max(x[e.src])[e.dst])), x=(5, 3))
    assert out.domain is DST and out.args[0].op == "exp"


def test_numbers_are_constants_and_sides_of_operators_are_kept() -> None:
    out = result(lambda e, x: 1 - 2 * (3 / (4 + -x[e])), x=(5,))
    assert [v.attrs["value"] for v in traced(lambda e, x: 1 - 2 * (3 / (4 + -x[e])), x=(5,))
            .program.values() if v.op == "const"] == [1, 2, 3, 4]  # fmt: skip
    assert out.op == "sub" and out.args[0].op == "gather"
    assert traced(lambda e, x, k: heads(x[e], k), {"k": 2}, x=(5, 6)).program.outputs[0].shape == (
        2,
        3,
    )


def test_operators_on_rows() -> None:
    def shapes(e: Any, x: Any) -> Any:
        a, b = split(x[e.src], 2)
        return (concat(b, a), outer(a, b), flat(outer(a, b)), maximum(a, b), heads(x[e.src], 3),
                a.shape[0] * a)  # fmt: skip

    found = traced(shapes, x=(5, 6))
    assert not found.single
    assert [v.shape for v in found.program.outputs] == [(6,), (3, 3), (9,), (3,), (3, 2), (3,)]


def test_outputs_that_are_arguments() -> None:
    assert result(lambda e, x: x[e.src], x=(5, 3)).op == "gather"
    assert result(lambda e, p: p, p=(5, 3)).op == "input"


@pytest.mark.parametrize("function, message", [
    (lambda e, x, w: x[e.src] + x[e], r"x: read in .*got x\[edge\],.* only x\[edge.src\]"),
    (lambda e, x, w: x[e.src] + x, r"x: read in two ways; got x, "),
    (lambda e, x, w: x[e.type] + x[e.src.type], "x: read in two ways"),
    (lambda e, x, w: x[0], "x: wrong index; got 0"),
    (lambda e, x, w: linear(x[e.src], w[e.type]), "x: rows do not fit the weight"),
    (lambda e, x, w: linear(x[e.src] * x[e.dst], w[e.src.type]), "weight: does not fit the rows"),
    (lambda e, x, w: linear(x[e.dst], w[e.src.type]), "weight: does not fit the rows"),
    (lambda e, x, w: linear(x[e.src], w[e]), "weight: does not fit the rows"),
    (lambda e, x, w: e.sum(e.sum(x[e.src])), "value: aggregated already"),
    (lambda e, x, w: e.sum(x[e.src], within=e.src.type), "within: not a type of edges"),
    (lambda e, x, w: e.sum(x[e.src])[e.src], "index: does not read a computed value"),
    (lambda e, x, w: x[e.src] if x[e.src] else w, "condition: a program cannot branch"),
    (lambda e, x, w: x[e.src] + "1", "operand: no value of a program; got str"),
    (lambda e, x, w: heads(x[e.src], 4), "number: does not divide"),
    (lambda e, x, w: split(x[e.src], 2), "parts: does not divide"),
    (lambda e, x, w: x[e.src] + w[e], "shapes of rows: do not fit"),
    (lambda e, x, w: None, "operand: no value of a program; got NoneType"),
])  # fmt: skip
def test_errors_name_what_is_wrong(function: Function, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        traced(function, x=(5, 3), w=(7, 4, 2))


def test_tables_without_rows_and_iteration() -> None:
    with pytest.raises(InvalidArgument, match="x: has no rows"):
        traced(lambda e, x: x[e.src], x=())
    with pytest.raises(TypeError, match="not iterable"):
        traced(lambda e, x: list(x), x=(5, 3))
