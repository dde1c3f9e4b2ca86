"""What is listed for a step is what a call launches."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from gnn_backend import config
from gnn_backend.graph.relations import Relations
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.emission import Emission, emit
from gnn_backend.ir.passes import NAMED
from gnn_backend.ir.values import Program
from gnn_backend.layers.relational.models import MODELS, layer_arguments
from gnn_backend.runtime import cpu_call
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import Unit
from tests.layers.relational.support import case


def called(model: str, relations: Relations, options: str, dtype: torch.dtype) -> None:
    """Forward and backward of a layer."""
    shapes, constants = layer_arguments(model, relations, 8, 6, 1 if model == "rgcn" else 2)
    given = {k: torch.zeros(s, dtype=dtype, requires_grad=True) for k, s in shapes.items()}
    out = MODELS[model].optimised(NAMED[options])(relations, **given, **constants)
    assert isinstance(out, torch.Tensor)
    torch.autograd.grad(out, list(given.values()), torch.zeros_like(out))


def emitted(model: str, relations: Relations, options: str, **how: Any) -> Emission:
    shapes, constants = layer_arguments(model, relations, 8, 6, 1 if model == "rgcn" else 2)
    program = MODELS[model].trace(shapes, **constants)
    return emit(program, relations, NAMED[options], backward=True, **how)


FORMS = [*((options, torch.float32) for options in NAMED), ("auto", torch.bfloat16)]


@pytest.mark.parametrize(("options", "dtype"), FORMS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_units_are_those_launched_on_a_device(
    model: str, options: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, which hold the hash, and texts; nothing is compiled."""
    seen: dict[str, str] = {}

    def launch(self: DeviceEngine, unit: Unit, entry: str, *_: object) -> None:
        assert entry in unit.entries
        seen[unit.name] = unit.source

    monkeypatch.setattr(DeviceEngine, "launch", launch)
    relations = case().relations
    with config.override(cpu_target="emulator"):
        called(model, relations, options, dtype)
    found = emitted(model, relations, options, dtype=dtype)
    assert {m.name: m.text for m in found.modules()} == seen
    assert any(m.generated for m in found.modules())


@pytest.mark.parametrize("model", MODELS)
def test_modules_are_those_that_run_on_the_cpu(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()

    def run(module: ModuleType, *_: object) -> None:
        seen.add(module.__name__.removeprefix("gnn_backend_"))

    monkeypatch.setattr(cpu_call.Call, "run", run)
    relations = case().relations
    with config.override(cpu_target="numba"):
        called(model, relations, "auto", torch.float32)
    found = emitted(model, relations, "auto", target="numba")
    assert {m.name for m in found.modules()} == seen


def test_every_step_has_its_rows_and_what_does_it() -> None:
    relations = case().relations
    (forward, _) = emitted("hgt", relations, "c").directions
    pairs = relations.num(Domain.SRC_PAIR)
    assert len(forward.steps) == len(forward.specs)
    lines = [line for spec in forward.specs for line in spec.lines]
    wanted = f"{pairs} rows, [3, 3] for each edge type, a weight a head, rows read or written"
    assert f"{wanted} by an index" in lines and "the product kernel" in lines
    assert any(line.startswith("torch: reshape of") for line in lines)
    assert "edge by destination, [2, 3]" in lines


def test_rows_without_a_kernel_are_left_to_torch() -> None:
    x = ir.input_value("x", Domain.SRC, (2000,))
    program = Program((x,), (ir.reduce("sum", ir.gather(x, Domain.EDGE), Domain.DST),))
    (forward,) = emit(program, case().relations).directions
    (spec,) = forward.specs
    assert spec.modules == () and spec.lines[-1].startswith("plain torch, head-dim")
