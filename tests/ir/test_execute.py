"""Compiled programs: outputs and all gradients as the interpreter's, whatever was optimised."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnn_backend import config
from gnn_backend.errors import Unsupported
from gnn_backend.graph.relations import Relations
from gnn_backend.ir import steps
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.execute import Executable, compiled, describe
from gnn_backend.ir.interpret import evaluate
from gnn_backend.ir.passes import DEFAULT, Options
from gnn_backend.ir.values import Program
from gnn_backend.ops.reference import traversal as reference
from tests.ir import models, strategies
from tests.ir.strategies import assert_close

EVERY = [Options(compact, reorder) for compact, reorder in product((False, True), repeat=2)]


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traversals in plain torch: nothing is compiled."""
    monkeypatch.setattr(steps, "traverse", reference.run)


def gradients(
    outputs: list[Tensor], wanted: list[Tensor], cotangents: list[Tensor]
) -> list[Tensor]:
    flowing = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if not flowing:
        return [torch.zeros_like(x) for x in wanted]
    ys, weights = zip(*flowing, strict=True)
    found = torch.autograd.grad(ys, wanted, weights, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]


def check(program: Program, relations: Relations, options: Options, dtype: torch.dtype) -> None:
    """Outputs and gradients against float64."""
    given_ = models.inputs(program, relations, dtype)
    found = Executable(program, models.sizes(relations), options)(relations, given_)
    exact = {k: x.detach().double().requires_grad_() for k, x in given_.items()}
    expected = evaluate(program, relations, exact)
    cotangents = [torch.randn_like(y) for y in expected]
    got = gradients(found, list(given_.values()), [c.to(dtype) for c in cotangents])
    want = gradients(expected, list(exact.values()), cotangents)
    assert_close([*found, *got], [y.to(dtype) for y in (*expected, *want)], options)


@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("options", [*EVERY, DEFAULT], ids=str)
@pytest.mark.parametrize("model", models.MODELS)
def test_equals_the_interpreter(model: str, options: Options) -> None:
    check(models.MODELS[model](), models.graph(), options, torch.float64)


@pytest.mark.parametrize("model", models.MODELS)
def test_equals_the_interpreter_on_the_cpu(model: str) -> None:
    check(models.MODELS[model](), models.graph(), DEFAULT, torch.float32)


def test_equals_the_interpreter_on_device_kernels() -> None:
    with config.override(cpu_target="emulator"):
        check(models.rgat(), models.graph(), DEFAULT, torch.float32)


@pytest.mark.usefixtures("in_torch")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.programs(), strategies.relations(), st.sampled_from(EVERY))
def test_random_programs(program: Program, relations: Relations, options: Options) -> None:
    given_ = strategies.tensors(program, relations)
    outputs, cotangents, expected = strategies.gradients(program, relations, given_)
    leaves = {k: x.detach().requires_grad_() for k, x in given_.items()}
    found = Executable(program, models.sizes(relations), options)(relations, leaves)
    assert_close(found, outputs, program)
    got = gradients(found, list(leaves.values()), list(cotangents.values()))
    assert_close(got, expected, program)


def lines(model: str) -> tuple[list[str], list[str]]:
    """Steps of both plans, without their sizes."""
    program, relations = models.MODELS[model](), models.graph()
    made = Executable(program, models.sizes(relations), Options(True, True))
    names = frozenset(str(v.attrs["name"]) for v in program.inputs)
    plans = made.forward, made.backward(names).plan
    return tuple([s.describe() for s in plan.steps] for plan in plans)  # type: ignore[return-value]


@pytest.mark.parametrize("model", ["rgat", "hgt"])
def test_attention_takes_one_pass_over_the_edges_for_each_end(model: str) -> None:
    forward, backward = lines(model)
    over_edges = [line for line in forward if line.startswith("traversal of edge")]
    assert over_edges == ["traversal of edge by destination: lse, softmax"]
    over_edges = sorted(line for line in backward if "of edge by" in line)
    assert [line.split(":")[0] for line in over_edges] == [
        "traversal of edge by (source, edge type)" if line.startswith("traversal of edge by (s")
        else line.split(":")[0] for line in over_edges
    ]  # fmt: skip
    assert len(over_edges) == 2
    assert not any("map over edge" in line for line in (*forward, *backward))


@pytest.mark.usefixtures("in_torch")
def test_a_score_along_another_width_is_all_that_is_stored_of_edges() -> None:
    """A kernel has one width: the score becomes a number an edge, not the message a row."""
    x, y = (ir.input_value(name, Domain.SRC, (width,)) for name, width in (("x", 6), ("y", 3)))
    far = ir.input_value("far", Domain.DST, (6,))
    score = ir.dot(*ir.lift([x, far]))
    message = ir.binary("mul", ir.gather(y, Domain.EDGE), ir.unary("sigmoid", score))
    program = Program((x, y, far), (ir.reduce("sum", message, Domain.DST),))
    relations = models.graph()
    check(program, relations, DEFAULT, torch.float64)
    made = Executable(program, models.sizes(relations))
    edges = f"[{relations.graph.num_edges}, 1]"
    assert made.describe() == [
        f"map over edge -> {edges}",
        "traversal of edge by destination: sum -> [30, 3]",
    ]


@pytest.mark.parametrize("model", models.MODELS)
def test_steps_do_not_depend_on_the_number_of_types(model: str) -> None:
    program = models.MODELS[model]()
    names = frozenset(str(v.attrs["name"]) for v in program.inputs)
    counts = set()
    for types in (4, 40):
        relations = models.graph(types=types)
        made = Executable(program, models.sizes(relations), Options(True, True))
        counts.add((len(made.forward.steps), len(made.backward(names).plan.steps)))
    assert len(counts) == 1


@pytest.mark.usefixtures("in_torch")
def test_gradients_that_nobody_wants_are_not_computed() -> None:
    program, relations = models.rgat(), models.graph()
    given_ = models.inputs(program, relations, torch.float64)
    frozen = {k: x.detach().requires_grad_(k == "x") for k, x in given_.items()}
    made = compiled(program, relations)
    (out,) = made(relations, frozen)
    (found,) = torch.autograd.grad(out.sum(), [frozen["x"]])
    (expected,) = evaluate(program, relations, given_)
    assert_close([found], torch.autograd.grad(expected.sum(), [given_["x"]]))
    some, all_ = (made.backward(frozenset(n)).plan for n in (["x"], list(given_)))
    assert len(some.steps) < len(all_.steps)


@pytest.mark.usefixtures("in_torch")
def test_gradients_of_gradients_are_refused() -> None:
    program, relations = models.rgcn(), models.graph()
    given_ = models.inputs(program, relations, torch.float64)
    (out,) = compiled(program, relations)(relations, given_)
    with pytest.raises(Unsupported, match="double-backward"):
        torch.autograd.grad(out.sum(), [given_["x"]], create_graph=True)


def test_what_is_compiled_is_kept() -> None:
    relations = models.graph()
    assert compiled(models.rgat(), relations) is compiled(models.rgat(), relations)
    assert compiled(models.rgat(), relations, Options(False, False)) is not compiled(
        models.rgat(), relations
    )


def test_description_has_rows() -> None:
    relations = models.graph()
    made = Executable(models.rgcn(), models.sizes(relations), Options(True, True))
    assert any(f"[{relations.graph.num_dst}, {models.OUT}]" in line for line in made.describe())
    assert describe(made.forward, made.sizes) == made.describe()
