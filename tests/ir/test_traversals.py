"""Generated kernels: on the CPU and in the emulator as in plain torch, and as text."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch
from torch import Tensor

from gnn_backend import config
from gnn_backend.graph.relations import Relations
from gnn_backend.ir import emit_cuda, emit_numba
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.execute import Executable
from gnn_backend.ir.interpret import evaluate
from gnn_backend.ir.passes import Options
from gnn_backend.ir.steps import TraverseStep
from gnn_backend.ir.traversal import Reduction, Step, Store, Table, Traversal
from gnn_backend.ir.values import Program
from gnn_backend.ops.reference import traversal as reference
from gnn_backend.ops.traversal import traverse
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.relational.device import unit_of
from tests.ir import models

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
E, S, D, P = Domain.EDGE, Domain.SRC, Domain.DST, Domain.SRC_PAIR


def generated(model: str) -> list[Traversal]:
    """The traversals of forward and backward of a model."""
    program, relations = models.MODELS[model](), models.graph()
    made = Executable(program, models.sizes(relations), Options(True, True))
    names = frozenset(str(v.attrs["name"]) for v in program.inputs)
    plans = made.forward, made.backward(names).plan
    return [s.traversal for plan in plans for s in plan.steps if isinstance(s, TraverseStep)]


def several(heads: int, dim: int) -> Traversal:
    """All reductions at once, a store beside them, and rows of every shape."""
    tables = tuple(Table(*t) for t in ((S, heads, dim), (D, heads, 1), (E, 1, 1), (S, 1, dim)))
    code = (
        Step("load", (), heads, dim, table=0),
        Step("load", (), heads, 1, True, table=1),
        Step("load", (), 1, 1, table=2),
        Step("load", (), 1, dim, table=3),
        Step("dot", (0, 3), heads, 1),
        Step("mul", (4, 1), heads, 1),
        Step("add", (5, 2), heads, 1),
        Step("mul", (0, 2), heads, dim),
        Step("tanh", (7,), heads, dim),
    )
    outputs = ((D, heads, dim),) * 3 + ((D, heads, 1), (D, heads, dim), (E, heads, 1))
    reductions = (
        Reduction("sum", 8, 0), Reduction("max", 7, 1), Reduction("min", 0, 2),
        Reduction("lse", 6, 3), Reduction("softmax", 0, 4, 6),
    )  # fmt: skip
    return Traversal(
        D, E, heads, dim, tables, tuple(Table(*t) for t in outputs), code, reductions,
        (Store(6, 5),),
    )  # fmt: skip


def by_type(rows: Domain, elements: Domain) -> Traversal:
    """Rows with as many elements as there are."""
    code = (Step("load", (), 1, 5, table=0),)
    inputs, outputs = (Table(elements, 1, 5),), (Table(rows, 1, 5),)
    return Traversal(rows, elements, 1, 5, inputs, outputs, code, (Reduction("sum", 0, 0),))


CASES = {
    "several-2x4": several(2, 4),
    "several-3x7": several(3, 7),
    "by-parameter": by_type(Domain.PARAM, E),
    "pairs-by-type": by_type(Domain.EDGE_TYPE, P),
}


def tables(traversal: Traversal, relations: Relations, dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(2)
    shapes = ((relations.num(t.domain), t.heads, t.dim) for t in traversal.inputs)
    return [torch.randn(shape, generator=g).to(dtype) for shape in shapes]


def check(traversal: Traversal, relations: Relations, given: list[Tensor]) -> None:
    dtype = given[0].dtype
    found = traverse(traversal, relations, given, dtype)
    expected = reference.run(traversal, relations, [x.double() for x in given])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is dtype
        torch.testing.assert_close(
            a.double(), b, rtol=tolerance, atol=tolerance * 4, equal_nan=True
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_on_the_cpu(case: str, dtype: torch.dtype) -> None:
    relations = models.graph()
    check(CASES[case], relations, tables(CASES[case], relations, dtype))


@pytest.mark.parametrize(
    ("case", "dtype"),
    [("several-2x4", torch.float32), ("several-3x7", torch.bfloat16),
     ("pairs-by-type", torch.float32)],
)  # fmt: skip
def test_in_the_emulator(case: str, dtype: torch.dtype) -> None:
    relations = models.graph()
    with config.override(cpu_target="emulator"):
        check(CASES[case], relations, tables(CASES[case], relations, dtype))


@pytest.mark.parametrize("target", ["numba", "emulator"])
def test_masks_and_numbers_that_are_none(target: str) -> None:
    relations, traversal = models.graph(), several(2, 4)
    given = tables(traversal, relations, torch.float32)
    dst = relations.index(E, D)
    assert dst is not None
    given[2][dst == 1] = -torch.inf  # all logits of a hub: weights are NaN
    given[2][dst == 4] = torch.inf
    given[0][3, 0, 1] = torch.nan
    with config.override(cpu_target=target):
        found = traverse(traversal, relations, given, torch.float32)
    expected = reference.run(traversal, relations, given)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=4e-5, equal_nan=True)
    assert expected[4][1].isnan().all() and expected[3][1].isneginf().any()


@pytest.mark.parametrize("target", ["numba", "emulator"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_masked_with_the_lowest_number_have_equal_weights(
    target: str, dtype: torch.dtype
) -> None:
    """Split rows and whole ones; -inf beside the lowest number weighs nothing."""
    relations, traversal = models.graph(), several(2, 4)
    given = tables(traversal, relations, dtype)
    dst = relations.index(E, D)
    assert dst is not None
    given[2][(dst == 1) | (dst == 4)] = torch.finfo(dtype).min
    given[2][(dst == 1).nonzero()[0]] = -torch.inf
    given[1].zero_()  # logits are the masks alone
    with config.override(cpu_target=target):
        found = traverse(traversal, relations, given, dtype)
    expected = reference.run(traversal, relations, [x.double() for x in given])
    for n in (3, 4):  # lse and softmax
        a, b = found[n][[1, 4]].double(), expected[n][[1, 4]]
        torch.testing.assert_close(a, b, rtol=1e-2, atol=4e-2)
    assert expected[4][[1, 4]].isfinite().all()


def test_kernels_read_aligned_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that begins between two 16-byte accesses, which a GPU refuses to load."""
    relations, traversal = models.graph(), CASES["several-2x4"]
    given = tables(traversal, relations, torch.float32)
    shape = given[0].shape
    given[0] = torch.cat([torch.zeros(1), given[0].flatten()])[1:].view(shape)
    assert given[0].is_contiguous() and given[0].data_ptr() % 16
    seen: list[int] = []
    launch = DeviceEngine.launch

    def spy(self: DeviceEngine, unit: object, entry: str, grid: object, block: int, args: bytes):  # type: ignore[no-untyped-def]
        names = [name for name, _ in emit_cuda.arguments(traversal)]
        seen.append(struct.unpack(f"<{len(names)}q", args)[names.index("in0")])
        launch(self, unit, entry, grid, block, args)  # type: ignore[arg-type]

    monkeypatch.setattr(DeviceEngine, "launch", spy)
    with config.override(cpu_target="emulator"):
        check(traversal, relations, given)
    assert seen and all(address % 16 == 0 for address in seen)


