"""Layouts that must be read right, and input that must be refused with the argument's name."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnn_backend import config
from gnn_backend.errors import InvalidArgument, Unsupported
from gnn_backend.ops.attention import gatv2_attention, kernel_ready
from gnn_backend.profile import profile
from tests.ops.support import NAMES, attention, problem, run, same_bits


def shifted(tensor: Tensor) -> Tensor:
    """The same values one element after an aligned address."""
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


def negated_view(tensor: Tensor) -> Tensor:
    """The same values, stored negated and marked so."""
    return torch._neg_view(-tensor)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "every other column": lambda t: torch.stack([t, t + 1], -1).flatten(-2)[..., ::2],
    "shifted by one": shifted,
    "negated": negated_view,
    "parameter": torch.nn.Parameter,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*NAMES, "cotangent"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_layouts_give_the_same_bits(
    layout: str, name: str, dtype: torch.dtype, target: str
) -> None:
    p = problem(2, 64, dtype)
    expected = run(p)
    if name == "cotangent":
        p.cotangent = LAYOUTS[layout](p.cotangent)
    else:
        changed = LAYOUTS[layout](p.operands[name].detach()).requires_grad_()
        p = p.with_operands(**{name: changed})
    assert same_bits(expected, run(p))


def test_negated_view_of_one_value() -> None:
    """Contiguous whatever its strides are, yet not what its memory says."""
    one = negated_view(torch.full((1, 1, 1), 3.0))
    assert kernel_ready(one).numpy().item() == 3.0


def test_expanded_tensors(target: str) -> None:
    p = problem(3, 7)
    row = p.operands["x_dst"].detach()[:1]
    full = p.with_operands(x_dst=row.repeat(29, 1, 1).requires_grad_())
    expanded = p.with_operands(x_dst=row.expand(29, 3, 7).requires_grad_())
    assert same_bits(run(full), run(expanded))
    p.cotangent = torch.ones(())
    out = attention(p)
    assert out.sum().backward() is None  # its cotangent has stride 0
    p.cotangent = torch.ones_like(out)
    expected = run(p)
    for name, tensor in p.operands.items():
        assert torch.equal(tensor.grad, expected[name])


def test_kernel_ready_copies_only_where_it_must() -> None:
    aligned = torch.zeros(4, 4)
    assert kernel_ready(aligned).data_ptr() == aligned.data_ptr()
    for tensor in (aligned.t(), aligned.flatten()[1:], aligned[:, ::2]):
        ready = kernel_ready(tensor)
        assert ready.data_ptr() % 16 == 0 and ready.is_contiguous()
        assert ready.shape == tensor.shape


GOOD = problem(2, 5)
META = torch.device("meta")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_src": torch.zeros(37, 10)}, r"x_src: wrong shape; got \(37, 10\)"),
        ({"x_src": torch.zeros(36, 2, 5)}, r"x_src: wrong shape; got \(36, 2, 5\), expected \(37"),
        ({"x_dst": torch.zeros(37, 2, 5)}, r"x_dst: wrong shape; got \(37, 2, 5\), expected \(29"),
        ({"x_dst": torch.zeros(29, 1, 5)}, r"x_dst: wrong shape; got \(29, 1, 5\)"),
        ({"x_dst": torch.zeros(29, 2, 4)}, r"x_dst: wrong shape; got \(29, 2, 4\)"),
        ({"att": torch.zeros(1, 2, 5)}, r"att: wrong shape; got \(1, 2, 5\), expected \(2, 5\)"),
        ({"att": torch.zeros(2, 6)}, r"att: wrong shape; got \(2, 6\)"),
        ({"x_dst": torch.zeros(29, 2, 5).half()}, "x_dst: mixed dtypes; got torch.float16"),
        ({"att": torch.zeros(2, 5).double()}, "att: mixed dtypes; got torch.float64"),
        ({"x_dst": torch.zeros(29, 2, 5, device=META)}, "x_dst: not on the graph's device"),
        ({"att": torch.zeros(2, 5, device=META)}, "att: not on the graph's device; got meta"),
        (
            {n: torch.zeros_like(t, dtype=torch.int32) for n, t in GOOD.operands.items()},
            "x_src: wrong dtype; got torch.int32",
        ),
        (
            {n: torch.zeros_like(t, dtype=torch.complex64) for n, t in GOOD.operands.items()},
            "x_src: wrong dtype; got torch.complex64",
        ),
    ],
)
def test_wrong_operands(changed: dict[str, Tensor], message: str, target: str) -> None:
    with profile() as record, pytest.raises(InvalidArgument, match=message):
        attention(GOOD.with_operands(**changed))
    assert not record.launches


@pytest.mark.parametrize("slope", [math.nan, math.inf, "0.2", None, torch.tensor(0.2)])
def test_wrong_slope(slope: object, target: str) -> None:
    with pytest.raises(InvalidArgument, match="negative_slope: not a finite number"):
        gatv2_attention(GOOD.graph, *GOOD.operands.values(), negative_slope=slope)


def test_a_whole_number_is_a_slope(target: str) -> None:
    p = problem(2, 5, slope=1)
    assert attention(p).isfinite().all()


def refusal(dim: int, dtype: torch.dtype) -> Unsupported:
    with pytest.raises(Unsupported) as caught:
        attention(problem(1, dim, dtype))
    return caught.value


def test_what_the_device_kernels_do_not_take(emulator: None) -> None:
    assert refusal(7, torch.float64).reason == "dtype-float64"
    too_wide = refusal(1025, torch.float32)
    assert too_wide.reason == "head-dim" and "1025 > 1024" in too_wide.detail


def test_rows_of_too_many_values(emulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnn_backend.runtime.plan._MAX_ROW", 14)
    assert attention(problem(1, 7)).shape == (29, 1, 7)
    with pytest.raises(Unsupported, match="2 x 7 >= 14") as caught:
        attention(problem(2, 7))
    assert caught.value.reason == "head-dim"


def test_numba_takes_wider_rows() -> None:
    p = problem(1, 1025)
    assert attention(p).shape == (29, 1, 1025)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_unknown_floats(dtype: torch.dtype, target: str) -> None:
    operands = {n: t.detach().to(dtype) for n, t in GOOD.operands.items()}
    with pytest.raises(Unsupported) as caught:
        attention(GOOD.with_operands(**operands))
    assert caught.value.reason == "dtype-unsupported"


def test_refusing_leaves_the_numba_target_usable(emulator: None) -> None:
    refusal(7, torch.float64)
    with config.override(cpu_target="numba"):
        assert attention(problem(1, 7, torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(("name", "value"), [("graph", None), ("x_src", None), ("att", [[1.0]])])
def test_what_is_no_graph_or_tensor_is_named(name: str, value: object) -> None:
    p = problem(1, 4)
    arguments = {"graph": p.graph, **p.operands, name: value}
    with pytest.raises(InvalidArgument, match=f"{name}: not a"):
        gatv2_attention(**arguments)
