"""Rules that move linear operators: where they apply, where not, and that results stay."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnn_backend.graph.relations import Relations
from gnn_backend.ir import steps
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.execute import Executable
from gnn_backend.ir.interpret import evaluate
from gnn_backend.ir.passes import Options
from gnn_backend.ir.passes.reorder import reorder
from gnn_backend.ir.passes.simplify import simplify
from gnn_backend.ir.values import Program, Value
from gnn_backend.ops.reference import traversal as reference
from tests.ir import models, strategies
from tests.ir.strategies import assert_close

EDGE, SRC, DST, TYPE = Domain.EDGE, Domain.SRC, Domain.DST, Domain.EDGE_TYPE
SRC_PAIR, DST_PAIR, PARAM = Domain.SRC_PAIR, Domain.DST_PAIR, Domain.PARAM
SIZES = {
    PARAM: 1, Domain.NODE_TYPE: 1, TYPE: 5, SRC: 1000, DST: 1000, SRC_PAIR: 3000,
    DST_PAIR: 3000, EDGE: 10_000,
}  # fmt: skip
FEW_SOURCES = {**SIZES, SRC_PAIR: 1500}
MANY_SOURCES = {**SIZES, SRC_PAIR: 9000}


def x(domain: Domain, *shape: int, name: str = "x") -> Value:
    return ir.input_value(name, domain, shape)


def program(output: Value) -> Program:
    inputs = tuple(v for v in Program((), (output,)).values() if v.op == "input")
    return Program(inputs, (output,))


def reordered(
    output: Value, sizes: Mapping[Domain, int] = SIZES, reuse: tuple[Value, ...] = ()
) -> Value:
    """The result, which has been checked to be equal."""
    before = program(output)
    after = reorder(simplify(before), sizes, reuse)
    relations = models.graph()
    inputs = models.inputs(before, relations, torch.float64)
    assert_close(evaluate(after, relations, inputs), evaluate(before, relations, inputs), after)
    return after.outputs[0]


def linears(output: Value) -> list[Domain]:
    return [v.domain for v in Program((), (output,)).values() if v.op == "linear"]


def reductions(output: Value) -> list[tuple[Domain, Domain]]:
    found = (v for v in Program((), (output,)).values() if v.op == "reduce")
    return [(v.args[0].domain, v.domain) for v in found]


# ------------------------------------------------------------------ before


def mean_of_relations(*, multiplied: bool = True) -> Value:
    mean = ir.reduce("mean", ir.gather(x(SRC, 8), EDGE), DST_PAIR)
    rows = ir.linear(mean, x(TYPE, 8, 8, name="w")) if multiplied else mean
    return ir.reduce("sum", rows, DST)


def test_means_within_relations_are_one_sum_where_sources_have_few_pairs() -> None:
    found = reordered(mean_of_relations(), FEW_SOURCES)
    assert linears(found) == [SRC_PAIR] and reductions(found) == [(EDGE, DST)]


def test_means_stay_where_sources_have_many_pairs() -> None:
    found = reordered(mean_of_relations(), MANY_SOURCES)
    assert linears(found) == [DST_PAIR] and len(reductions(found)) == 2


def test_means_without_a_product_are_one_sum() -> None:
    found = reordered(mean_of_relations(multiplied=False), MANY_SOURCES)
    assert reductions(found) == [(EDGE, DST)]


def test_means_that_are_stored_stay() -> None:
    output = mean_of_relations()
    stored = tuple(v for v in simplify(program(output)).values() if v.domain is DST_PAIR)
    assert linears(reordered(output, FEW_SOURCES, stored)) == [DST_PAIR]


def test_largest_rows_within_relations_stay() -> None:
    largest = ir.reduce("max", ir.gather(x(SRC, 8), EDGE), DST_PAIR)
    output = ir.reduce("sum", ir.linear(largest, x(TYPE, 8, 8, name="w")), DST)
    assert reordered(output, FEW_SOURCES) is output


# ------------------------------------------------------------------ after


def weighted(inner: int, outward: int, *scale: int) -> Value:
    rows = ir.linear(x(SRC, inner), x(PARAM, inner, outward, name="w"))
    message = ir.binary("mul", ir.gather(rows, EDGE), x(EDGE, *scale, name="s"))
    return ir.reduce("sum", message, DST)


def test_a_parameter_follows_the_sum_where_rows_are_narrower() -> None:
    found = reordered(weighted(4, 16))
    assert found.op == "linear" and found.domain is DST and reductions(found) == [(EDGE, DST)]


def test_a_parameter_stays_where_rows_would_be_wider() -> None:
    output = weighted(16, 4)
    assert reordered(output) is output


def test_a_factor_for_each_column_does_not_pass_a_product() -> None:
    output = weighted(4, 16, 16)
    assert reordered(output) is output


def test_a_factor_for_each_head_passes_a_product() -> None:
    rows = ir.linear(x(SRC, 2, 4), x(PARAM, 2, 4, 16, name="w"))
    message = ir.binary("mul", ir.gather(rows, EDGE), x(EDGE, 2, name="s"))
    assert linears(reordered(ir.reduce("sum", message, DST))) == [DST]


# ------------------------------------------------------------------ split


def test_a_product_of_both_ends_is_split() -> None:
    both = ir.concat(ir.gather(x(SRC, 4), EDGE), ir.gather(x(DST, 4, name="y"), EDGE))
    found = reordered(ir.linear(both, x(PARAM, 8, 8, name="w")))
    # Each is read from its nodes: what hoisting then moves there.
    assert found.op == "add" and [a.args[0].op for a in found.args] == ["gather", "gather"]
    turned = reordered(ir.linear(both, x(TYPE, 8, 8, name="w"), transposed=True))
    assert turned.op == "add"


def test_a_product_of_edges_is_not_split() -> None:
    both = ir.concat(x(EDGE, 4), x(EDGE, 4, name="y"))
    output = ir.linear(both, x(PARAM, 8, 8, name="w"))
    assert reordered(output) is output


def test_a_product_that_would_write_more_is_not_split() -> None:
    narrow = ir.concat(ir.gather(x(SRC, 1), EDGE), ir.gather(x(DST, 1, name="y"), EDGE))
    output = ir.linear(narrow, x(TYPE, 2, 64, name="w"))
    assert reordered(output, MANY_SOURCES) is output


# ------------------------------------------------------------------ fold


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 3)], ids=["by head", "shared"])
def test_vectors_of_heads_leave_no_product(shape: tuple[int, ...]) -> None:
    rows = ir.linear(ir.gather(x(SRC, 2, 4), SRC_PAIR), x(TYPE, *shape, name="w"))
    output = ir.dot(rows, ir.gather(x(TYPE, 2, 3, name="a"), SRC_PAIR))
    assert linears(reordered(output)) == []


def test_what_is_stored_is_not_folded() -> None:
    rows = ir.linear(ir.gather(x(SRC, 2, 4), SRC_PAIR), x(TYPE, 2, 4, 3, name="w"))
    output = ir.dot(rows, ir.gather(x(TYPE, 2, 3, name="a"), SRC_PAIR))
    assert reordered(output, reuse=(rows,)) is output


# ------------------------------------------------------------------ concatenations


def test_slices_take_what_they_need_of_a_concatenation() -> None:
    a, b = x(EDGE, 3, name="a"), x(EDGE, 4, name="b")
    joined = ir.concat(a, b)
    assert simplify(program(ir.part(joined, 3, 7))).outputs[0] is b
    across = simplify(program(ir.part(joined, 1, 4))).outputs[0]
    assert across is ir.concat(ir.part(a, 1, 3), ir.part(b, 0, 1))
    tall = ir.concat(x(EDGE, 2, 3, name="a"), x(EDGE, 2, 3, name="b"))
    by_row = ir.part(tall, 0, 1, 0)
    assert simplify(program(by_row)).outputs[0] is by_row


def test_sums_go_inside_of_concatenations_but_their_softmax_does_not() -> None:
    a, b = x(EDGE, 3, name="a"), x(EDGE, 4, name="b")
    found = simplify(program(ir.reduce("max", ir.concat(a, b), DST))).outputs[0]
    assert found is ir.concat(ir.reduce("max", a, DST), ir.reduce("max", b, DST))
    together = ir.reduce("lse", ir.concat(a, b), DST)
    assert simplify(program(together)).outputs[0] is together


# ------------------------------------------------------------------ with gradients


def check(before: Program, relations: Relations, sizes: Mapping[Domain, int], options: Options,
          inputs: dict[str, torch.Tensor]) -> Executable:  # fmt: skip
    """Compiled, a program has the outputs and gradients that the interpreter has."""
    outputs, cotangents, expected = strategies.gradients(before, relations, inputs)
    made = Executable(before, sizes, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "traverse", reference.run)
        found = made(relations, inputs)
        assert_close(found, outputs, before)
        pairs = zip(found, cotangents.values(), strict=True)
        flowing = [(y, c) for y, c in pairs if y.requires_grad]
        if flowing:
            got = torch.autograd.grad(
                [y for y, _ in flowing], list(inputs.values()), [c for _, c in flowing],
                allow_unused=True, materialize_grads=True,
            )  # fmt: skip
            assert_close(got, expected, before)
    return made


def scaled_mean() -> Value:
    """Each edge and each pair has a factor."""
    message = ir.binary("mul", ir.gather(x(SRC, 8), EDGE), x(EDGE, name="s"))
    mean = ir.reduce("mean", message, DST_PAIR)
    mean = ir.binary("mul", x(DST_PAIR, name="c"), mean)
    return ir.reduce("sum", ir.linear(mean, x(TYPE, 8, 8, name="w")), DST)


def attended() -> Value:
    """A key's product moves to the query."""
    k = ir.gather(ir.linear(ir.gather(x(SRC, 4), SRC_PAIR), x(TYPE, 4, 4, name="w")), EDGE)
    return ir.dot(k, ir.gather(x(DST, 4, name="q"), EDGE))