@pytest.mark.parametrize("target", ["numba", "emulator"])
def test_same_bits(target: str) -> None:
    relations, traversal = models.graph(), several(2, 4)
    given = tables(traversal, relations, torch.float32)
    with config.override(cpu_target=target):
        first, second = (traverse(traversal, relations, given, torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_text_begins_with_the_program() -> None:
    lines = several(2, 4).listing()
    assert lines[0] == "edge by destination, [2, 4]"
    assert "s1 = in1[destination] [2, 1] of the row" in lines
    assert "s4 = dot(x0, x3) [2, 1]" in lines
    assert "out4[row] = softmax(x0, s6)" in lines and lines[-1] == "out5[element] = s6"
    heading = unit_of(several(2, 4), "f32")[0].source.splitlines()[: len(lines)]
    assert heading == [f"// {line}" for line in lines]


def test_text_follows_from_the_traversal() -> None:
    first, second = generated("rgat"), generated("rgat")
    assert first == second
    for traversal in first:
        unit, _ = unit_of(traversal, "f32")
        text = unit.source.replace(unit.name, "NAME")
        assert unit.name.endswith(hashlib.sha256(text.encode()).hexdigest()[:12])
        variant = emit_numba.Variant("float32", "int32")
        assert emit_numba.source(traversal, variant) == emit_numba.source(traversal, variant)
    other = generated("hgt")
    assert {unit_of(t, "f32")[0].source for t in first} != {
        unit_of(t, "f32")[0].source for t in other
    }


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compiles_without_spills(arch: str) -> None:
    pytest.importorskip("cupy", reason="CuPy, which compiles the kernels, is not installed")
    from gnn_backend.runtime.compile import compile_unit

    attention = next(t for t in generated("hgt") if len(t.reductions) > 1 and t.rows is D)
    for dtype in ("f32", "bf16"):
        _, resources = compile_unit(unit_of(attention, dtype)[0], arch)
        assert resources and all(r.spill_bytes == 0 for r in resources)


@pytest.mark.parametrize("target", ["numba", "emulator"])
def test_softmax_of_several_logits_without_columns(target: str) -> None:
    """A number each, with statistics of its own, and nothing wider in the kernel."""
    relations = models.graph()
    logit, weight = ir.input_value("logit", E, (3,)), ir.input_value("weight", S, (3,))
    total = ir.gather(ir.reduce("lse", logit, D), E)
    alpha = ir.unary("exp", ir.binary("sub", logit, total))
    product = ir.binary("mul", alpha, ir.gather(weight, E))
    program = Program((logit, weight), (ir.reduce("sum", product, D),))
    given = {"logit": torch.randn(relations.num(E), 3), "weight": torch.randn(relations.num(S), 3)}
    made = Executable(program, models.sizes(relations))
    with config.override(cpu_target=target):
        (found,) = made(relations, given)
    (expected,) = evaluate(program, relations, given)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert [s.describe() for s in made.forward.steps] == [
        "traversal of edge by destination: lse, softmax"
    ]


def test_softmax_of_matrices_is_left_to_torch() -> None:
    relations = models.graph()
    logit = ir.input_value("logit", E, (2, 3))
    total = ir.gather(ir.reduce("lse", logit, D), E)
    alpha = ir.unary("exp", ir.binary("sub", logit, total))
    program = Program((logit,), (ir.reduce("sum", ir.binary("mul", alpha, logit), D),))
    given = {"logit": torch.randn(relations.num(E), 2, 3)}
    (found,) = Executable(program, models.sizes(relations))(relations, given)
    (expected,) = evaluate(program, relations, given)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
