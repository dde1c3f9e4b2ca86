"""Each pass where it applies, and where it must not."""

from __future__ import annotations

from gnn_backend.ir import values as ir
from gnn_backend.ir.autodiff import differentiate
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.passes import DEFAULT, Options, optimise
from gnn_backend.ir.passes.factor import factor
from gnn_backend.ir.passes.hoist import hoist
from gnn_backend.ir.passes.reorder import reorder
from gnn_backend.ir.passes.simplify import simplify
from gnn_backend.ir.values import Program, Value
from tests.ir import models

EDGE, SRC, DST, TYPE = Domain.EDGE, Domain.SRC, Domain.DST, Domain.EDGE_TYPE
SRC_PAIR, DST_PAIR = Domain.SRC_PAIR, Domain.DST_PAIR
#: As of FB15k-237 with reverse edges, and with few pairs of destinations.
SIZES = {
    Domain.PARAM: 1, Domain.NODE_TYPE: 1, TYPE: 474, SRC: 14_541, DST: 14_541,
    SRC_PAIR: 291_000, DST_PAIR: 291_000, EDGE: 620_000,
}  # fmt: skip
FEW_DST_PAIRS = {**SIZES, DST_PAIR: 60_000}


def x(domain: Domain, *shape: int, name: str = "x") -> Value:
    return ir.input_value(name, domain, shape)


def only(program: Program) -> Value:
    (output,) = program.outputs
    return output


def operators(program: Program) -> list[tuple[str, Domain]]:
    return [(v.op, v.domain) for v in program.values() if v.op != "input"]


# ------------------------------------------------------------------ simplify


def test_views_go_behind_gathers() -> None:
    viewed = ir.part(ir.reshape(ir.gather(x(SRC, 6), EDGE), (2, 3)), 0, 1, 0)
    found = only(simplify(Program((), (viewed,))))
    assert (found.op, found.args[0].domain, found.args[0].op) == ("gather", SRC, "slice")


def test_sums_of_products_are_dots() -> None:
    a, b = x(SRC, 2, 3), x(SRC, 2, 3, name="y")
    found = only(simplify(Program((), (ir.row_sum(ir.binary("mul", a, b), -1),))))
    assert found is ir.dot(a, b)
    along_heads = ir.row_sum(ir.binary("mul", a, b), 0)
    assert only(simplify(Program((), (along_heads,)))) is along_heads


def test_dots_of_concatenations_are_sums_of_dots() -> None:
    parts = ir.concat(x(EDGE, 2, name="u"), x(EDGE, 3, name="v"))
    found = only(simplify(Program((), (ir.dot(x(EDGE, 5), parts),))))
    assert found.op == "add" and [a.op for a in found.args] == ["dot", "dot"]


def test_means_are_sums_over_degrees() -> None:
    found = only(simplify(Program((), (ir.reduce("mean", x(EDGE, 3), DST),))))
    assert found.op == "div" and found.args[0] is ir.reduce("sum", x(EDGE, 3), DST)
    of_pairs = ir.reduce("mean", x(SRC_PAIR, 3), SRC)  # of which the graph counts no degree
    assert only(simplify(Program((), (of_pairs,)))) is of_pairs


def test_neutral_numbers_vanish() -> None:
    a = x(EDGE, 3)
    one, zero = (ir.gather(ir.const(n), EDGE) for n in (1.0, 0.0))
    value = ir.binary("add", ir.binary("mul", one, ir.unary("neg", ir.unary("neg", a))), zero)
    assert only(simplify(Program((), (value,)))) is a
    wider = ir.binary("mul", ir.gather(ir.const(1.0, (2, 3)), EDGE), x(EDGE, 2))
    assert only(simplify(Program((), (wider,)))) is wider


# ------------------------------------------------------------------ hoist


def test_what_a_node_fixes_is_computed_for_nodes() -> None:
    value = ir.unary("tanh", ir.gather(x(SRC, 3), EDGE))
    found = only(hoist(Program((), (value,)), SIZES))
    assert found is ir.gather(ir.unary("tanh", x(SRC, 3)), EDGE)


def test_what_both_ends_make_stays_at_the_edges() -> None:
    both = ir.binary("add", *ir.lift([x(SRC, 3), x(DST, 3, name="y")]))
    assert only(hoist(Program((), (both,)), SIZES)) is both


def test_extremes_do_not_move_to_rows_that_may_be_empty() -> None:
    largest = ir.gather(ir.reduce("max", x(EDGE, 3), DST), EDGE)
    value = ir.unary("exp", largest)
    assert only(hoist(Program((), (value,)), SIZES)) is value


def test_products_are_compacted_where_that_saves_rows() -> None:
    weight = x(TYPE, 3, 4, name="w")
    program = Program((), (ir.linear(ir.gather(x(SRC, 3), EDGE), weight),))
    assert only(hoist(program, SIZES)).args[0].domain is SRC_PAIR
    many = {**SIZES, SRC_PAIR: 610_000}
    assert only(hoist(program, many)) is only(program)
    assert only(hoist(program, many, compact=True)).args[0].domain is SRC_PAIR
    assert only(hoist(program, SIZES, compact=False)) is only(program)


def test_what_is_cheap_is_not_stored_for_pairs() -> None:
    scaled = ir.binary("mul", *ir.lift([x(SRC, 3), x(TYPE, 3, name="m")], [EDGE]))
    assert only(hoist(Program((), (scaled,)), SIZES, compact=True)) is scaled


# ------------------------------------------------------------------ factor


