"""Costs of steps counted by hand, and what passes save of them."""

from __future__ import annotations

from itertools import pairwise

from gnn_backend.ir import values as ir
from gnn_backend.ir.costs import Cost, cost
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.lower import lower
from gnn_backend.ir.passes import Options
from gnn_backend.ir.savings import reports
from gnn_backend.ir.values import Program, Value
from tests.ir import models

EDGE, SRC, DST, TYPE = Domain.EDGE, Domain.SRC, Domain.DST, Domain.EDGE_TYPE
SRC_PAIR = Domain.SRC_PAIR
SIZES = {
    Domain.PARAM: 1, Domain.NODE_TYPE: 1, TYPE: 2, SRC: 5, DST: 3, SRC_PAIR: 7,
    Domain.DST_PAIR: 6, EDGE: 11,
}  # fmt: skip


def x(domain: Domain, *shape: int, name: str = "x") -> Value:
    return ir.input_value(name, domain, shape)


def of(*outputs: Value, itemsize: int = 4) -> Cost:
    return cost(lower(Program((), outputs)), SIZES, itemsize)


def test_a_product_reads_rows_by_an_index() -> None:
    rows = ir.gather(x(SRC, 8), SRC_PAIR)
    numbers = 7 * (8 + 3) + 2 * 8 * 3
    typed = ir.linear(rows, x(TYPE, 8, 3, name="w"))
    assert of(typed) == Cost(rows=7, flops=2 * 7 * 8 * 3, bytes=4 * numbers + 4 * 7)
    assert of(typed, itemsize=2).bytes == 2 * numbers + 4 * 7
    own = ir.linear(x(SRC_PAIR, 8), x(TYPE, 8, 3, name="w"))
    assert of(own).bytes == 4 * numbers


def test_heads_have_products_of_their_own() -> None:
    value = ir.linear(x(SRC_PAIR, 2, 4), x(TYPE, 2, 4, 3, name="w"))
    assert of(value).flops == 2 * 7 * 2 * 4 * 3


def test_a_weight_gradient_reads_both_ends() -> None:
    grad = x(SRC_PAIR, 3, name="g")
    value = ir.weight_grad(ir.gather(x(SRC, 8), SRC_PAIR), grad, TYPE)
    numbers = 7 * (8 + 3) + 2 * 8 * 3
    assert of(value) == Cost(rows=7, flops=2 * 7 * 8 * 3, bytes=4 * numbers + 4 * 7)


def test_a_traversal_reads_a_row_an_edge_and_writes_a_row() -> None:
    message = ir.binary("mul", ir.gather(x(SRC, 8), EDGE), x(EDGE, name="s"))
    found = of(ir.reduce("sum", message, DST))
    # A multiplication and an addition a number; indices of the source and of the edge.
    assert found == Cost(0, 11 * (8 + 8), 4 * (11 * 8 + 11 + 3 * 8) + 4 * 2 * 11)


def test_what_the_row_fixes_is_read_once_a_row() -> None:
    message = ir.binary("add", ir.gather(x(SRC, 8), EDGE), ir.gather(x(DST, 8, name="y"), EDGE))
    found = of(ir.reduce("max", message, DST))
    assert found.bytes == 4 * (11 * 8 + 3 * 8 + 3 * 8) + 4 * 11


def test_views_are_free() -> None:
    value = ir.linear(x(SRC_PAIR, 8), x(TYPE, 8, 6, name="w"))
    assert of(ir.reshape(value, (2, 3))) == of(value)


def test_each_pass_says_what_it_saves() -> None:
    found = {r.name: r for r in reports(models.rgcn(), SIZES)}
    hoist = found["hoist"].saving
    assert (hoist.before.rows, hoist.after.rows, hoist.rows) == (11, 7, 4)
    assert hoist.flops == 2 * 4 * models.IN * models.OUT
    assert {(v.op, v.domain) for v in hoist.gone} >= {("linear", EDGE)}
    assert {(v.op, v.domain) for v in hoist.made} >= {("linear", SRC_PAIR)}
    assert "product rows 11 -> 7" in str(found["hoist"])


def test_reports_are_of_one_chain() -> None:
    found = reports(models.rgat(), SIZES)
    assert len(found) >= 2
    for before, after in pairwise(found):
        assert after.saving.before == before.saving.after
    assert sum(r.saving.rows for r in found) > 0 and sum(r.saving.bytes for r in found) > 0


def test_what_is_switched_off_saves_nothing() -> None:
    assert reports(models.rgcn(), SIZES, Options(compact=False, reorder=False)) == []