def joined(*, transposed: bool) -> Value:
    both = ir.concat(ir.gather(x(SRC, 4), EDGE), ir.gather(x(DST, 4, name="y"), EDGE))
    return ir.linear(both, x(TYPE, 8, 8, name="w"), transposed=transposed)


def by_head() -> Value:
    rows = ir.linear(ir.gather(x(SRC, 2, 4), SRC_PAIR), x(TYPE, 2, 4, 3, name="w"))
    return ir.dot(rows, ir.gather(x(TYPE, 2, 3, name="a"), SRC_PAIR))


MOVED = {
    "mean": (scaled_mean, FEW_SOURCES),
    "mean alone": (lambda: mean_of_relations(multiplied=False), SIZES),
    "sum by pairs": (lambda: ir.reduce("sum", ir.linear(ir.gather(x(SRC, 4), EDGE),
                                                        x(TYPE, 4, 4, name="w")), DST),
                     MANY_SOURCES),
    "parameter": (lambda: weighted(4, 16), SIZES),
    "transfer": (attended, MANY_SOURCES),
    "split": (lambda: joined(transposed=False), SIZES),
    "split transposed": (lambda: joined(transposed=True), SIZES),
    "fold heads": (by_head, SIZES),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_gradients_of_what_is_moved(name: str) -> None:
    make, sizes = MOVED[name]
    before, relations = program(make()), models.graph()
    inputs = models.inputs(before, relations, torch.float64)
    made = check(before, relations, sizes, Options(), inputs)
    kept = Executable(before, sizes, Options(reorder=False))
    assert made.forward.program.outputs != kept.forward.program.outputs


# ------------------------------------------------------------------ all rules, any sizes


@st.composite
def any_sizes(draw: st.DrawFn) -> dict[Domain, int]:
    """Sizes unlike those of the graph, so that what sizes decide is decided either way."""
    return {domain: draw(st.sampled_from((1, 100, 10_000))) for domain in Domain}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.programs(), strategies.relations(), any_sizes(), st.sampled_from((None, True)))
def test_results_do_not_depend_on_sizes(
    before: Program, relations: Relations, sizes: dict[Domain, int], compact: bool | None
) -> None:
    check(before, relations, sizes, Options(compact), strategies.tensors(before, relations))
