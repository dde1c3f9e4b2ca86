"""Checked runs: what they find, and what they leave alone."""

from __future__ import annotations

import pytest
import torch

import gnn_backend
from gnn_backend import judging, verify
from gnn_backend.dispatch import dispatch
from gnn_backend.errors import VerificationError


def inputs() -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)


def test_right_layer_passes_and_returns_the_fused_result(fake):
    layer, x = fake.load().Conv(), inputs()
    with gnn_backend.enabled(mode="verify"), gnn_backend.profile() as p:
        y = layer(x)
    assert (p.accelerated, sum(p.launches.values())) == (1, 1)
    y.sum().backward()
    assert x.grad is not None and layer.lin.weight.grad is not None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("wrong output", r"Conv: output out differs, worst at \(0, \d\): fused .*, stock .*; "
         r"difference 0\.5, tolerance"),
        ("wrong gradient", r"gradient of lin\.bias differs"),
        ("detached", r"gradient of x differs"),
    ],
)  # fmt: skip
def test_faults_are_found(fake, fault, message):
    layer = fake.load().Conv().eval()
    fake.how["fast"] = fault
    with gnn_backend.enabled(mode="verify"), pytest.raises(VerificationError, match=message):
        layer(inputs())


def test_gradient_fault_is_not_looked_for_without_grad(fake):
    layer = fake.load().Conv().eval()
    fake.how["fast"] = "wrong gradient"
    with gnn_backend.enabled(mode="verify"), torch.no_grad():
        layer(inputs())


def test_random_stream_advances_as_with_stock(fake):
    layer = fake.load().Conv()  # drops out
    torch.manual_seed(5)
    stock, stock_next = layer(inputs()), torch.rand(3)
    torch.manual_seed(5)
    with gnn_backend.enabled(mode="verify"):
        ours, ours_next = layer(inputs()), torch.rand(3)
    assert torch.equal(stock, ours) and torch.equal(stock_next, ours_next)


def test_gradients_and_buffers_of_the_user_are_left_alone(fake):
    layer, x = fake.load().Conv(), inputs()
    layer.lin.weight.grad = mark = torch.full((3, 3), 7.0)
    with gnn_backend.enabled(mode="verify"):
        layer(x)
    assert layer.lin.weight.grad is mark and bool((mark == 7).all())
    assert x.grad is None and layer.lin.bias.grad is None
    assert layer.calls == 0, "buffers are those of the fused code"


def test_non_leaf_inputs_stay_connected(fake):
    layer, leaf = fake.load().Conv().eval(), inputs()
    expected = torch.autograd.grad(layer(leaf * 2).sum(), leaf)[0]
    with gnn_backend.enabled(mode="verify"):
        layer(layer(leaf * 2) * 0 + leaf * 2).sum().backward()
    assert torch.allclose(leaf.grad, expected)


def test_stock_reference_is_stock_all_the_way_down(fake):
    inner, x = fake.load().Conv(), inputs()

    def outer(x):
        return inner(x)

    checked = dispatch("a.outer", outer, lambda x: None, inner.lin, mode="verify")
    with gnn_backend.enabled(), gnn_backend.profile() as p:
        inner.eval(), checked(x)
    assert p.accelerated == 1 and list(p.by_symbol) == ["a.outer"]


def test_nan_and_infinity_compare_by_kind():
    a = torch.tensor([1.0, torch.nan, torch.inf, torch.inf])
    same, scale = judging.difference_and_scale(a, a.clone())
    assert scale == 1 and bool((same == 0).all())
    b = torch.tensor([1.0, 0.0, -torch.inf, 2.0])
    difference, _ = judging.difference_and_scale(a, b)
    assert difference.tolist() == [0, torch.inf, torch.inf, torch.inf]


def test_shapes_and_missing_outputs_are_reported():
    one = {"out": torch.ones(2)}
    with pytest.raises(VerificationError, match=r"shape \(3,\).*stock gives \(2,\)"):
        verify.check("a.b", "output", one, {"out": torch.ones(3)})
    with pytest.raises(VerificationError, match="float64"):
        verify.check("a.b", "output", one, {"out": torch.ones(2).double()})
    with pytest.raises(VerificationError, match=r"\['out\[0\]'\]"):
        verify.check("a.b", "output", one, {"out[0]": torch.ones(2)})


def test_nested_arguments_are_named():
    def f(layer, x, *, weight=None):
        return {"a": x[0] * weight, "b": (x[1],)}

    x, w = (inputs(), inputs()), inputs()
    names = verify.argument_names(f, (None, x), {"weight": w})
    run = verify.run(f, None, (None, x), {"weight": w}, names)
    assert set(run.outputs) == {"out['a']", "out['b'][0]"}
    assert set(run.gradients) == {"x[0]", "x[1]", "weight"}
    assert torch.equal(run.gradients["x[1]"], verify.cotangent(x[1], 1))


def test_tolerance_follows_the_configuration(fake):
    from gnn_backend import config

    layer = fake.load().Conv().eval()
    fake.how["fast"] = "wrong output"
    with config.override(verify_rtol=10.0), gnn_backend.enabled(mode="verify"):
        layer(inputs())


def test_a_gradient_that_cancels_is_judged_beside_the_others() -> None:
    large, noise = torch.full((3,), 8.0), torch.tensor([1e-7, -2e-7, 0.0])
    verify.check("x.Y", "gradient of", {"a": large, "b": noise}, {"a": large, "b": -noise})
    with pytest.raises(VerificationError, match="gradient of b"):
        verify.check(
            "x.Y", "gradient of", {"a": large, "b": noise}, {"a": large, "b": noise + 1e-3}
        )


def test_float64_is_the_second_judge() -> None:
    """What stock itself loses is no fault of ours, and is said; what ours loses is one."""

    def coarse(x: torch.Tensor) -> torch.Tensor:
        return x + 4096.0 - 4096.0

    x = inputs()
    with pytest.warns(RuntimeWarning, match="a.b: out differs from stock by .*which is rounding"):
        got = verify.run_both("a.b", coarse, lambda x: x * 1.0, (x,), {})
    assert torch.equal(got, x)
    with pytest.raises(VerificationError, match="output out differs"):
        verify.run_both("a.b", lambda x: x * 1.0, coarse, (x,), {})
    with pytest.raises(VerificationError, match="output out differs"):
        verify.run_both("a.b", coarse, lambda x: x * 1.001, (x,), {})


def test_16_bits_cancel_sooner() -> None:
    large, noise = torch.full((3,), 8.0), torch.full((3,), 0.04)
    float32, bfloat16 = {"a": large, "b": noise}, {"a": large.bfloat16(), "b": noise.bfloat16()}
    assert judging.least_scale(float32) == pytest.approx(0.08)
    assert judging.least_scale(bfloat16) == judging.least_scale(float32, bfloat16) > 0.7
    verify.check("x.Y", "gradient of", bfloat16, {**bfloat16, "b": -noise.bfloat16() / 8})


def test_arguments_of_any_number_are_named() -> None:
    def f(graph, *feats, scale=1.0):
        return feats

    assert verify.argument_names(f, (0, 1, 2), {"scale": 2.0}) == ["graph", "feats[0]", "feats[1]"]
    assert verify.argument_names(lambda *x: x, (0,), {}) == ["x[0]"]