def test_what_the_row_fixes_leaves_the_sum() -> None:
    s, c = x(EDGE), x(DST, 3, name="c")
    total = ir.reduce("sum", ir.binary("mul", s, ir.gather(c, EDGE)), DST)
    found = only(factor(Program((), (total,))))
    assert found is ir.binary("mul", ir.reduce("sum", s, DST), c)
    by_source = ir.reduce("sum", ir.binary("mul", s, ir.gather(c, EDGE)), SRC)
    assert only(factor(Program((), (by_source,)))) is by_source


def test_what_may_be_infinite_stays_in_the_sum() -> None:
    s = x(EDGE)
    c = ir.unary("reciprocal", ir.degree(DST))
    total = ir.reduce("sum", ir.binary("mul", s, ir.gather(c, EDGE)), DST)
    assert only(factor(Program((), (total,)))) is total


def test_sums_of_products_with_the_row_use_the_sum_that_is_there() -> None:
    alpha, v, c = x(EDGE, 2, name="alpha"), x(EDGE, 2, 3, name="v"), x(DST, 2, 3, name="c")
    out = ir.reduce("sum", ir.binary("mul", alpha, v), DST)
    product = ir.binary("mul", ir.dot(ir.gather(c, EDGE), v), alpha)
    total = ir.reduce("sum", product, DST)
    found = factor(Program((), (total,)), reuse=[out])
    assert only(found) is ir.dot(c, out)
    assert only(factor(Program((), (total,)))) is total


# ------------------------------------------------------------------ reorder


def test_attention_vectors_are_folded_into_weights() -> None:
    weight, vector = x(TYPE, 5, 6, name="w"), x(TYPE, 2, 3, name="a")
    rows = ir.reshape(ir.linear(ir.gather(x(DST, 5), DST_PAIR), weight), (2, 3))
    logit = ir.dot(ir.gather(rows, EDGE), ir.gather(vector, EDGE))
    found = reorder(Program((), (logit,)), SIZES)
    (product,) = (v for v in found.values() if v.op == "linear")
    assert product.shape == (2,)
    kept = ir.reduce("sum", ir.gather(rows, EDGE), DST)  # the rows are needed as they are
    both = Program((), (logit, kept))
    assert reorder(both, SIZES).outputs == both.outputs


def test_products_of_products_become_one() -> None:
    weight, last = x(TYPE, 5, 6, name="w"), x(Domain.PARAM, 6, 2, name="q")
    value = ir.linear(ir.linear(ir.gather(x(SRC, 5), SRC_PAIR), weight), last)
    (product,) = (v for v in reorder(Program((), (value,)), SIZES).values() if v.op == "linear")
    assert product.args[1].shape == (5, 2)
    wide = x(Domain.PARAM, 6, 9, name="wide")
    wider = ir.linear(ir.linear(ir.gather(x(SRC, 5), SRC_PAIR), weight), wide)
    assert only(reorder(Program((), (wider,)), SIZES)) is wider


def test_a_product_moves_to_the_end_with_fewer_pairs() -> None:
    weight, q = x(TYPE, 3, 3, name="w"), x(DST, 3, name="q")
    k = ir.gather(ir.linear(ir.gather(x(SRC, 3), SRC_PAIR), weight), EDGE)
    program = Program((), (ir.dot(k, ir.gather(q, EDGE)),))
    assert reorder(program, SIZES).outputs == program.outputs
    found = reorder(program, FEW_DST_PAIRS)
    assert ("linear", DST_PAIR) in operators(found) and ("linear", SRC_PAIR) not in operators(found)


def test_a_product_follows_the_sum_where_there_are_fewer_pairs() -> None:
    program = models.rgcn()
    before = optimise(program, SIZES, DEFAULT)
    assert ("linear", SRC_PAIR) in operators(before)
    after = optimise(program, FEW_DST_PAIRS, DEFAULT)
    assert ("linear", DST_PAIR) in operators(after) and ("linear", SRC_PAIR) not in operators(after)


def test_softmax_weighted_sums_stay_in_one_pass() -> None:
    found = optimise(models.rgat(), FEW_DST_PAIRS, DEFAULT)
    sums = [v for v in found.values() if v.op == "reduce"]
    assert {v.domain for v in sums} == {DST}


def test_sums_over_types_go_by_way_of_pairs_that_are_summed() -> None:
    s, z = x(EDGE, name="s"), x(EDGE, 3, name="z")
    typed, paired = ir.reduce("sum", s, TYPE), ir.reduce("sum", z, SRC_PAIR)
    found = reorder(Program((), (typed, paired)), SIZES)
    assert found.outputs[0] is ir.reduce("sum", ir.reduce("sum", s, SRC_PAIR), TYPE)
    assert reorder(Program((), (typed,)), SIZES).outputs == (typed,)


# ------------------------------------------------------------------ all of them


def test_no_product_is_left_at_the_edges() -> None:
    for make in models.MODELS.values():
        program = optimise(make(), SIZES, DEFAULT)
        names = [str(v.attrs["name"]) for v in program.inputs]
        backward = optimise(differentiate(program, names), SIZES, DEFAULT)
        for found in (program, backward):
            assert ("linear", EDGE) not in operators(found)
            assert ("weight_grad", EDGE) not in operators(found)


def test_options_switch_them_off() -> None:
    plain = optimise(models.rgat(), SIZES, Options(False, False))
    assert ("linear", EDGE) in operators(plain)
    said: list[str] = []
    optimise(models.rgat(), SIZES, DEFAULT, say=lambda name, program: said.append(name))
    assert {"hoist", "reorder"} <= set(said)
