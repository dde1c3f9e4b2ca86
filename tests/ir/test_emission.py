"""What becomes of a program: its values after each pass, its steps, its text."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gnn_backend.ir.emission import emit, logical_lines, source_of
from gnn_backend.ir.execute import compiled
from gnn_backend.ir.passes import NAMED
from gnn_backend.layers.relational.rgcn import rgcn
from tests.ir import models


def test_lines_are_counted() -> None:
    assert logical_lines("import a\n\n@d\ndef f(x):\n    '''Doc.'''\n    return g(x,\n  1)\n") == 5


def test_the_source_is_the_functions() -> None:
    text = source_of(rgcn.__wrapped__)
    assert text.startswith("@program\ndef rgcn(") and logical_lines(text) == 5


@pytest.mark.parametrize("model", models.MODELS)
def test_both_directions_are_those_of_a_call(model: str) -> None:
    program, relations = models.MODELS[model](), models.graph()
    made = compiled(program, relations)
    names = frozenset(str(v.attrs["name"]) for v in program.inputs)
    forward, backward = emit(program, relations, backward=True).directions
    assert forward.start is program and forward.plan is made.forward
    assert backward.plan.program.outputs == made.backward(names).plan.program.outputs
    for direction in (forward, backward):
        assert len(direction.steps) == len(direction.plan.steps) == len(direction.specs)


def test_passes_begin_where_the_last_one_ended() -> None:
    program, relations = models.rgat(), models.graph()
    for direction in emit(program, relations, NAMED["cf"], backward=True).directions:
        savings = [r.saving for r in direction.reports]
        assert savings and all(a.after == b.before for a, b in pairwise(savings))
        assert savings[0].before != savings[-1].after


def test_a_backward_program_reads_what_forward_stored() -> None:
    _, backward = emit(models.rgat(), models.graph(), backward=True).directions
    names = {str(v.attrs["name"]) for v in backward.start.inputs}
    assert any(name.startswith("saved:") for name in names) and "grad:0" in names
    assert not any(v.op == "reduce" and v.attrs["how"] == "lse" for v in backward.start.values())
